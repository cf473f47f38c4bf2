"""The server of the live board: one page, on loopback, for whoever holds the token.

The address that `lab board` prints has a random token in its path. Requests are answered only when
they name this host and port, come from this origin or from none, and have the token; everything else
is refused. So another site that is open in the same browser can neither read the board nor move it.

The page asks with small POSTs and sees through one stream of server-sent events. The newest page has
the board: when its stream ends, because the page was closed, everything on the stage is ended, too.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from harness.limits import BOARD_BODY_BYTES
from harness.live.director import Director, menus
from harness.records import Verdict
from harness.report.page import Page, render
from harness.workshop import Workshop

HOST = "127.0.0.1"


class Hub:
    """The newest view, and whoever waits for it. Used in the server's loop only."""

    def __init__(self) -> None:
        self.view: dict[str, Any] = {"on": False, "message": ""}
        self.page = 0  # the number of the page that has the board
        self.closed = False
        self._news = asyncio.Event()

    def publish(self, view: dict[str, Any]) -> None:
        """Show a view to the page."""
        self.view = view
        self._wake()

    def take_over(self) -> int:
        """Give the board to a new page; return its number."""
        self.page += 1
        self._wake()
        return self.page

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        self._wake()

    async def news(self) -> None:
        """Wait until something is new."""
        await self._news.wait()

    def _wake(self) -> None:
        old, self._news = self._news, asyncio.Event()
        old.set()


class Board:
    """The application: its pages, its guard, and its director."""

    def __init__(self, workshop: Workshop, impls: tuple[str, ...], port: int) -> None:
        self.token = secrets.token_urlsafe(16)
        self.url = f"http://{HOST}:{port}/{self.token}/"
        self.hub = Hub()
        self._workshop, self._impls = workshop, impls
        self._director: Director | None = None
        routes = [
            Route(f"/{self.token}/", self._page),
            Route(f"/{self.token}/events", self._events),
            Route(f"/{self.token}/do", self._do, methods=["POST"]),
        ]
        self.app = _Guard(Starlette(routes=routes, lifespan=self._lifespan), port)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def publish(view: dict[str, Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.hub.publish, view)

        self._director = Director(self._workshop, publish, self._impls)
        try:
            yield
        finally:
            await asyncio.to_thread(self._director.close)

    async def _page(self, request: Request) -> HTMLResponse:
        lead = "Real clients on a real database. Step them, freeze them, kill them, and see what is left."
        page = Page("The live board", lead, Verdict.PASS, "", "", (), live=menus(self._impls))
        headers = {
            "Cache-Control": "no-store",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
        }
        return HTMLResponse(await asyncio.to_thread(render, page), headers=headers)

    async def _do(self, request: Request) -> JSONResponse | PlainTextResponse:
        body = await _body(request)
        try:
            command = json.loads(body) if body is not None else None
        except ValueError:
            command = None
        if not isinstance(command, dict):
            return PlainTextResponse("not a command", 400)
        assert self._director is not None
        if not self._director.ask(command or {"action": "view"}):
            return PlainTextResponse("too many commands at once", 429)
        return JSONResponse({"asked": True})

    async def _events(self, request: Request) -> StreamingResponse:
        number = self.hub.take_over()
        assert self._director is not None
        self._director.ask({"action": "stop"})  # a page begins with an empty stage
        return StreamingResponse(
            self._stream(number),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store"},
        )

    async def _stream(self, number: int) -> AsyncIterator[str]:
        sent: dict[str, Any] | None = None
        try:
            while not self.hub.closed and self.hub.page == number:
                if self.hub.view is not sent:
                    sent = self.hub.view
                    yield f"data: {json.dumps(sent, separators=(',', ':'))}\n\n"
                else:
                    await self.hub.news()
            yield "event: gone\ndata: {}\n\n"
        finally:
            if self.hub.page == number and self._director is not None:
                self._director.ask({"action": "stop"})


class _Guard:
    """Lets through only requests to this host and port that come from this origin, or from none."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (problem := self._problem(scope)):
            await PlainTextResponse(problem, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return "this board answers to its own address only"
        if origin is not None and origin != f"http://{host}":
            return "this board answers to its own page only"
        if scope["method"] == "POST" and origin is None:
            return "a command has to say which page it comes from"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "this board answers to its own page only"
        return ""


async def _body(request: Request) -> bytes | None:
    """Return the request's body, or None when it is longer than any command."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BOARD_BODY_BYTES:
            return None
    return body


class BoardServer(uvicorn.Server):
    """A server whose open streams end when it is asked to stop."""

    def __init__(self, board: Board) -> None:
        super().__init__(
            uvicorn.Config(
                board.app, log_level="error", access_log=False, timeout_graceful_shutdown=5,
                server_header=False,
            )
        )  # fmt: skip
        self._board = board

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take Ctrl-C or SIGTERM: end the streams, so that the server can end."""
        self._board.hub.close()
        super().handle_exit(sig, frame)


def listen(port: int) -> socket.socket:
    """Open the listening socket on loopback; port 0 takes a free one.

    Raises:
        OSError: If the port is taken.
    """
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((HOST, port))
        opened.listen()  # whoever comes before the server runs waits, and is not refused
    except OSError:
        opened.close()
        raise
    return opened
