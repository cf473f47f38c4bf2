"""The wire between a client and the server: hold a client at an exact boundary, then let go.

A `Proxy` is one event loop in one thread before one server. A `Lane` is its listener for one client
process; its stop is armed before the client starts.

    with Proxy(upstream, xact_status) as proxy, proxy.lane(stop=Stop(point="audit")) as lane:
        ...start a client that connects to lane.host, lane.port...
        hold = lane.wait_hold()
        ...kill it...
        lane.cut()

Behind these two: `session.py` is the gate of one connection (which message may pass, what is a
boundary), `link.py` its two sockets, `wire.py` the bytes. The proxy knows sockets and messages, not
judgement: it reports what it saw.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from harness.gate.lane import Lane, ProxyError
from harness.records import Stop, Upstream

__all__ = ["Lane", "Proxy", "ProxyError"]

T = TypeVar("T")


class Proxy:
    """One event loop in one thread, the lanes in it, and one server behind it."""

    def __init__(self, upstream: Upstream, xact_status: Callable[[int], str | None]) -> None:
        """Start the thread.

        Args:
            upstream: Where the server listens.
            xact_status: Tells `pg_xact_status` of a transaction. It is called in the proxy's
                thread and may block for well under a millisecond.
        """
        self.upstream = upstream
        self.xact_status = xact_status
        self.loop = asyncio.new_event_loop()
        self.failure = ""  # the first unexpected error in the loop
        self._lanes: list[Lane] = []
        self.loop.set_exception_handler(self._loop_failed)
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._thread.start()

    def lane(self, *, stop: Stop | None = None, delay_s: float = 0.0) -> Lane:
        """Open a listener for one client process, with the fault armed already.

        Args:
            stop: Where to hold the client; None to let it run.
            delay_s: Seconds that every unit is kept before it is forwarded: a slow network.

        Raises:
            ValueError: If the stop could never be reached.
        """
        lane = Lane(self, stop, delay_s)
        self._lanes.append(lane)
        return lane

    def close(self) -> None:
        """Close every lane and end the thread. Closing twice is allowed."""
        if self.loop.is_closed():
            return
        try:
            for lane in self._lanes.copy():
                lane.close()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the lanes ----------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result.

        Raises:
            ProxyError: If something in the loop broke, now or earlier, the proxy is closed, or this
                is the loop's own thread, which would wait for itself for ever.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise ProxyError("the proxy's own thread cannot wait for the proxy")
        if self.loop.is_closed():
            work.close()
            raise ProxyError("the proxy is closed")
        result = asyncio.run_coroutine_threadsafe(work, self.loop).result()
        if self.failure:
            raise ProxyError(self.failure)
        return result

    def forget(self, lane: Lane) -> None:
        """Drop a lane that was closed."""
        if lane in self._lanes:
            self._lanes.remove(lane)

    def _loop_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Keep the first unexpected error and end all: a proxy that goes on would report fiction."""
        error = context.get("exception")
        self.failure = self.failure or f"{context['message']}: {error!r}"
        for lane in self._lanes.copy():
            lane.break_off()
