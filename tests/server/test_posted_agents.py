"""Agents whose readings others post: several at once, their end, their handoff documents."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ultramon.backends.local.backend import LocalBackend
from ultramon.context.gauge import known_tokens
from ultramon.errors import AgentNotFoundError, ConfigurationError
from ultramon.notices.registration import StoredRegistration
from ultramon.server.posted_agents import HANDOFF_PATH, MEMORY, PostedAgents
from ultramon.state.events import parse_event
from ultramon.testing import FakeClock
from ultramon.testing.contract.states import start

AGENT = "scout"
OTHERS = [f"other-{number}" for number in range(8)]
TIMEOUT_SECONDS = 30


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def posted(store, clock):
    posted = PostedAgents(store)
    posted.start(AGENT, clock.now())
    return posted


class GatedBackend(LocalBackend):
    """Stores the states of one agent only when it is let through, as a slow disk would."""

    def __init__(self, directory):
        super().__init__(directory)
        self.arrived, self.open = threading.Event(), threading.Event()

    def record(self, record, events, *, durable):
        if record.agent_id == AGENT:
            self.arrived.set()
            assert self.open.wait(TIMEOUT_SECONDS)
        return super().record(record, events, durable=durable)


def test_agents_do_not_wait_for_each_other(tmp_path, clock):
    """While one agent's post is on its way to the disk, those of others are taken."""
    with (
        closing(GatedBackend(str(tmp_path / "gated"))) as backend,
        ThreadPoolExecutor(len(OTHERS) + 1) as pool,
    ):
        posted = PostedAgents(backend)
        for name in (AGENT, *OTHERS):
            posted.start(name, clock.now())
        taken = threading.Event()

        def post(name):
            answer = posted.report_usage(name, clock.now(), used_percentage=50)
            if name != AGENT:
                taken.set()
            return answer["status"]

        slow = pool.submit(post, AGENT)
        try:
            assert backend.arrived.wait(TIMEOUT_SECONDS)
            # Two agents in 64 may share a lock: nearly none of these is behind the slow one.
            others = [pool.submit(post, name) for name in OTHERS]
            assert taken.wait(TIMEOUT_SECONDS)
            assert not slow.done()
        finally:
            backend.open.set()
        for one in (slow, *others):
            assert one.result(TIMEOUT_SECONDS) == "not_registered"


def test_posts_of_one_agent_at_once_are_taken_one_by_one(posted, store, clock):
    """Whatever their order, the newest stands in the end, and each that was taken was stored."""
    first_seq = store.load(AGENT).record.seq

    def post(number):
        answer = posted.report_usage(
            AGENT, clock.now(), used_percentage=number, emitted_at=clock.now() + number
        )
        return answer["status"]

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(post, range(1, 41)))
    record = store.load(AGENT).record
    assert record.extra[MEMORY]["usedPercentage"] == 40
    assert set(statuses) <= {"not_registered", "stale_sample"}
    assert record.seq - first_seq == statuses.count("not_registered")


def test_a_start_amid_posts_hurts_none(posted, store, clock):
    """Who posts meanwhile writes under the one generation or the other, and never a stale state."""

    def post(number):
        return posted.report_usage(AGENT, clock.now(), used_percentage=number)["status"]

    with ThreadPoolExecutor(4) as pool:
        posts = pool.map(post, range(1, 41))
        starts = [pool.submit(posted.start, AGENT, clock.now()) for _ in range(5)]
        assert set(posts) == {"not_registered"}
        for one in starts:
            one.result()
    assert store.load(AGENT).record.generation == 6


def test_a_percentage_alone_leaves_tokens_and_limit_unknown(posted, store, clock):
    """The ratio is as posted and has a level; a window is known only once tokens came with it."""
    store.registry.register(
        StoredRegistration(AGENT, "boss", "explicit", None, "boss", clock.now())
    )
    posted.report_usage(AGENT, clock.now(), used_percentage=71.5)
    record = store.load(AGENT).record
    assert (record.usage_ratio, record.threshold_status) == (0.715, "warning")
    assert (record.context_limit, record.limit_source, known_tokens(record)) == (
        None, "unknown", None,
    )  # fmt: skip
    event = parse_event(store.events().events[-1])
    assert (event.level, event.usage_ratio, event.tokens, event.context_limit) == (
        "warning", 0.715, None, None,
    )  # fmt: skip
    (notice,) = store.queue.peek("boss", now=clock.now())
    assert " is at 71% (warning, 70 % and more), reported " in notice.text
    assert (notice.facts["tokens"], notice.facts["contextLimit"]) == (None, None)
    posted.report_usage(AGENT, clock.now(), used_percentage=50)
    assert store.load(AGENT).record.threshold_status == "normal"
    posted.report_usage(AGENT, clock.now(), used_percentage=75, total_input_tokens=150_000)
    posted.report_usage(AGENT, clock.now(), used_percentage=76)
    record = store.load(AGENT).record
    assert (known_tokens(record), record.context_limit) == (152_000, 200_000)


