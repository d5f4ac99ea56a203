"""The present content of views, drawn once for all browsers that show the same."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

import anyio
from fastapi.sse import format_sse_event

from ultramon.errors import AgentNotFoundError, InvalidAgentIdError, StateError
from ultramon.pictures.elements import Element, element, to_html
from ultramon.system.wording import field
from ultramon.web.pages.layout import live_content

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ultramon.web.views import Readers, View

DRAW_SECONDS = 1.0
"""How old the content of a page may be."""
BEAT_SECONDS = 5.0
"""Content that does not change is sent again after so long, so that a page knows it is live."""
BUSY_SHARE = 0.1
"""Of a core that one view takes at most: one that takes longer to draw is drawn less often."""
MOST_SECONDS = 10.0
"""But at least so often: after 20 s without news a page says that nothing comes any more."""
# Addresses are a browser's to choose, so views that are kept need a bound.
MAX_DRAWN = 64
_THREADS = 4
# A stopping server waits for its open pages, so each of them asks this often.
_CHECK_SECONDS = 0.1
_log = logging.getLogger("ultramon.web")


class Shot(NamedTuple):
    """What a view showed at one moment."""

    number: int
    """Rises with each content that is sent."""
    content: Element
    message: bytes
    """The content as a server-sent event."""
    status: int


class _Drawn:
    """One view, and what it showed last."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.next_at = 0.0
        self.beat_at = 0.0
        self.number = 0
        self.html = ""
        self.shown: Element | None = None
        self.read_at = 0.0
        self.problem: str | None = None
        self.status = 200
        self.shot: Shot | None = None


class Live:
    """Draws views. Used on one event loop.

    Args:
        readers: Read the store.
        is_stopping: Whether the server ends.
    """

    def __init__(self, readers: Readers, is_stopping: Callable[[], bool]) -> None:
        self._readers = readers
        self._is_stopping = is_stopping
        self._drawn: dict[View, _Drawn] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def shot(self, view: View) -> Shot:
        """Return what a view shows now, or showed a moment ago."""
        drawn = self._drawn.pop(view, None) or _Drawn()
        self._drawn[view] = drawn  # the least recently used one is first
        if len(self._drawn) > MAX_DRAWN:
            del self._drawn[next(iter(self._drawn))]
        # Browsers that open the same view at once wait for one drawing of it.
        async with drawn.lock:
            now = time.monotonic()
            if drawn.shot is None or now >= drawn.next_at:
                drawn.shot = await anyio.to_thread.run_sync(
                    self._draw, view, drawn, limiter=self._threads
                )
            return drawn.shot

    def _draw(self, view: View, drawn: _Drawn) -> Shot:
        before = drawn.html, drawn.problem
        # By processor time: on a busy machine the clock would slow down pages that cost nothing.
        began, cpu_began = time.monotonic(), time.thread_time()
        try:
            drawn.shown, drawn.status = view.draw(self._readers), 200
            drawn.read_at, drawn.problem = self._readers.clock.now(), None
            drawn.html = to_html(drawn.shown)
        except (AgentNotFoundError, InvalidAgentIdError) as error:
            drawn.shown, drawn.status = element("h1", field(str(error))), 404
            drawn.read_at, drawn.problem = self._readers.clock.now(), None
            drawn.html = to_html(drawn.shown)
        except StateError as error:
            # A page is drawn each second, so a refusal is logged once until the store answers
            # again.
            if drawn.problem is None:
                _log.warning("the store does not answer: %s", error)
            # The last content stays on the page, below the problem and with its own time.
            drawn.problem = str(error)
        now, took = time.monotonic(), time.thread_time() - cpu_began
        drawn.next_at = began + min(max(DRAW_SECONDS, took / BUSY_SHARE), MOST_SECONDS)
        is_same = before == (drawn.html, drawn.problem) and drawn.shot is not None
        # Content that is the same is still sent now and then, so that the page does not call itself
        # silent.
        if drawn.shot is not None and is_same and now - drawn.beat_at < BEAT_SECONDS:
            return drawn.shot
        drawn.beat_at = now
        drawn.number += 1
        content = live_content(drawn.shown, drawn.number, drawn.read_at, drawn.problem)
        return Shot(
            drawn.number, content, format_sse_event(data_str=to_html(content)), drawn.status
        )

    async def follow(self, view: View, is_logged_in: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield what a view shows, now and whenever it changes, as server-sent events.

        The next one is drawn when the one before was sent, so that a slow reader makes no buffer
        grow.

        Args:
            view: The view.
            is_logged_in: Whether the login of the reader is still open.
        """
        number = 0
        # Asked before each message: a login that has ended must not keep its open pages alive.
        while is_logged_in() and not self._is_stopping():
            shot = await self.shot(view)
            if shot.number != number:
                number = shot.number
                yield shot.message
            await self._wait(DRAW_SECONDS)

    async def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_stopping() and (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(_CHECK_SECONDS, left))
