"""`lab board` as a process of its own, for tests: started, asked, and ended by Ctrl-C."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Starting PostgreSQL may take long on a loaded machine, ending everything too.
ENDS_WITHIN_S = 60


@dataclass
class RunningBoard:
    """A board that runs. `url` is what it printed."""

    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> str:
        """Return host and port."""
        return urlsplit(self.url).netloc

    @property
    def path(self) -> str:
        """Return the path with the token."""
        return urlsplit(self.url).path

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: object = None
    ) -> int:
        """Send one request with exactly these headers; return its status."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            data = json.dumps(body).encode() if body is not None else b""
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            return connection.getresponse().status
        finally:
            connection.close()

    def stop(self) -> int:
        """Press Ctrl-C; return the exit status."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(ENDS_WITHIN_S)


@contextmanager
def open_board() -> Iterator[RunningBoard]:
    """Start `lab board` and wait for its address; end it by Ctrl-C."""
    command = [sys.executable, "-m", "harness.cli", "board", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:  # fmt: skip
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            found = re.search(r"http://\S+", first)
            assert found, f"the board said: {first!r}"
            board = RunningBoard(process, found[0])
            yield board
            if process.poll() is None:
                assert board.stop() == 0
        finally:
            if process.poll() is None:
                process.kill()
