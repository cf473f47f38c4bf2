"""The SQL behind a message of the extended protocol.

Execute names a portal, Bind made the portal from a statement, Parse made the statement from SQL.
Following the names back is what lets a boundary say which statement it is.
"""

from __future__ import annotations

from harness.gate.wire import Frame, cstring
from harness.limits import SQL_TEXT_MAX


class Statements:
    """The prepared statements and portals of one session, by name."""

    def __init__(self) -> None:
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}

    def sql(self, frame: Frame) -> str:
        """Return the SQL that a client message carries or executes, cut to the log's width."""
        match frame.letter:
            case "Q":
                return cstring(frame.body, 0, SQL_TEXT_MAX)[0]
            case "P":
                return cstring(frame.body, cstring(frame.body)[1], SQL_TEXT_MAX)[0]
            case "E":
                return self._portals.get(cstring(frame.body)[0], "")
        return ""

    def remember(self, frame: Frame) -> None:
        """Follow the names in a Parse, Bind or Close that goes to the server."""
        match frame.letter:
            case "P":
                self._statements[cstring(frame.body)[0]] = self.sql(frame)
            case "B":
                portal, start = cstring(frame.body)
                statement, _ = cstring(frame.body, start)
                self._portals[portal] = self._statements.get(statement, "")
            case "C":
                named = self._statements if frame.body[:1] == b"S" else self._portals
                named.pop(cstring(frame.body, 1)[0], None)
