"""Events over HTTP: by pages, and as streams that continue where they broke off."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.running_server import TIMEOUT_SECONDS, ServeProgram, Serving

from ultramon.backends.memory import MemoryBackend
from ultramon.server.http.streams import MAX_CHUNK_BYTES, MAX_CHUNK_EVENTS
from ultramon.server.routes.events import reader_of
from ultramon.server.stream_slots import MAX_STREAMS_OF_ONE

LAST = "Last-Event-ID"


def event(number, **more):
    return {
        "eventId": f"event-{number}",
        "type": "agent_started",
        "agentId": "a",
        "sessionId": "a",
        "run": "default",
        "generation": 1,
        "epoch": 1,
        "source": "agent:a",
        "occurredAt": "2026-11-21T20:28:51.000Z",
        "n": number,
        **more,
    }


def store(serving, *numbers):
    serving.backend.append_events([event(number) for number in numbers])


@pytest.fixture
def serving(shared_store):
    with Serving() as serving:
        yield serving


class Reading:
    """A stream of server-sent events within a ``with`` block, read one after the other."""

    def __init__(self, client, path, **headers):
        self._opening = client.stream("GET", path, headers=headers)

    def __enter__(self):
        self.answer = self._opening.__enter__()
        assert self.answer.status_code == 200
        assert self.answer.headers["Content-Type"].startswith("text/event-stream")
        self._lines = self.answer.iter_lines()
        assert next(self._lines) == "retry: 1000"
        assert next(self._lines) == ""
        return self

    def __exit__(self, *error):
        return self._opening.__exit__(*error)

    def __iter__(self):
        """Yield (id, value) of events, (None, None) for a comment; ends with the stream."""
        fields = {}
        for line in self._lines:
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.strip()
                continue
            value = json.loads(fields["data"]) if "data" in fields else None
            yield fields.get("id"), value
            fields = {}

    def take(self, count):
        found = iter(self)
        return [next(found) for _ in range(count)]


def numbers(read):
    return [value["n"] for _, value in read]


def until(holds):
    """Return once a condition holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


def test_pages_follow_each_other(serving):
    """The cursor of a page begins the next; at the end it stays."""
    store(serving, *range(5))
    seen, cursor = [], None
    while True:
        params = {"limit": 2, **({"after": cursor} if cursor else {})}
        page = serving.admin.get("/events", params=params).json()
        if not page["events"]:
            break
        seen += [one["n"] for one in page["events"]]
        cursor = page["cursor"]
    assert seen == [0, 1, 2, 3, 4]
    assert page["cursor"] == cursor


@pytest.mark.parametrize("cursor", ["x", "-1", "1.0", "٣", "1" * 19, "1:2:3", " 1"])
def test_what_is_no_cursor_is_refused(serving, cursor):
    """As a parameter and as the id that came last."""
    for path in ("/events", "/events/stream"):
        assert serving.admin.get(path, params={"after": cursor}).status_code == 422
    raw = {LAST: cursor.strip().encode() or b"x"}
    if cursor != " 1":
        assert serving.admin.get("/events/stream", headers=raw).status_code == 422


def test_a_stream_sends_what_was_stored_and_what_comes(serving):
    """Each event once, with the cursor behind it as its id."""
    store(serving, 1, 2)
    with Reading(serving.admin, "/events/stream") as reading:
        before = reading.take(2)
        store(serving, 3)
        after = reading.take(1)
    assert numbers(before + after) == [1, 2, 3]
    behind = {"after": before[0][0]}
    assert [one["n"] for one in serving.admin.get("/events", params=behind).json()["events"]] == [
        2,
        3,
    ]
    with Reading(serving.admin, f"/events/stream?after={before[1][0]}") as reading:
        assert numbers(reading.take(1)) == [3]
    headers = {LAST: after[0][0]}
    with Reading(serving.admin, "/events/stream?after=0", **headers) as reading:
        store(serving, 4)
        assert numbers(reading.take(1)) == [4]


def test_a_stream_goes_on_after_a_restart_of_the_server(serving):
    """It ends cleanly when the server stops; with the last id nothing is lost or comes again."""
    store(serving, *range(10))
    with Reading(serving.admin, "/events/stream") as reading:
        first = reading.take(4)
        serving.stop()
        first += list(reading)  # what was under way, then the end, and no broken connection
    assert numbers(first) == list(range(10))
    store(serving, *range(10, 15))
    with (
        Serving() as another,
        Reading(another.admin, "/events/stream", **{LAST: first[3][0]}) as reading,
    ):
        store(another, 15)
        assert numbers(reading.take(12)) == list(range(4, 16))