def test_nothing_in_the_window_is_a_reading_too(posted, store, clock):
    """A posted 0 % is known, with a window and without; nothing posted is not."""
    assert store.load(AGENT).record.usage_ratio is None
    posted.report_usage(AGENT, clock.now(), used_percentage=0)
    record = store.load(AGENT).record
    assert (record.usage_ratio, record.threshold_status) == (0.0, "normal")
    posted.report_usage(AGENT, clock.now(), used_percentage=75, total_input_tokens=150_000)
    posted.report_usage(AGENT, clock.now(), used_percentage=0)
    record = store.load(AGENT).record
    assert (record.usage_ratio, record.threshold_status, known_tokens(record)) == (0.0, "normal", 0)


def test_an_agent_ends_once(posted, store, clock):
    """The end is an event; what is posted later is not taken; another start is another life."""
    posted.report_usage(AGENT, clock.now(), used_percentage=38)
    assert posted.finish(AGENT, "returned", clock.now())
    ended = store.load(AGENT).record
    assert (ended.active, ended.outcome, ended.usage_ratio) == (False, "returned", 0.38)
    assert store.events().events[-1]["type"] == "agent_stopped"
    assert store.events().events[-1]["outcome"] == "returned"
    assert not posted.finish(AGENT, "failed", clock.now())
    stopped = {"status": "stopped"}
    assert posted.report_usage(AGENT, clock.now(), used_percentage=90) == stopped
    assert posted.report_event(AGENT, "compaction", clock.now()) == stopped
    assert posted.note_handoff(AGENT, "/handoff.md", clock.now()) == stopped
    assert store.load(AGENT).record.to_json() == ended.to_json()
    posted.start(AGENT, clock.now())
    assert store.load(AGENT).record.active
    assert posted.report_usage(AGENT, clock.now(), used_percentage=5)["status"] == "not_registered"


def test_an_end_cancels_the_levels_that_nobody_received(posted, store, clock):
    """Who was to hear that it fills hears that it ended; back again, it is announced again."""
    store.registry.register(
        StoredRegistration(AGENT, "boss", "explicit", None, "boss", clock.now())
    )

    def kinds():
        return [one.facts["kind"] for one in store.queue.peek("boss", now=clock.now())]

    posted.report_usage(AGENT, clock.now(), used_percentage=90)
    assert kinds() == ["level"]
    posted.finish(AGENT, "completed", clock.now())
    assert kinds() == ["ended"]
    posted.start(AGENT, clock.now())
    assert kinds() == ["ended", "level"]


def test_an_end_that_cannot_be(posted, store, clock):
    """An unknown outcome, an unknown agent, and one that ends itself."""
    own = start(store, "own")
    with pytest.raises(ConfigurationError, match="one of completed, returned"):
        posted.finish(AGENT, "bored", clock.now())
    with pytest.raises(AgentNotFoundError):
        posted.finish("nobody", "completed", clock.now())
    with pytest.raises(ConfigurationError, match="this one ends itself"):
        posted.finish("own", "completed", clock.now())
    assert store.load("own").record.to_json() == own.to_json()
    assert store.load(AGENT).record.active


def test_a_handoff_document_is_noted(posted, store, clock):
    """It outlives a compaction and a clear, and the same again is not stored again."""
    for _ in range(2):
        status = posted.note_handoff(AGENT, "/srv/handoff.md", clock.now())
        assert status == {"status": "handoff_noted"}
    seq = store.load(AGENT).record.seq
    assert posted.note_handoff(AGENT, "/srv/handoff.md", clock.now())
    assert store.load(AGENT).record.seq == seq
    for event in ("compaction", "context_reset"):
        posted.report_event(AGENT, event, clock.now())
    answer = posted.report_event(AGENT, "compaction_complete", clock.now())
    assert answer["last_handoff_path"] == "/srv/handoff.md"
    posted.note_handoff(AGENT, "C:\\work\\handoff.md", clock.now())
    posted.note_handoff(AGENT, None, clock.now())
    assert store.load(AGENT).record.extra[MEMORY][HANDOFF_PATH] is None


@pytest.mark.parametrize("path", ["", "handoff.md", "/a\nb", "/a\x1b[2J", "/" + "a" * 4096])
def test_a_path_that_is_none_is_refused(posted, store, clock, path):
    """It is shown to people and opened by a successor: absolute, bounded, printable."""
    before = store.load(AGENT).record.to_json()
    with pytest.raises(ConfigurationError, match="an absolute path"):
        posted.note_handoff(AGENT, path, clock.now())
    assert store.load(AGENT).record.to_json() == before


def test_levels_of_all_decide_posted_readings(store, clock, monkeypatch):
    """A poster names no ladder, so `[levels]` holds where it is set."""
    monkeypatch.setenv("ULTRAMON_LEVELS", "50,60")
    posted = PostedAgents(store)
    posted.start(AGENT, clock.now())
    levels = []
    for percentage in (49.0, 50.0, 61.0):
        posted.report_usage(AGENT, clock.advance(1) or clock.now(), used_percentage=percentage)
        levels.append(store.load(AGENT).record.threshold_status)
    assert levels == ["normal", "warning", "critical"]
