"""PostgreSQL in a Docker container, by way of testcontainers.

Imported only when Docker is asked for. The port is published on loopback alone. When the harness is
killed, the container is removed by testcontainers' own reaper, unless that is switched off.
"""

from __future__ import annotations

import gc
import os
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from testcontainers.community.postgres import PostgresContainer
from testcontainers.core.docker_client import DockerClient

from harness import limits
from harness.postgres.server import DatabaseProblem
from harness.waiting import DeadlineExpired, wait_until

IMAGE_DEFAULT = "postgres:18-alpine"
_PORT = 5432
_COMMAND = [
    "postgres",
    *("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "autovacuum=off", "-c", "jit=off"),
    *("-c", "client_connection_check_interval=20ms", "-c", "max_prepared_transactions=10"),
    *("-c", f"deadlock_timeout={limits.DEADLOCK_TIMEOUT_MS}ms"),
]


@dataclass(frozen=True, slots=True)
class Container:
    """A running container and how to reach PostgreSQL in it."""

    image: str
    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False)


def image_name() -> str:
    """Return the image to use: LAB_DOCKER_IMAGE, or the official one."""
    return os.environ.get("LAB_DOCKER_IMAGE") or IMAGE_DEFAULT


def engine_description() -> str:
    """Ask the Docker engine for its version.

    Raises:
        DatabaseProblem: If there is no engine, or it does not answer.
    """
    try:
        client = DockerClient().client
        try:
            return f"Docker {client.version()['Version']}, image {image_name()}"
        finally:
            client.close()
    except Exception as error:
        text = f"Docker does not answer: {error}"
    with warnings.catch_warnings():
        # Docker's library leaves its failed sockets to the garbage collector, which would complain later.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    raise DatabaseProblem(
        text, "Start Docker to use LAB_DATABASE=docker; the other sources need none."
    )


@contextmanager
def open_container(tell: Callable[[str], None]) -> Iterator[Container]:
    """Start a container and remove it afterwards.

    Raises:
        DatabaseProblem: If Docker does not answer, or the image cannot be had or started.
    """
    tell(f"starting {engine_description()}")
    user, database, password = "harness", "harness", secrets.token_urlsafe(24)
    postgres = PostgresContainer(
        image_name(), port=_PORT, username=user, password=password, dbname=database, driver=None
    )
    # testcontainers publishes on every address; its type knows no other, Docker does.
    ports: dict[str, Any] = postgres.ports
    ports[str(_PORT)] = ("127.0.0.1",)
    try:
        postgres.with_command(_COMMAND).start()
    except Exception as error:
        postgres.stop()
        text = f"no container of {image_name()}: {error}"
        raise DatabaseProblem(
            text, "Pull or build the image, or name another in LAB_DOCKER_IMAGE."
        ) from error
    try:
        host, port = postgres.get_container_host_ip(), postgres.get_exposed_port(_PORT)
        host = "127.0.0.1" if host == "localhost" else host
        yield Container(image_name(), host, port, user, database, password)
    finally:
        postgres.stop()


def wait_ready(connect: Callable[[], psycopg.Connection[Any]]) -> None:
    """Wait until a connection from outside works; the port is published a little late.

    Raises:
        DatabaseProblem: If none works in time; the text is the last refusal.
    """
    last: list[DatabaseProblem] = []

    def connects() -> bool:
        try:
            connect().close()
        except DatabaseProblem as error:
            last[:] = [error]
            return False
        return True

    try:
        wait_until(connects, "the container accepts connections",
                   wait_s=limits.SERVER_START_WAIT_S, poll_s=0.05)  # fmt: skip
    except DeadlineExpired:
        raise last[0] from None
