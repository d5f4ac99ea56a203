"""Long requests: long polls and server-sent events.

They end when the server stops, when the client leaves, and when its token is no longer valid.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from ultramon.errors import StateError
from ultramon.server.http.authentication import credentials_in, identify, unauthorized
from ultramon.server.http.authorization import AnyCaller, Served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ultramon.server.services import Services

    Found = TypeVar("Found")

_log = logging.getLogger("ultramon.server")

READ_ANYWAY_SECONDS = 1.0
"""A message that is due again changes no file, and two writes in one clock tick leave one mark."""
VERIFY_SECONDS = 1.0
"""The longest time that a silent stream outlives its token."""
RETRY_MILLISECONDS = 1_000
MAX_CHUNK_BYTES = 256 * 1024
MAX_CHUNK_EVENTS = 100


async def _stream_slot(services: Served, caller: AnyCaller) -> AsyncIterator[None]:
    with services.streams.open.one(caller):
        yield


StreamSlot = Annotated[None, Depends(_stream_slot)]
"""Held until the answer ends."""


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


def server_sent_events(request: Request, read: Callable[[], list[tuple[str, str]]]) -> EventStream:
    """Answer with the present events, then with new ones, and a comment line every 15 s.

    A chunk is made when the one before it was sent, so that a slow reader makes no buffer grow. The
    stream ends when the store refuses; the client reconnects with the last id that it received.

    Args:
        request: Its token is verified again before each chunk, and every second.
        read: Returns the next events as (id, JSON), oldest first; empty when there are none yet.
    """
    # A proxy that collects the body would hold events back.
    return EventStream(_chunks(request, read), headers={"X-Accel-Buffering": "no"})


async def _chunks(
    request: Request, read: Callable[[], list[tuple[str, str]]]
) -> AsyncIterator[bytes]:
    services: Services = request.app.state.services
    streams, caller = services.streams, request.state.caller
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    verified_at = beaten_at = time.monotonic()
    try:
        while not services.stopping.is_set():
            mark, found = await streams.read(read)
            # Before anything is sent: a token that was revoked gets no further event.
            if found or time.monotonic() - verified_at >= VERIFY_SECONDS:
                await _verify_again(request)
                verified_at = time.monotonic()
            if found:
                yield b"".join(format_sse_event(data_str=data, id=name) for name, data in found)
            if time.monotonic() - beaten_at >= streams.beat_seconds:
                yield b":\n\n"
                beaten_at = time.monotonic()
            if not found:
                left = beaten_at + streams.beat_seconds - time.monotonic()
                seconds = min(READ_ANYWAY_SECONDS, left)
                await streams.wait(mark, seconds)
    except StateError as error:
        _log.warning("a stream of %s ends: %s", caller.agent_id or caller.kind, error)
    except HTTPException:
        _log.info(
            "a stream of %s ends: its token is no longer valid", caller.agent_id or caller.kind
        )


async def poll(
    request: Request, wait_seconds: float, read: Callable[[], list[Found]], *, recipient: str
) -> list[Found]:
    """Read now, and again whenever something may be stored, until something is found.

    Args:
        request: Reading ends when its client has left; its token is verified before each reading
            but the first.
        wait_seconds: The longest wait; 0 = read once.
        read: Returns the present messages.
        recipient: The recipient of the messages that are read.

    Raises:
        HTTPException: 429, too many requests wait already; 401, the token is no longer valid.
    """
    services: Services = request.app.state.services
    streams = services.streams
    until = time.monotonic() + wait_seconds
    with ExitStack() as held:
        arrived = None
        if wait_seconds:
            held.enter_context(streams.polls.one(request.state.caller))
            arrived = held.enter_context(streams.arrivals(services.queue, recipient))
        while not await request.is_disconnected():
            if arrived is not None:
                arrived.clear()
            mark, found = await streams.read(read)
            left = until - time.monotonic()
            if found or left <= 0 or services.stopping.is_set():
                return found
            seconds = min(READ_ANYWAY_SECONDS, left)
            await streams.wait(mark, seconds, arrived)
            await _verify_again(request)
    return []


async def _verify_again(request: Request) -> None:
    """Verify the token of a long request.

    Raises:
        HTTPException: 401, it is revoked, expired, or of an agent that ended or was taken over.
    """
    credentials, path = credentials_in(request.scope), request.url.path
    if await identify(request.app.state.services, credentials, path) != request.state.caller:
        raise unauthorized()
