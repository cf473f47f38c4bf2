"""Which transactions changed something in a session, and which of them are committed.

The witness announces every change with its transaction's id. An announcement is an attempt: what
became of it is known only when the transaction is over, and the only one who knows is the server
(`pg_xact_status`). COMMIT's tag proves nothing: autocommit has none, COMMIT of a failed transaction
answers ROLLBACK, a procedure may commit several times inside one CALL, and PREPARE TRANSACTION ends
the session's transaction without deciding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.records import Touch

#: After these tags a transaction may be over although the session is still in one, or in the next.
_MAY_COMMIT = frozenset({"COMMIT", "CALL", "DO"})


class Transactions:
    """The touches of one session, until the transactions that made them are over."""

    def __init__(self, committed: Callable[[int], bool | None]) -> None:
        """Begin with nothing.

        Args:
            committed: Tells of a transaction: True, False when over without it, None while open.
        """
        self._committed = committed
        self._touches: list[Touch] = []  # of the unit at work
        self._unsettled: dict[int, None] = {}  # ids in order of their first touch

    def add(self, touch: Touch) -> None:
        """Take note of a touch of the unit at work."""
        self._touches.append(touch)
        self._unsettled[touch.xid] = None

    def settle(
        self, tags: Iterable[str], status: str, failed: bool
    ) -> tuple[tuple[Touch, ...], tuple[int, ...]]:
        """End a unit; return its touches and the transactions that became durable with it.

        Args:
            tags: The command tags of the unit.
            status: The ReadyForQuery byte, empty when the unit had none.
            failed: The unit ended in an error. What it did is gone, except what it had committed.
        """
        touches, self._touches = tuple(self._touches), []
        committed: tuple[int, ...] = ()
        # The condition only saves questions that cannot have a new answer.
        if status == "I" or any(tag.partition(" ")[0] in _MAY_COMMIT for tag in tags):
            truth = {xid: self._committed(xid) for xid in self._unsettled}
            self._unsettled = {xid: None for xid, known in truth.items() if known is None}
            committed = tuple(xid for xid, known in truth.items() if known)
        if failed:
            touches = tuple(touch for touch in touches if touch.xid in committed)
        return touches, committed
