"""What becomes of orders after a job committed them, and of its records: prepared for lab 7.

Everything here is done by other owners to a job with two of three chunks committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.scenario import Scenario, festival
from harness.workshop import Scene

#: Two of three chunks done; the third is short.
JOB = festival(23, 10, seed=71, done_chunks=2)
#: Another job, complete, and in the same database: its rows are nobody else's business.
BESIDE = festival(12, 5, seed=72, done_chunks=3, job_id="beside", first_id=50_001)

#: What may happen to an order after the job committed it, by its position in the list.
DRIFT: Mapping[int, tuple[str, str]] = {
    0: ("raised the revision", "revision = revision + 1"),
    3: ("changed the quantity, as a normal write", "qty = qty + 1, revision = revision + 1"),
    5: ("changed only the quantity", "qty = qty + 1"),
    8: ("reopened it, as a normal write", "state = 'pending', revision = revision + 1"),
    9: ("reopened it without raising the revision", "state = 'pending'"),
    10: ("moved it to another tenant", "tenant = 'aurora-catering'"),
    14: ("lowered the revision", "revision = revision - 1"),
    19: ("created it anew, pending in revision 1", "state = 'pending', revision = 1"),
}
#: Positions of orders that are deleted.
GONE = (1, 10, 18)


def drift(scene: Scene) -> dict[int, str]:
    """Let other owners change committed orders; return what was done to which."""
    for position, (_, assignment) in DRIFT.items():
        order_id = JOB.approved_ids[position]
        scene.rival(f"UPDATE orders SET {assignment} WHERE order_id = %s", (order_id,))
    return {JOB.approved_ids[position]: words for position, (words, _) in DRIFT.items()}


def heal(scene: Scene, scenario: Scenario) -> None:
    """Put checkpoint and audit back to what they were."""
    scene.rival("UPDATE jobs SET next_index = %s", (scenario.next_index,))
    scene.rival("DELETE FROM job_audit")
    scene.rival(
        "INSERT INTO job_audit (job_id, position, order_id, revision_before, revision_after, qty)"
        " SELECT job_id, position, order_id, revision, revision + 1, qty FROM job_items"
        " WHERE position < %s",
        (scenario.next_index,),
    )
