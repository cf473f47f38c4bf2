"""The witness's word on the wire: an INFO that says which rows a statement has just changed.

It is recognised by its fields, never by its text, and it must be the witness's own: a learner can
raise the same SQLSTATE with the same fields, but not from a function in the witness's schema. Even
so an announcement only says where a client is; what counts as proof are the witness's rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.records import Touch

SQLSTATE = "LB001"
#: The innermost line of a notice's context: the function that raised it. The server writes it, in its
#: own language, so a learner's RAISE cannot say that it came from a function in the witness's schema.
#: An odd name of the learner's would be quoted, and no quote may stand before the match.
_FROM_WITNESS = re.compile(r'[^"\n]*(?<![\w.])witness\.\w+\(', re.ASCII)
_OPERATIONS = frozenset({"insert", "update", "delete", "truncate"})


def is_genuine(notice: Mapping[str, str]) -> bool:
    """Tell whether a notice was raised by the witness, and not by something that imitates it."""
    return (
        notice.get("C") == SQLSTATE
        and notice.get("V") == "INFO"
        and _FROM_WITNESS.match(notice.get("W", "")) is not None
    )


def touch(notice: Mapping[str, str]) -> Touch | None:
    """Return the touch that a notice announces; None when it is malformed or no rows changed."""
    operation, _, rows = notice.get("n", "").partition(":")
    xid, table = notice.get("D", ""), notice.get("t", "")
    if operation not in _OPERATIONS or not table or not (_number(rows) and _number(xid)):
        return None
    if int(rows) == 0 and operation != "truncate":
        return None
    return Touch(table, operation, int(rows), int(xid))


def _number(text: str) -> bool:
    """Tell whether the text is a 64-bit number in plain digits."""
    return text.isascii() and text.isdigit() and len(text) <= 19
