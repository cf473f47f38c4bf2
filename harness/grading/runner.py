"""Run one check and turn how it ended into a verdict with its words.

pytest finds and orders the checks (`plugin.py`); this is what happens to one of them. It is apart so
that the kit's own tests can run hundreds of answers through the same checks in one process.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.course import LABS, Lab
from harness.grading.check import (
    CHECK_ATTRIBUTE,
    Check,
    EarlierLabMissing,
    FaultMissed,
    NotStarted,
    PromiseBroken,
)
from harness.grading.words import broken_text, not_started_text, ours_text, unfit_text
from harness.records import Verdict

#: How often a check may end without a verdict on the learner's code before that is reported.
TRIES = 2


#: What Python raises when an answer is not of the kind that the contract names.
UNFIT = (AttributeError, TypeError, ValueError, KeyError, IndexError)


@dataclass(frozen=True)
class Played:
    """How a check ended: the verdict, its words, and what a program may want to know."""

    verdict: Verdict
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    problem: BaseException | None = None


def play_check(play: Callable[[], Any], lab: Lab, repeat: str) -> Played:
    """Play a check; once more when it ended void or with an error of ours."""
    for _ in range(TRIES):
        played = _play_once(play, lab, repeat)
        if played.verdict not in (Verdict.VOID, Verdict.ERROR):
            break
    return played


def checks_of(lab: Lab, labs: Path = LABS) -> Iterator[tuple[str, Check, Callable[..., Any]]]:
    """Yield name, words and function of every graded check of a lab, in the order of its file."""
    for path in sorted((labs / lab.folder).glob("test_*.py")):
        for name, function in inspect.getmembers(_load(path), inspect.isfunction):
            check = getattr(function, CHECK_ATTRIBUTE, None)
            if check is not None:
                yield name, check, function


def _load(path: Path) -> ModuleType:
    name = f"graded_{path.parent.name}_{path.stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


def _is_about_the_answer(problem: BaseException) -> bool:
    """Tell whether an error arose where a check looks into what the learner's code answered.

    The check's own frame is the innermost then, or `Seen`, which stands for the learner's object. A
    fault of the harness has a frame of the harness there.
    """
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    path = Path(trace.tb_frame.f_code.co_filename)
    return path.name.startswith("test_") or trace.tb_frame.f_code.co_qualname.startswith("Seen.")


def _play_and_close(play: Callable[[], Any]) -> None:
    """Play, and close at once what a check that raises leaves half-way: generators with an open scene.

    Its frames keep them alive until some garbage collection, and that may run in the proxy's own
    thread, which would then wait for itself.
    """
    try:
        play()
    except BaseException as problem:
        traceback.clear_frames(problem.__traceback__)
        raise


def _play_once(play: Callable[[], Any], lab: Lab, repeat: str) -> Played:
    try:
        _play_and_close(play)
    except PromiseBroken as broken:
        evidence = {"findings": [asdict(finding) for finding in broken.findings]}
        return Played(Verdict.FAIL, broken_text(broken, repeat), evidence, broken)
    except NotStarted as problem:
        return Played(Verdict.FAIL, not_started_text(lab, problem), {"not_started": True}, problem)
    except EarlierLabMissing as missing:
        return Played(Verdict.SKIP, str(missing), {"missing_lab": missing.number})
    except FaultMissed as missed:
        return Played(Verdict.VOID, ours_text("void", missed, repeat), {}, missed)
    except UNFIT as problem:
        if not _is_about_the_answer(problem):
            return Played(Verdict.ERROR, ours_text("error", problem, repeat), {}, problem)
        unfit = {"unfit_answer": str(problem)}
        return Played(Verdict.FAIL, unfit_text(lab, problem, repeat), unfit, problem)
    except Exception as problem:
        return Played(Verdict.ERROR, ours_text("error", problem, repeat), {}, problem)
    return Played(Verdict.PASS)
