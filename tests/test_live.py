"""The live board without a browser: the stage moved by hand, and the server's door."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from board_kit import RunningBoard, open_board

from harness.activity import activities, sized
from harness.course import SOLUTIONS
from harness.faults import parse_fault
from harness.live.stage import Choice, NotNow, Stage
from harness.waiting import wait_until
from harness.workshop import Workshop

DRAIN = sized(activities(5)[0], 6, 3, 0)
WORKER = sized(activities(6)[0], 6, 3, 0)
WAIT_S = 30


@pytest.fixture
def stage(workshop: Workshop) -> Iterator[Stage]:
    stage = Stage(workshop)
    yield stage
    stage.close()


def _run_out(stage: Stage, number: int) -> None:
    stage.run(number)
    wait_until(lambda: stage.look_around() and bool(stage.workers[number - 1].ended), "the client has ended", wait_s=WAIT_S)  # fmt: skip


def test_a_client_is_stepped_killed_and_another_finishes(stage: Stage) -> None:
    stage.start(Choice(DRAIN, "solutions", SOLUTIONS))
    pid = stage.workers[0].actor.client.pid
    stage.step(1)
    assert stage.workers[0].state == "held at boundary 2"
    stage.kill(1)
    assert not psutil.pid_exists(pid)
    stage.another()
    _run_out(stage, 2)
    assert stage.view()["verdict"].startswith("finished")


def test_a_program_is_played_to_its_fault(stage: Stage) -> None:
    """Lab 6's worker is killed at its second commit; the page is told that the chunk stayed."""
    stage.start(Choice(WORKER, "solutions", SOLUTIONS, parse_fault("kill@commit#2")))
    _run_out(stage, 1)
    view = stage.view()
    assert "SIGKILL" in view["workers"][0]["state"]
    assert view["verdict"].startswith("finished")


def test_a_lost_reply_reaches_the_client_as_an_error(stage: Stage) -> None:
    stage.start(Choice(DRAIN, "solutions", SOLUTIONS, parse_fault("lose-reply@commit")))
    _run_out(stage, 1)
    assert "raised" in stage.view()["workers"][0]["state"]


def test_a_frozen_client_does_not_move_until_it_is_thawed(stage: Stage) -> None:
    """Released while frozen, it stays on its way; thawed, it arrives."""
    stage.start(Choice(DRAIN, "solutions", SOLUTIONS))
    stage.freeze(1)
    stage.step(1)
    assert stage.workers[0].hold is None
    stage.thaw(1)
    wait_until(lambda: stage.look_around() or stage.workers[0].hold is not None, "it arrived", wait_s=WAIT_S)  # fmt: skip
    assert stage.workers[0].state == "held at boundary 2"


def test_what_cannot_be_done_now_is_said(stage: Stage) -> None:
    with pytest.raises(NotNow, match="press Start"):
        stage.rival(1)
    stage.start(Choice(DRAIN, "solutions", SOLUTIONS))
    with pytest.raises(NotNow, match="no order 1"):
        stage.rival(1)
    with pytest.raises(NotNow, match="not frozen"):
        stage.thaw(1)
    stage.kill(1)
    with pytest.raises(NotNow, match="not on the stage"):
        stage.step(1)


def test_close_ends_every_client(stage: Stage) -> None:
    stage.start(Choice(DRAIN, "solutions", SOLUTIONS))
    stage.another()
    pids = [w.actor.client.pid for w in stage.workers]
    stage.freeze(2)
    stage.close()
    assert not any(map(psutil.pid_exists, pids))
    assert stage.view() == {"on": False, "message": ""}


# --- the door ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def board() -> Iterator[RunningBoard]:
    with open_board() as running:
        yield running


def test_only_the_own_page_gets_in(board: RunningBoard) -> None:
    """Host, origin and token must be the board's own; a foreign page learns and moves nothing."""
    host, own = board.address, f"http://{board.address}"
    page, do = board.path, f"{board.path}do"
    assert board.request("GET", page, {"Host": host}) == 200
    assert board.request("GET", "/", {"Host": host}) == 404
    assert board.request("GET", "/wrong-token/", {"Host": host}) == 404
    assert board.request("GET", page, {"Host": "evil.example"}) == 403
    assert board.request("GET", page, {"Host": "127.0.0.1"}) == 403
    assert board.request("GET", page, {"Host": host, "Origin": "http://evil.example"}) == 403
    assert board.request("GET", page, {"Host": host, "Sec-Fetch-Site": "cross-site"}) == 403
    command = {"action": "view"}
    assert board.request("POST", do, {"Host": host, "Origin": own}, command) == 200
    assert board.request("POST", do, {"Host": host}, command) == 403
    assert board.request("POST", do, {"Host": host, "Origin": "null"}, command) == 403


def test_a_body_that_is_no_command_is_refused(board: RunningBoard) -> None:
    headers = {"Host": board.address, "Origin": f"http://{board.address}"}
    do = f"{board.path}do"
    for body in ("text", [1], {"action": "x" * 10_000}):
        assert board.request("POST", do, headers, body) == 400


def test_it_listens_on_loopback_only(board: RunningBoard) -> None:
    listening = psutil.Process(board.process.pid).net_connections("tcp")
    addresses = {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN}
    assert addresses == {"127.0.0.1"}


def test_ctrl_c_ends_it_and_everything_it_started() -> None:
    with open_board() as board:
        children = psutil.Process(board.process.pid).children(recursive=True)
        ours = [c for c in children if "postgres" not in c.name()]  # the server lingers, warm
        assert board.stop() == 0
        assert [c for c in ours if c.is_running() and c.status() != psutil.STATUS_ZOMBIE] == []
