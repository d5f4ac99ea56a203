"""Conformance of backends, events, pruning, and many threads at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from ultramon.backends.base import EventPage
from ultramon.errors import AgentNotFoundError, ConfigurationError, StateWriteError
from ultramon.system.processes import this_machine
from ultramon.testing.clock import START
from ultramon.testing.contract.states import ELSEWHERE, VANISHED, held, prune, start, write
from ultramon.testing.samples import make_event, make_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

THREADS = 8
STARTED = "agent_started"


def numbers(backend: Backend, after: str | None = None, limit: int = 500) -> list[int]:
    """Return the ``n`` of the events of one page."""
    return [event["n"] for event in backend.events(after, limit).events]


def insist(action: Callable[[], Any]) -> Any:
    """Do something that a busy store may refuse for a moment."""
    for _ in range(200):
        try:
            return action()
        except StateWriteError:
            continue
    return action()


class EventContract:
    """The event log, pruning, and the same under load."""

    def test_an_empty_log_has_a_cursor(self, backend: Backend) -> None:
        """A page of nothing gives a cursor behind which the first event appears."""
        page = backend.events()
        assert page.events == []
        backend.append_events([make_event("scout-1")])
        assert numbers(backend, page.cursor) == [0]

    def test_an_event_comes_back_as_it_was(self, backend: Backend) -> None:
        """Every member of an event survives."""
        event = make_event("scout-1", note="naïve 探", handoff={"remaining": ["a"], "n": None})
        backend.append_events([event])
        assert backend.events().events == [event]

    def test_the_result_of_a_step_comes_back_as_it_was(self, backend: Backend) -> None:
        """As large as it may be, with every character that JSON has, by the events of its agent."""
        text = "\0\ud800é探"
        result = {text: [text * 1000, 10**30, 1.5, None], "": "x" * 30_000}
        step = make_event(
            "scout-1", "step_completed", item=text, step=text, result=result, n=2**48 - 1
        )
        backend.append_events([make_event("scout-2"), step])
        assert backend.committed_events(None, agent_id="scout-1").events == [step]

    def test_an_event_about_no_agent_is_stored_once_under_its_own_key(
        self, backend: Backend
    ) -> None:
        """What several agents share has a key of its own, whoever noticed it."""
        for number, key in enumerate(("plan:a:warning", "plan:a:warning", "plan:a:critical")):
            event = make_event("plan:~/.claude", "plan_threshold_reached", n=number, key=key)
            backend.append_events([event | {"run": ""}])
        assert [event["key"] for event in backend.events().events] == [
            "plan:a:warning",
            "plan:a:critical",
        ]

    def test_events_are_values(self, backend: Backend) -> None:
        """Changing an event after it was stored, or after it was read, changes no other one."""
        event = make_event("scout-1", handoff={"remaining": ["a"]})
        backend.append_events([event])
        event["handoff"]["remaining"].append("b")
        (read,) = backend.events().events
        read["handoff"]["remaining"].append("c")
        (again,) = backend.events().events
        assert again["handoff"] == {"remaining": ["a"]}

    def test_events_keep_their_order(self, backend: Backend) -> None:
        """Events come in the order they were stored, within one call and from call to call."""
        backend.append_events([make_event("scout-1", n=n) for n in (3, 1, 2)])
        backend.append_events([make_event("scout-1", n=0)])
        assert numbers(backend) == [3, 1, 2, 0]

    def test_a_cursor_never_skips_or_repeats(self, backend: Backend) -> None:
        """Reading page by page, while more is written, gives each event once."""
        backend.append_events([make_event("scout-1", n=n) for n in range(6)])
        seen: list[int] = []
        cursor = None
        for n in (6, 7, 8, 9, 10):
            page = backend.events(cursor, 2)
            seen += [event["n"] for event in page.events]
            cursor = page.cursor
            backend.append_events([make_event("scout-1", n=n)])
        assert seen == list(range(10))
        assert numbers(backend, cursor) == [10]

    def test_a_page_can_be_left_behind_any_event(self, backend: Backend) -> None:
        """Each event has the cursor behind it; the last one is the page's."""
        backend.append_events([make_event("scout-1", n=n) for n in range(4)])
        page = backend.events()
        assert page.cursors[-1] == page.cursor
        rests = [numbers(backend, cursor) for cursor in page.cursors]
        assert rests == [[1, 2, 3], [2, 3], [3], []]

    def test_committed_events_are_those_of_a_run_or_an_agent(self, backend: Backend) -> None:
        """All of them, or those behind a cursor, in the order and with the cursors of `events`."""
        of_two = [make_event(f"scout-{n % 2}", n=n, run=f"run-{n // 3}") for n in range(6)]
        backend.append_events(of_two)
        page = backend.events()
        assert backend.committed_events() == page
        behind = backend.committed_events(page.cursors[0], run="run-0", agent_id="scout-0")
        assert behind.events == [of_two[2]]
        assert behind.cursors == [behind.cursor] == [page.cursors[2]]
        assert backend.committed_events(run="run-1").events == of_two[3:]
        assert backend.committed_events(agent_id="scout-1").events == of_two[1::2]
        assert backend.committed_events(page.cursor) == EventPage([], page.cursor, [])
        with pytest.raises(ConfigurationError, match="cursor"):
            backend.committed_events("x")

    def test_events_follow_from_all_that_is_stored_about_an_agent(self, backend: Backend) -> None:
        """The function sees the agent's own events, in order; what it returns is stored, once."""
        backend.append_events([make_event(f"scout-{n % 2}", n=n) for n in range(4)])
        seen: list[list[int]] = []

        def follow(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            seen.append([event["n"] for event in events])
            return [make_event("scout-1", n=7)] if len(events) == 2 else []

        for _ in range(2):
            backend.append_following("scout-1", follow)
        assert (seen[0], seen[-1]) == ([1, 3], [1, 3, 7])
        assert numbers(backend) == [0, 1, 2, 3, 7]
        backend.append_following("unknown", lambda events: events)
        with pytest.raises(ZeroDivisionError):
            backend.append_following("scout-1", lambda events: [{}] * (1 // 0))
        assert numbers(backend) == [0, 1, 2, 3, 7]

    def test_of_many_that_follow_each_sees_those_before(self, backend: Backend) -> None:
        """Threads that count an agent's events and add one to them count without a gap."""

        def follow(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [make_event("scout-1", n=len(events))]

        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(
                lambda _: insist(lambda: backend.append_following("scout-1", follow)),
                range(THREADS),
            ):
                pass
        assert numbers(backend) == list(range(THREADS))

    def test_a_start_and_what_follows_do_not_overlap(self, backend: Backend) -> None:
        """Either the start is among the events, or the agent finds what followed at its start."""

        def put_back(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [] if events else [make_event(agent_id, "agent_lost")]

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            seq = 0 if stored is None else stored.seq + 1
            return make_record(agent_id, generation, seq=seq), [make_event(agent_id, STARTED)]

        def begin() -> None:
            # A log that was busy for too long has the event with the next attempt.
            while not backend.start_agent(
                agent_id, build, takeover=True, now=START, machine=this_machine()
            ):
                pass

        for number in range(THREADS):
            agent_id = f"scout-{number}"
            with ThreadPoolExecutor(2) as threads:
                steps = (begin, partial(backend.append_following, agent_id, put_back))
                for _ in threads.map(insist, steps):
                    pass
            kinds = [event["type"] for event in backend.committed_events(agent_id=agent_id).events]
            assert kinds in ([STARTED], ["agent_lost", STARTED])

    def test_a_page_is_limited(self, backend: Backend) -> None:
        """A page has at most as many events as asked for."""
        backend.append_events([make_event("scout-1", n=n) for n in range(5)])
        assert numbers(backend, limit=3) == [0, 1, 2]

    def test_an_old_cursor_can_be_used_again(self, backend: Backend) -> None:
        """Reading moves nothing: the same cursor gives the same events."""
        backend.append_events([make_event("scout-1", n=n) for n in range(3)])
        cursor = backend.events(None, 1).cursor
        assert numbers(backend, cursor) == numbers(backend, cursor) == [1, 2]

    # "٣" is a number to `int` too, and 40 digits are too many for 64 bits.
    @pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "1:2:3", "٣", "1" * 40])
    def test_what_is_no_cursor_is_refused(self, backend: Backend, cursor: str) -> None:
        """It says what is allowed, instead of beginning anywhere."""
        backend.append_events([make_event("scout-1")])
        with pytest.raises(ConfigurationError, match="cursor"):
            backend.events(cursor)

    def test_an_event_is_stored_once_per_key(self, backend: Backend) -> None:
        """Who, which filling, what and how often make the key; the first event of a key stays."""
        first = make_event("scout-1", "context_threshold_reached", level="warning")
        others = [
            {**first, "agentId": "scout-2"},
            {**first, "generation": 2},
            {**first, "epoch": 2},
            {**first, "type": "context_relaxed"},
            {**first, "level": "critical"},
            {**first, "n": 1},
        ]
        backend.append_events([first, {**first, "eventId": "retried", "tokens": 5}])
        backend.append_events([first, *others])
        assert backend.events().events == [first, *others]

    def test_a_retried_write_stores_its_events_once(self, backend: Backend) -> None:
        """Passing an event with several states stores it once, and says each time that it is."""
        event = make_event("scout-1", "agent_started")
        record = start(backend, events=[event])
        for seq in (1, 2):
            again = make_record("scout-1", record.generation, seq=seq)
            assert backend.record(again, [event, make_event("scout-1", n=1)], durable=True)
        backend.append_events([event])
        assert [stored["type"] for stored in backend.events().events] == [
            "agent_started",
            "agent_stale",
        ]
        assert held(backend).pending is None

    def test_an_event_with_a_state_is_there_with_it(self, backend: Backend) -> None:
        """When a write returns true, its state and its events can both be read."""
        record = start(backend)
        crossed = make_record("scout-1", record.generation, seq=1, threshold_status="warning")
        event = make_event("scout-1", "context_threshold_reached", level="warning")
        assert backend.record(crossed, [event], durable=True)
        assert held(backend).threshold_status == "warning"
        assert backend.events().events == [event]

    def test_events_survive_reopening(
        self, backend: Backend, reopen: Callable[[Backend], Backend] | None
    ) -> None:
        """Another process continues from the same cursor, and keeps keys unique."""
        if reopen is None:
            pytest.skip("not durable")
        backend.append_events([make_event("scout-1", n=n) for n in range(3)])
        cursor = backend.events(None, 1).cursor
        backend.close()
        again = reopen(backend)
        assert numbers(again, cursor) == [1, 2]
        again.append_events([make_event("scout-1", n=n) for n in (2, 3)])
        assert numbers(again, cursor) == [1, 2, 3]
        assert numbers(again) == [0, 1, 2, 3]

    def test_two_open_backends_see_each_other(
        self, backend: Backend, reopen: Callable[[Backend], Backend] | None
    ) -> None:
        """What one process stores, another one that is open at the same time reads and fences."""
        if reopen is None:
            pytest.skip("not durable")
        other = reopen(backend)
        write(backend, start(backend, pid_started_at="gone"), pid_started_at="gone")
        other.append_events([make_event("scout-1", n=1)])
        backend.append_events([make_event("scout-1", n=2)])
        assert start(other).generation == 2
        assert held(backend).generation == 2
        assert numbers(backend) == numbers(other) == [1, 2]
        claims = [
            one.claim_handoff("h", "a", b, now=START) for one, b in ((backend, "b"), (other, "c"))
        ]
        assert claims == ["b", "b"]
        other.close()

    def test_ended_agents_are_pruned(self, backend: Backend) -> None:
        """Deleted is what has ended and was last active before the time, and nothing else."""
        write(backend, start(backend, "old"), active=False, last_activity=START - 1)
        write(backend, start(backend, "fresh"), active=False, last_activity=START)
        start(backend, "running", last_activity=START - 100)
        assert prune(backend, START, dry_run=True) == ["old"]
        assert backend.load("old").agent_id == "old"
        assert prune(backend, START) == ["old"]
        assert prune(backend, START) == []
        with pytest.raises(AgentNotFoundError):
            backend.load("old")
        kept = sorted(agent.agent_id for agent in backend.list_agents())
        assert kept == ["fresh", "running"]
        assert backend.heartbeat([("old", 1)], START) == ["old"]

    def test_lost_agents_are_pruned(self, backend: Backend) -> None:
        """Who never ended goes when it is lost and nothing was heard of it since the time."""
        gone: dict[str, Any] = {"pid_started_at": VANISHED}
        silent: dict[str, Any] = {"machine": ELSEWHERE, "lost_after_seconds": 600}
        start(backend, "gone", **gone)
        start(backend, "gone-and-beat-later", **gone)
        start(backend, "gone-and-active-later", **{**gone, "last_activity": START + 5})
        start(backend, "silent", **silent)
        start(backend, "silent-and-beat-later", **silent)
        start(backend, "stale", **{**silent, "lost_after_seconds": 700})
        start(backend, "waiting", phase="waiting")
        beats = [(f"{name}-and-beat-later", 1) for name in ("gone", "silent")]
        assert backend.heartbeat(beats, START + 5) == []
        assert prune(backend, START, now=START + 601) == []
        assert prune(backend, START + 1, now=START + 601, dry_run=True) == ["gone", "silent"]
        assert prune(backend, START + 1, now=START + 601) == ["gone", "silent"]
        kept = {agent.agent_id for agent in backend.list_agents()}
        assert kept == {
            "gone-and-beat-later",
            "gone-and-active-later",
            "silent-and-beat-later",
            "stale",
            "waiting",
        }

    def test_an_agent_that_beats_again_is_not_pruned(self, backend: Backend) -> None:
        """Silence of a process elsewhere proves nothing: its next beat brings it back."""
        start(backend, machine=ELSEWHERE)
        late = {"now": START + 10_000}
        assert prune(backend, START + 9_000, **late, dry_run=True) == ["scout-1"]
        backend.heartbeat([("scout-1", 1)], START + 9_999)
        assert prune(backend, START + 9_000, **late) == []

    def test_a_pruned_agent_begins_anew(self, backend: Backend) -> None:
        """Nothing of a pruned agent is left for the next one of its name."""
        record = start(backend, extra={"kept": True}, cumulative_chars=9)
        write(backend, record, active=False)
        prune(backend, START + 1)
        seen: list[StateRecord | None] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            seen.append(stored)
            return make_record("scout-1", generation), []

        backend.start_agent("scout-1", build, takeover=False, now=START, machine=this_machine())
        assert seen == [None]

    def test_old_events_are_pruned(self, backend: Backend) -> None:
        """Events before the time go; cursors of those who read them stay good."""
        ages = (START - 20, START - 10, START, START + 10)
        backend.append_events([make_event("scout-1", at=at, n=n) for n, at in enumerate(ages)])
        behind_first, behind_third = (backend.events(None, n).cursor for n in (1, 3))
        prune(backend, events_before=START, dry_run=True)
        assert numbers(backend) == [0, 1, 2, 3]
        prune(backend, events_before=START)
        assert numbers(backend) == [2, 3]
        assert numbers(backend, behind_first) == [2, 3]
        assert numbers(backend, behind_third) == [3]
        backend.append_events([make_event("scout-1", n=4)])
        assert numbers(backend, behind_third) == [3, 4]

    def test_a_log_pruned_empty_keeps_its_place(self, backend: Backend) -> None:
        """After every event was deleted, new ones still appear behind the old cursors."""
        backend.append_events([make_event("scout-1", n=n) for n in range(3)])
        cursor = backend.events().cursor
        prune(backend, events_before=START + 1)
        backend.append_events([make_event("scout-1", n=3)])
        assert numbers(backend, cursor) == [3]

    def test_one_of_many_starts_wins(self, backend: Backend) -> None:
        """Owners that take an agent at the same time get a generation each, none twice."""

        def take(_: int) -> int:
            return int(insist(lambda: start(backend, takeover=True)).generation)

        with ThreadPoolExecutor(THREADS) as threads:
            generations = sorted(threads.map(take, range(THREADS)))
        assert generations == list(range(1, THREADS + 1))
        assert held(backend).generation == THREADS

    def test_many_threads_lose_nothing(self, backend: Backend) -> None:
        """Under load every acknowledged state and event is there, and readers see none torn."""
        writes = 12

        def work(worker: int) -> None:
            agent_id = f"scout-{worker}"
            generation = insist(lambda: start(backend, agent_id)).generation
            seqs = count(1)

            def save(number: int) -> bool:
                marks = {"a": number, "b": number}
                state = make_record(agent_id, generation, seq=next(seqs), by_source=marks)
                return backend.record(state, [make_event(agent_id, n=number)], durable=False)

            for number in range(1, writes + 1):
                # False = the state is stored, the event has to be passed again.
                while not insist(partial(save, number)):
                    pass
                for seen in backend.list_agents():
                    assert seen.record is not None
                    marks = seen.record.by_source
                    assert not marks or marks["a"] == marks["b"]
                assert insist(lambda: backend.heartbeat([(agent_id, generation)], START)) == []

        with ThreadPoolExecutor(THREADS) as threads:
            for _ in threads.map(work, range(THREADS)):
                pass
        for worker in range(THREADS):
            assert held(backend, f"scout-{worker}").by_source == {"a": writes, "b": writes}
        events = backend.events(None, 2 * THREADS * writes).events
        for worker in range(THREADS):
            own = [event["n"] for event in events if event["agentId"] == f"scout-{worker}"]
            assert own == list(range(1, writes + 1))
