"""Interrupted: run, kill, judge and report a learner's PostgreSQL batch.

Kept empty on purpose. A learner's process imports `harness.contract`, and that must stay as cheap as
importing dataclasses. The map of the package is `harness/README.md`.
"""
