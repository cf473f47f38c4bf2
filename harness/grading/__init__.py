"""Graded checks: what a check is, what helps to write one, and how pytest runs them.

A check is a pytest function in `labs/labNN_*/test_*.py`, marked with `@check`. It plays a scene with
the learner's code as a client process and raises `PromiseBroken` with a finding when a promise is
broken. A file of checks imports two names:

    from harness.grading.bench import Bench
    from harness.grading.check import check
"""
