"""`lab notebook`: JupyterLab in notebooks/, with the server warm for as long as Jupyter lives.

Jupyter runs in a session of its own. So Ctrl-C reaches this command only, which asks Jupyter to stop,
and Jupyter ends its kernels. What does not end when asked is killed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.common import Exit, err, out, trouble_told, usage
from harness.course import ROOT
from harness.limits import JUPYTER_START_WAIT_S, JUPYTER_STOP_WAIT_S
from harness.waiting import wait_until

EPILOG = """Examples:
  lab notebook                opens JupyterLab in your browser; Ctrl-C ends it
  lab notebook --no-browser   prints the address only
"""

#: JupyterLab's settings of ours, which are defaults: it does not ask whether you want news.
_OVERRIDES = Path(__file__).with_name("jupyter")
#: Nothing is asked of other hosts: no news, no look for updates, no list of extensions.
_SETTINGS = (
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--ServerApp.open_browser=False",
    "--log-level=ERROR",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
    f"--LabApp.app_settings_dir={_OVERRIDES}",
    "--LabApp.extension_manager=readonly",
    "--LanguageServerManager.autodetect=False",
)


def notebook(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the browser.")
    ] = True,
) -> None:
    """Open the explorations in JupyterLab, with PostgreSQL running."""
    from harness.database import open_server

    if importlib.util.find_spec("jupyterlab") is None:
        err.print("JupyterLab is not installed. Next step: uv sync", highlight=False)
        raise typer.Exit(Exit.HARNESS)
    token = secrets.token_urlsafe(18)
    with trouble_told(), open_server(), _jupyter(_free(port), token) as (jupyter, url):
        out.print(f"The notebooks: {url}", highlight=False, soft_wrap=True)
        out.print("Whoever has this address can run code here. Ctrl-C ends it, and its kernels.")
        if browser:
            webbrowser.open(url)
        with contextlib.suppress(KeyboardInterrupt):
            jupyter.wait()  # it also ends by its own menu: File, Shut Down
    raise typer.Exit(Exit.PASSED)


def _free(port: int) -> int:
    """Return the port, or a free one for 0; end with status 2 if it cannot be used."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            usage(f"port {port} cannot be used: {problem.strerror}")
        number: int = probe.getsockname()[1]
        return number


@contextmanager
def _jupyter(port: int, token: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start JupyterLab, wait until it answers, and end it with everything it started."""
    settings = [
        *_SETTINGS,
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={ROOT / 'notebooks'}",
    ]
    if os.getuid() == 0:
        settings.append("--allow-root")
    jupyter = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *settings],
        env={**os.environ, "JUPYTER_TOKEN": token},  # arguments are seen by everybody on the machine
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        what = f"JupyterLab answers on port {port}"
        answers = wait_until(
            lambda: _answers(port) or jupyter.poll() is not None, what, wait_s=JUPYTER_START_WAIT_S
        )
        if not answers or jupyter.poll() is not None:
            err.print("JupyterLab ended at once; what it said is above.", highlight=False)
            raise typer.Exit(Exit.HARNESS)
        yield jupyter, f"http://127.0.0.1:{port}/lab?token={token}"
    finally:
        _end(jupyter)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end(jupyter: subprocess.Popen[bytes]) -> None:
    """Ask Jupyter to stop; kill it and its kernels, which have sessions of their own, if it does not."""
    import psutil

    try:
        family = psutil.Process(jupyter.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []  # it has ended by itself, and its kernels with it
    jupyter.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        jupyter.wait(JUPYTER_STOP_WAIT_S)
    jupyter.kill()
    jupyter.wait()
    _, left = psutil.wait_procs(family, timeout=JUPYTER_STOP_WAIT_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