def test_a_stream_goes_on_after_the_server_was_killed(tmp_path):
    """Also kill -9 loses nothing that was stored: the id that came last is enough."""
    state = tmp_path / "state"
    made = [{"agentId": f"a{number}"} for number in range(4)]
    with ServeProgram(state=state) as program:
        for agent in made[:3]:
            program.admin.post("/agents", json=agent)
        with Reading(program.admin, "/events/stream") as reading:
            (last, first), *_ = reading.take(2)
            program.process.kill()
        program.process.wait()
    with ServeProgram(state=state) as program:
        program.admin.post("/agents", json=made[3])
        with Reading(program.admin, "/events/stream", **{LAST: last}) as reading:
            rest = [value["agentId"] for _, value in reading.take(3)]
    assert [first["agentId"], *rest] == ["a0", "a1", "a2", "a3"]


def test_a_quiet_stream_says_that_it_lives(serving):
    """Comment lines come, which no reader takes for an event."""
    serving.services.streams.beat_seconds = 0.01
    with Reading(serving.admin, "/events/stream") as reading:
        assert reading.take(3) == [(None, None)] * 3
        store(serving, 1)
        assert next(value["n"] for name, value in reading if name is not None) == 1


def test_a_stream_ends_with_its_token(serving):
    """It is looked at again without an event or a beat."""
    _, boss = serving.make_agent("boss")
    with Reading(boss, "/agents/boss/messages/stream") as reading:
        serving.admin.delete("/agents/boss/tokens")
        assert [value for _, value in reading if value is not None] == []


def test_messages_come_as_a_stream(serving):
    """Their numbers are the ids; nothing is claimed by looking."""
    _, boss = serving.make_agent("boss")
    path = "/agents/boss/messages/stream"

    def send(text):
        serving.admin.post("/agents/boss/messages", json={"text": text})

    send("a")
    with Reading(boss, path) as reading:
        send("b")
        seen = reading.take(2)
    assert [value["text"] for _, value in seen] == ["a", "b"]
    assert [int(name) for name, _ in seen] == [value["messageId"] for _, value in seen]
    send("c\nid: 9")
    with Reading(boss, path, **{LAST: seen[0][0]}) as reading:
        assert [value["text"] for _, value in reading.take(2)] == ["b", "c\nid: 9"]
    waiting = boss.get("/agents/boss/messages").json()["messages"]
    assert [(one["text"], one["attempts"]) for one in waiting] == [
        ("a", 0),
        ("b", 0),
        ("c\nid: 9", 0),
    ]


def test_one_caller_has_so_many_streams(serving):
    """One more is a 429; one that was closed makes room, and others have room of their own."""
    _, boss = serving.make_agent("boss")
    path = "/agents/boss/messages/stream"
    readings = [Reading(boss, path) for _ in range(MAX_STREAMS_OF_ONE)]
    for reading in readings:
        reading.__enter__()
    try:
        refused = boss.get(path)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        with Reading(serving.admin, path):
            pass
        readings.pop().__exit__(None, None, None)
        until(lambda: len(serving.services.streams.open) == len(readings))
        with Reading(boss, path):
            pass
    finally:
        for reading in readings:
            reading.__exit__(None, None, None)
    until(lambda: len(serving.services.streams.open) == 0)


def test_many_streams_read_the_same(serving):
    """Readers beside each other each get everything, in the same order."""
    store(serving, *range(20))

    def read(_):
        with Reading(serving.admin, "/events/stream") as reading:
            return numbers(reading.take(30))

    with ThreadPoolExecutor(4) as pool:
        reading = pool.map(read, range(4))
        store(serving, *range(20, 30))
        assert list(reading) == [list(range(30))] * 4


def test_a_stream_holds_little_of_the_log_at_a_time():
    """A chunk is bounded in events and in bytes, whatever the reader takes; none is left out."""
    backend = MemoryBackend()
    read = reader_of(backend, None)
    backend.append_events([event(number) for number in range(250)])
    backend.append_events([event(number, text="x" * 100_000) for number in range(250, 260)])
    seen, chunks = [], []
    while found := read():
        chunks.append((len(found), sum(len(data) for _, data in found)))
        seen += [json.loads(data)["n"] for _, data in found]
    assert seen == list(range(260))
    assert max(count for count, _ in chunks) == MAX_CHUNK_EVENTS
    assert max(size for _, size in chunks) < MAX_CHUNK_BYTES + 101_000
