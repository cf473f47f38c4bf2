"""Doctored progress: what a broken tool or a careless hand may have left in the three records.

Each damage starts from a healthy job with two whole chunks done. All are made by the harness as the
tables' owner.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.scenario import Scenario, festival

#: The healthy job that is damaged: 23 orders, 10 a chunk, two chunks done.
HEALTHY = festival(23, 10, seed=21, done_chunks=2)
#: The same approval with every chunk done.
COMPLETE = festival(23, 10, seed=21, done_chunks=3)
#: A lookalike of the same tenant that was never approved.
STRANGER = HEALTHY.others[1].order_id


@dataclass(frozen=True)
class Damage:
    """One damage: in words, and the statements that make it."""

    words: str
    sql: tuple[str, ...]
    scenario: Scenario = field(default=HEALTHY, repr=False)


_SWAP = """
    UPDATE job_audit a SET order_id = b.order_id, revision_before = b.revision_before,
           revision_after = b.revision_after, qty = b.qty
    FROM job_audit b WHERE a.position + b.position = 7 AND a.position IN (3, 4)
"""
_EXTRA = """
    INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)
    SELECT job_id, {position}, order_id, revision, revision + 1, qty FROM job_items WHERE position = 20
"""
_SHIFT = (
    "UPDATE job_audit SET position = position + 1000",
    "UPDATE job_audit SET position = position - 999",
)

AUDIT_DAMAGE: tuple[Damage, ...] = (
    Damage("deleted the whole audit", ("DELETE FROM job_audit",)),
    Damage("deleted the first audit row", ("DELETE FROM job_audit WHERE position = 0",)),
    Damage("deleted the audit row at position 7", ("DELETE FROM job_audit WHERE position = 7",)),
    Damage("deleted the last audit row", ("DELETE FROM job_audit WHERE position = 19",)),
    *(
        Damage(f"added an audit row at position {position}", (_EXTRA.format(position=position),))
        for position in (20, 22, 23, 1000, -1)
    ),
    Damage("moved every audit row one position on", _SHIFT),
    Damage("swapped the audit rows at positions 3 and 4", (_SWAP,)),
    Damage(
        "put another order's ID into the audit at position 5, same quantity and versions",
        (f"UPDATE job_audit SET order_id = {STRANGER} WHERE position = 5",),
    ),
    *(
        Damage(
            f"changed {column} at position {position}",
            (f"UPDATE job_audit SET {column} = {column} + 1 WHERE position = {position}",),
        )
        for column, position in (
            ("revision_before", 0), ("revision_after", 12), ("qty", 19), ("revision_before", 9),
            ("revision_after", 19), ("qty", 0),
        )
    ),
    Damage(
        "changed both versions at position 11",
        ("UPDATE job_audit SET revision_before = revision_before + 1, "
         "revision_after = revision_after + 1 WHERE position = 11",),
    ),
)  # fmt: skip

CHECKPOINT_DAMAGE: tuple[Damage, ...] = (
    Damage("set the checkpoint back to 0", ("UPDATE jobs SET next_index = 0",)),
    Damage("set the checkpoint back by one chunk", ("UPDATE jobs SET next_index = 10",)),
    Damage("set the checkpoint into the middle of a chunk", ("UPDATE jobs SET next_index = 15",)),
    Damage(
        "set the checkpoint and the audit into the middle of a chunk, both to 15",
        ("UPDATE jobs SET next_index = 15", "DELETE FROM job_audit WHERE position >= 15"),
    ),
    Damage("set the checkpoint to the end of the list", ("UPDATE jobs SET next_index = 23",)),
    Damage("set the checkpoint past the end of the list", ("UPDATE jobs SET next_index = 30",)),
    Damage(
        "set the checkpoint of a complete job one past the end",
        ("UPDATE jobs SET next_index = 24",),
        COMPLETE,
    ),
    Damage(
        "set the checkpoint of a complete job past the end, to a multiple of the chunk size",
        ("UPDATE jobs SET next_index = 30",),
        COMPLETE,
    ),
    Damage(
        "added an audit row past the end of a complete job",
        (_EXTRA.format(position=23),),
        COMPLETE,
    ),
)

DAMAGE = AUDIT_DAMAGE + CHECKPOINT_DAMAGE
