"""Requests that last: long polls and server-sent events.

They end when the server stops, when whoever asked has left, and when its token is no longer good.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, TypeVar

from fastapi import Depends, HTTPException, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from ultramon.backends.queue import queue_of
from ultramon.errors import StateError
from ultramon.server.caller import Caller
from ultramon.server.http.authentication import credentials_in, identify, unauthorized
from ultramon.server.http.authorization import AnyCaller, Served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ultramon.server.services import Services

    Found = TypeVar("Found")

_log = logging.getLogger("ultramon.server")

READ_ANYWAY_SECONDS = 1.0
"""What is due again changes no file, and two writes in one tick of its clock leave one mark."""
RETRY_MILLISECONDS = 1_000
MAX_CHUNK_BYTES = 256 * 1024
MAX_CHUNK_EVENTS = 100


async def check_still(request: Request, services: Services, caller: Caller) -> None:
    """Make sure that the token of a request that lasts is still good.

    Raises:
        HTTPException: 401, it is revoked, expired, or of an agent that ended or was taken over.
    """
    if await identify(services, credentials_in(request.scope), request.url.path) != caller:
        raise unauthorized()


async def _stream_slot(services: Served, caller: AnyCaller) -> AsyncIterator[None]:
    with services.streams.open.one(caller):
        yield


StreamSlot = Annotated[None, Depends(_stream_slot)]
"""Held as long as the answer lasts."""


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


def server_sent(
    request: Request,
    services: Services,
    caller: Caller,
    read: Callable[[], list[tuple[str, str]]],
) -> EventStream:
    """Answer with what is there, then with what comes, and a comment line every 15 s.

    A chunk is made when the one before it has left: a slow reader makes nothing grow. Where the
    store refuses the stream ends, and whoever reads it comes again with the last id that it saw.

    Args:
        request: Whose token is looked at again with every beat.
        services: The parts of the server.
        caller: Who calls.
        read: Returns the next events as (id, JSON), oldest first; none when there are none yet.
    """
    chunks = _chunks(request, services, caller, read)
    # A proxy that collects what passes would hold events back.
    return EventStream(chunks, headers={"X-Accel-Buffering": "no"})


async def _chunks(
    request: Request,
    services: Services,
    caller: Caller,
    read: Callable[[], list[tuple[str, str]]],
) -> AsyncIterator[bytes]:
    streams = services.streams
    yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
    beaten_at = time.monotonic()
    try:
        while not services.stopping.is_set():
            mark, found = await streams.look(services.backend, read)
            if found:
                yield b"".join(format_sse_event(data_str=data, id=name) for name, data in found)
            if time.monotonic() - beaten_at >= streams.beat_seconds:
                await check_still(request, services, caller)
                yield b":\n\n"
                beaten_at = time.monotonic()
            if not found:
                left = beaten_at + streams.beat_seconds - time.monotonic()
                seconds = min(READ_ANYWAY_SECONDS, left)
                await streams.wait(services.backend, mark, seconds, services.stopping)
    except StateError as error:
        _log.warning("a stream of %s ends: %s", caller.agent_id or caller.kind, error)
    except HTTPException:
        _log.info("a stream of %s ends: its token is no longer good", caller.agent_id)


async def poll(
    request: Request,
    services: Services,
    caller: Caller,
    wait_seconds: float,
    read: Callable[[], list[Found]],
    *,
    recipient: str,
) -> list[Found]:
    """Read, at once and then whenever something may have come, until something is found.

    Args:
        request: Nothing is read for one whose sender has left.
        services: The parts of the server.
        caller: Who calls; its token is looked at before each further reading.
        wait_seconds: How long at most; 0 = read once.
        read: Returns what there is.
        recipient: Whose messages are read.

    Raises:
        HTTPException: 429, too many wait already; 401, the token is no longer good.
    """
    streams = services.streams
    until = time.monotonic() + wait_seconds
    with ExitStack() as held:
        heard = None
        if wait_seconds:
            held.enter_context(streams.polls.one(caller))
            queue = queue_of(services.backend)
            heard = held.enter_context(streams.hearing(queue, recipient))
        while not await request.is_disconnected():
            if heard is not None:
                heard.clear()
            mark, found = await streams.look(services.backend, read)
            left = until - time.monotonic()
            if found or left <= 0 or services.stopping.is_set():
                return found
            seconds = min(READ_ANYWAY_SECONDS, left)
            await streams.wait(services.backend, mark, seconds, services.stopping, heard)
            await check_still(request, services, caller)
    return []
