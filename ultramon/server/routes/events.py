"""Routes of the event log: pages, and a stream that resumes where it broke off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import ConfigDict

from ultramon.server.http.authorization import AdminCaller, Served
from ultramon.server.http.error_responses import Json
from ultramon.server.http.responses import problems
from ultramon.server.http.streams import (
    MAX_CHUNK_BYTES,
    MAX_CHUNK_EVENTS,
    EventStream,
    StreamSlot,
    server_sent_events,
)
from ultramon.state.events import Event
from ultramon.state.models import Model
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend

router = APIRouter(tags=["events"])

# 18 digits fit the whole numbers of 64 bits that both stores count with.
CURSOR_PATTERN = "^[0-9]{1,18}(:[0-9]{1,18})?$"
MAX_EVENTS = 1_000

After = Annotated[
    str | None,
    Query(
        pattern=CURSOR_PATTERN,
        description="A cursor: return what follows it. None = from the beginning.",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(
        pattern=CURSOR_PATTERN, description="The last id received; takes precedence over `after`."
    ),
]


class StoredEvent(Event):
    """An event of the log; its type decides which further fields it has."""

    model_config = ConfigDict(extra="allow")


class EventList(Model):
    """A page of the event log."""

    events: list[StoredEvent]
    cursor: str
    """Continue from here; unchanged when nothing is new."""


def known_cursor(
    services: Served, caller: AdminCaller, after: After = None, last_event_id: LastEventId = None
) -> str | None:
    """Return the start of a stream; an unknown cursor is refused before the stream begins."""
    cursor = last_event_id or after
    # A stream that has begun cannot answer with an error any more.
    if cursor is not None:
        services.backend.events(cursor, 1)
    return cursor


@router.get("/events", response_model=EventList, responses=problems(422))
def list_events(
    services: Served,
    caller: AdminCaller,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 500,
) -> Json:
    """Return events in the order in which they were stored."""
    page = services.backend.events(after, limit)
    return Json({"events": page.events, "cursor": page.cursor})


@router.get("/events/stream", response_class=EventStream, responses=problems(422, stream=True))
async def stream_events(
    *,
    request: Request,
    services: Served,
    caller: AdminCaller,
    slot: StreamSlot,
    cursor: Annotated[str | None, Depends(known_cursor)],
) -> EventStream:
    """Send the stored events as server-sent events, then each new one as it is stored.

    The id of each is a cursor: a client that reconnects with `Last-Event-ID` misses none and gets
    none twice, even after a restart of the server.
    """
    return server_sent_events(request, reader_of(services.backend, cursor))


def reader_of(backend: Backend, cursor: str | None) -> Callable[[], list[tuple[str, str]]]:
    """Return a function that returns the next events, each with the cursor that follows it.

    Args:
        backend: Holds the log.
        cursor: Where to begin; None = at the beginning.
    """

    def read() -> list[tuple[str, str]]:
        nonlocal cursor
        page = backend.events(cursor, MAX_CHUNK_EVENTS)
        # A row that cannot be read yields no event, and the cursor moves past it.
        found, cursor, size = [], page.cursor, 0
        for event, after in zip(page.events, page.cursors, strict=True):
            found.append((after, compact_json.dumps(event)))
            size += len(found[-1][1])
            # A chunk waits in memory for its reader, so events are counted in bytes too.
            if size >= MAX_CHUNK_BYTES:
                cursor = after
                break
        return found

    return read
