"""The shapes of jobs that graded checks run beside the story's 40 orders, 10 a chunk.

A batch that only works for the story is not done: chunks that do not divide the list, one order, IDs
near the end of the type, names that need quoting.
"""

from __future__ import annotations

from harness.scenario import Scenario, festival

#: A bigint's last thousandth: IDs that a float or an int column would round or refuse.
HUGE_ID = 9_223_372_036_854_000_000

SHAPES: dict[str, Scenario] = {
    "one order": festival(1, 10, seed=1),
    "a chunk larger than the list": festival(7, 100, seed=2),
    "a short last chunk": festival(23, 10, seed=3),
    "an exact multiple": festival(20, 10, seed=4),
    "chunks of one": festival(4, 1, seed=5),
    "another tenant and job": festival(12, 5, seed=6, tenant="basalt-tours", job_id="b-7"),
    "IDs of two, three and four digits": festival(60, 20, seed=9, first_id=88),
    "very large IDs": festival(9, 4, seed=7, first_id=HUGE_ID),
    "names with quotes and other scripts": festival(
        6, 4, seed=8, tenant="l'été 夏 \\ %s", job_id="annulation «pluie» 雨'; --"
    ),
}
