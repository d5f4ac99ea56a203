"""The event log, by pages and as a stream that goes on where it broke off."""

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
    server_sent,
)
from ultramon.state.events import Event
from ultramon.state.models import Model
from ultramon.system import compact_json

if TYPE_CHECKING:
    from ultramon.backends.base import Backend

router = APIRouter(tags=["events"])

CURSOR_PATTERN = "^[0-9]{1,18}(:[0-9]{1,18})?$"
MAX_EVENTS = 1_000

After = Annotated[
    str | None,
    Query(pattern=CURSOR_PATTERN, description="A cursor: what came behind it; none = everything."),
]
LastEventId = Annotated[
    str | None,
    Header(pattern=CURSOR_PATTERN, description="The id that came last, before `after`."),
]


class StoredEvent(Event):
    """An event as it stands in the log; the type says which further fields it has."""

    model_config = ConfigDict(extra="allow")


class EventList(Model):
    """A stretch of the event log."""

    events: list[StoredEvent]
    cursor: str
    """Continue from here; the same as before when nothing came."""


def known_cursor(
    services: Served, caller: AdminCaller, after: After = None, last_event_id: LastEventId = None
) -> str | None:
    """Return where a stream begins; refused before it has begun when the store knows none such."""
    cursor = last_event_id or after
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
    """Send events as server-sent events, those stored before first; then each as it is stored.

    The id of each is a cursor: whoever comes again with `Last-Event-ID` misses none and gets none
    twice, also when the server was restarted meanwhile.
    """
    log = EventLog(services.backend, cursor)
    return server_sent(request, services, caller, log.read)


class EventLog:
    """Reads on in the event log.

    Args:
        backend: Whose log.
        cursor: Behind what; None = the beginning.
    """

    def __init__(self, backend: Backend, cursor: str | None) -> None:
        self._backend = backend
        self._cursor = cursor

    def read(self) -> list[tuple[str, str]]:
        """Return the next events, each with the cursor behind it."""
        found: list[tuple[str, str]] = []
        size = 0
        while len(found) < MAX_CHUNK_EVENTS and size < MAX_CHUNK_BYTES:
            # One by one: a page of several has only one cursor, behind the last of them.
            page = self._backend.events(self._cursor, 1)
            is_end = page.cursor == (self._cursor or "0")
            self._cursor = page.cursor
            if is_end:
                break
            # A row that cannot be read is none, and the cursor goes on behind it.
            for event in page.events:
                found.append((page.cursor, compact_json.dumps(event)))
                size += len(found[-1][1])
        return found
