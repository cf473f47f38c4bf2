"""A PostgreSQL server as the rest of the harness sees it, whatever source it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.records import Upstream


class DatabaseProblem(Exception):
    """No usable PostgreSQL. The text says what is wrong, `next_step` what to do about it."""

    def __init__(self, text: str, next_step: str) -> None:
        super().__init__(text)
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that the harness may create databases and roles on.

    `upstream` is where the proxy dials. `admin` holds psycopg's connect arguments of the harness's
    own user; they are never given to a client and never shown. `restart`, where there is one, stops
    the server without any clean-up, as a crash would, and starts it again.
    """

    source: str  # url, docker, embedded
    version: int  # as the server counts: 180001
    upstream: Upstream
    admin: Mapping[str, Any] = field(repr=False)
    bin_dir: Path | None  # where psql is
    description: str
    secrets: tuple[str, ...] = ()  # folders that no client may read
    restart: Callable[[], None] | None = field(default=None, repr=False)
