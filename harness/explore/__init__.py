"""Explorations: what the notebooks call. One file a theme; every value shows itself in a notebook.

    from harness.explore.chunks import watch_job
    watch_job(orders=40, chunk_size=10)

Runs are real: a client process, a PostgreSQL server, a kill. `stage.py` starts what they need once a
kernel; `shown.py` is how values become pictures and tables. matplotlib is imported only when
something is plotted, so that nothing else in the kit needs it.
"""
