"""The log of a run: what is committed is read at once, in an order that is the same for all."""

from __future__ import annotations

from dataclasses import replace

from helpers.pool_journal import Journal
from hypothesis import given
from hypothesis import strategies as st

from ultramon.backends.base import EventPage
from ultramon.backends.memory import MemoryBackend
from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.supervise.jobs import make_event
from ultramon.fleet.supervise.pool import ASSIGNED, CLAIMED, OPEN, SET_ASIDE, VERIFIED, ItemPool
from ultramon.fleet.supervise.run_log import RunLog
from ultramon.testing.clock import START

STATUSES = (OPEN, ASSIGNED, CLAIMED, VERIFIED, SET_ASIDE)


class Transactions:
    """The events of a store whose transactions commit in an order of their own.

    Each has one event. Its number is its place in the order; the earliest open one withholds all
    that is behind it.
    """

    def __init__(self, events):
        self._events = events
        self._committed = set()

    def commit(self, number):
        self._committed.add(number)

    def _page(self, after, numbers):
        numbers = [number for number in numbers if number >= int(after or 0)]
        cursors = [str(number + 1) for number in numbers]
        events = [self._events[number] for number in numbers]
        return EventPage(events, cursors[-1] if cursors else after or "0", cursors)

    def events(self, after=None, limit=3):
        numbers = range(len(self._events))
        first = next((one for one in numbers if one not in self._committed), len(numbers))
        page = self._page(after, range(first))
        return self._page(after, range(int(after or 0), first)[:limit]) if page.events else page

    def committed_events(self, after=None, *, run=None, agent_id=None):
        numbers = sorted(self._committed)
        return self._page(after, [one for one in numbers if self._events[one]["run"] == run])


def facts(pool):
    """Return what is known; the place before each assignment may become an earlier one."""
    return (
        {status: list(pool.with_status(status)) for status in STATUSES},
        [replace(context, cursor=None) for context in pool.contexts.values()],
        pool.counts,
        pool.repeated,
        pool.begun_again,
        pool.claims(),
        pool.next_work(3),
    )


def fold(events):
    pool = ItemPool(3)
    steps = []
    for number, event in events:
        if event["run"] == "job":
            steps += pool.read(JournalEvent.of(event), str(number) if number else None)
    return pool, steps


@st.composite
def journals(draw):
    """Draw the events of a run with orchestrators that overlap, and those of another run."""
    journal = Journal([f"i{number}" for number in range(draw(st.integers(1, 5)))])
    pool = journal.pool
    for _ in range(draw(st.integers(0, 8))):
        if pool.open_contexts and draw(st.booleans()):
            context = draw(st.sampled_from(pool.open_contexts))
            held = [name for name, _ in pool.held_by(context, ASSIGNED)]
            journal.claim(context, held[:1], verified=draw(st.booleans()))
            if draw(st.booleans()):
                journal.reject(context, held[:1])
            if draw(st.booleans()):
                journal.hand_off(context, remaining=held)
            journal.end(context, held[1:], outcome=draw(st.sampled_from(["lost", "returned"])))
        elif pool.next_work(1) is not None:
            journal.assign(draw(st.integers(1, 3)))
    events = journal.events
    for number in range(draw(st.integers(0, 3))):
        other = make_event("other", "x", "items_added", source="f", at=START, items=[str(number)])
        events.insert(draw(st.integers(0, len(events))), other)
    if draw(st.booleans()):
        events = draw(st.permutations(events))  # what two orchestrators wrote, in any order
    return events


@given(journals(), st.data())
def test_every_reader_has_the_pool_of_the_events_in_their_order(events, data):
    """Whenever it reads, whatever commits late: two that see the same events have the same pool."""
    store = Transactions(events)
    readers = [RunLog(store, "job", 3) for _ in range(2)]
    told = [[], []]
    committed = set()
    for number in data.draw(st.permutations(range(len(events)))):
        store.commit(number)
        committed.add(number)
        for which, reader in enumerate(readers):
            if data.draw(st.booleans()):
                told[which] += reader.read()
                pool, _ = fold((one, events[one]) for one in sorted(committed))
                assert facts(reader.pool) == facts(pool)
    for which, reader in enumerate(readers):
        told[which] += reader.read()
    assert facts(readers[0].pool) == facts(readers[1].pool)
    pool, _ = fold(enumerate(events))
    assert facts(readers[0].pool) == facts(pool)
    for steps in told:
        assert len(steps) <= sum(event["run"] == "job" for event in events)


def test_a_foreign_event_that_is_late_changes_nothing():
    """All steps are returned at once, each of them once."""
    foreign = make_event("other", "x", "items_added", source="f", at=START, items=["a"])
    store = Transactions([foreign, *sample()])
    log, steps = RunLog(store, "job", 3), []
    for number in (*range(1, len(sample()) + 1), 0):
        store.commit(number)
        steps += log.read()
    assert steps == fold(enumerate(sample()))[1]
    assert {step.name for step in steps} >= {"started", "claimed", "verified", "ended"}


def sample():
    journal = Journal(["a", "b"])
    context = journal.assign()
    journal.claim(context, ["a"])
    journal.end(context, ["b"], outcome="lost")
    return journal.events


def test_a_store_that_withholds_nothing_is_read_once():
    """Events are folded as they come, whichever of the two readings returns them first."""
    backend = MemoryBackend()
    log = RunLog(backend, "job", 3)
    steps = []
    for event in sample():
        backend.append_events([event])
        steps += log.read()
    assert steps == fold(enumerate(sample()))[1]
