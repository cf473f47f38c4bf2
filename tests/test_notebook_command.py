"""`lab notebook`: JupyterLab on loopback behind a token, and nothing left of it after Ctrl-C."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from loop_kit import COMMAND_S, Checkout, Started

from harness.course import ROOT
from harness.waiting import wait_until


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """A learner's folder with the notebooks in it, and nobody's own settings of Jupyter."""
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    made = Checkout(tmp_path / "kit")
    shutil.copytree(ROOT / "notebooks", made.root / "notebooks")
    return made


@pytest.fixture
def started(checkout: Checkout) -> Iterator[Started]:
    """The command, ready; it is asked to stop if the test has not ended it."""
    command = checkout.start("notebook", "--no-browser")
    try:
        command.wait_for("Ctrl-C ends it")
        yield command
    finally:
        command.process.terminate()
        command.wait()


def ask(started: Started, path: str, *, token: str | None = None, data: bytes | None = None) -> Any:
    """Ask Jupyter's API; without `token`, with the right one."""
    found = re.search(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\S+)", started.output)
    assert found is not None, started.output
    headers = {"Authorization": f"token {found[2] if token is None else token}"}
    request = urllib.request.Request(f"{found[1]}/api/{path}", data=data, headers=headers)
    with urllib.request.urlopen(request, timeout=COMMAND_S) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_it_serves_the_notebooks_to_whoever_has_the_token_and_leaves_nothing(started):
    """
    Scenario:
    * `lab notebook --no-browser`; a kernel is started; somebody tries without the token; Ctrl-C.

    Outcome:
    * The notebooks are listed; without the token nothing is; every listener is on loopback.
    * The command ends with 0, and no process that it started is left.
    """
    names = [entry["name"] for entry in ask(started, "contents")["content"]]
    assert "01_chunks_on_a_board.ipynb" in names
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(started, "contents", token="wrong")
    with refused.value:
        assert refused.value.code == 403
    ask(started, "kernels", data=b'{"name": "python3"}')
    family = psutil.Process(started.process.pid).children(recursive=True)
    assert any("ipykernel_launcher" in " ".join(process.cmdline()) for process in family)
    listening = [c for p in family for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}

    started.process.send_signal(signal.SIGINT)
    assert started.wait() == 0, started.output
    wait_until(
        lambda: not any(process.is_running() for process in family),
        "Jupyter and its kernel have ended", wait_s=COMMAND_S, poll_s=0.05,
    )  # fmt: skip


def test_a_port_that_is_taken_is_a_usage_error(checkout):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = checkout.run("notebook", "--no-browser", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot be used" in done.stderr
