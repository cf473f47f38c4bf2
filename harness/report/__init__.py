"""Findings and runs, turned into what people read: terminal, JSON, HTML, notebook."""
