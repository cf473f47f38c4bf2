"""The live board: `lab board` serves a page on which real clients are stepped, frozen, thawed and killed.

`stage.py` owns one scene and does what a person asks for; `server.py` brings the asking in from a page
and the seeing out to it. What is drawn is made by `harness/report`, as for a finished run.
"""
