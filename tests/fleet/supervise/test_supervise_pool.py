"""The pool of a supervised run: what the journal's events add up to."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.pool_journal import Journal
from hypothesis import given
from hypothesis import strategies as st

from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.supervise.jobs import POOL, added, name_in_run
from ultramon.fleet.supervise.pool import (
    ASSIGNED,
    CHUNK_ITEMS,
    CLAIMED,
    OPEN,
    SET_ASIDE,
    VERIFIED,
    ItemPool,
)
from ultramon.state.plan import MAX_PLAN_BYTES
from ultramon.system.ids import MAX_ID_LENGTH, check_agent_id
from ultramon.testing.clock import START

STATUSES = (OPEN, ASSIGNED, CLAIMED, VERIFIED, SET_ASIDE)


def names(pool, status):
    return [name for name, _ in pool.with_status(status)]


def test_what_a_successor_does_not_get_begins_by_itself():
    """Of what a context left, some items may not begin yet: they are not forgotten."""
    journal = Journal(["a", "b", "c"])
    first = journal.assign(share=2)
    journal.end(first)
    work = journal.pool.next_work(2, lambda name: name == "b")
    assert work.items == ["b"]
    journal.note("job.2", "agent_assigned", generation=0, supervisor="me", items=work.items)
    assert journal.pool.next_work(5).items == ["c", "a"]


def test_what_was_left_is_filled_up_with_fresh_items():
    """Where a context may get so many: in its plan they come behind what it continues."""
    journal = Journal(["a", "b", "c", "d", "e"])
    first = journal.assign(share=2)
    journal.hand_off(first, interrupted=["b"], remaining=["a"], notes="so far")
    journal.end(first, ["b"])
    assert journal.pool.next_work(4).items == ["a", "b"]
    work = journal.pool.next_work(4, lambda name: name != "c", filled=True)
    assert work.items == ["a", "b", "d", "e"]
    assert work.handoff.interrupted == ("b",)
    assert work.handoff.remaining == ("a", "d", "e")
    assert work.handoff.notes == "so far"
    assert journal.pool.next_work(1, filled=True).items == ["a", "b"]


def test_an_item_that_has_its_contexts_killed_waits_for_the_others():
    """Another context would end with it, and four in a row end the call with others left."""
    journal = Journal(["a", "b", "c"])
    for _ in range(3):
        assert journal.pool.next_work(3).items == ["a", "b", "c"]
        context = journal.assign()
        journal.end(context, ["a"], outcome="lost", exit={"signal": "SIGKILL"})
    assert journal.pool.next_work(3).items == ["b", "c"]
    context = journal.assign()
    journal.claim(context, ["b", "c"])
    journal.end(context)
    assert journal.pool.next_work(3).items == ["a"]


def test_steps_inside_an_item_are_those_of_the_context_that_has_it():
    """They end with its claim, and with being set aside; what an earlier context adds is none."""
    journal = Journal(["a", "b", "c"])

    def step(context, item, name):
        journal.note(context.agent_id, "step_completed", item=item, step=name, result=1)

    def stored():
        return {item: list(steps) for item, steps in journal.pool.steps.among("abc").items()}

    first = journal.assign()
    for item in ("a", "b", "its own"):
        step(first, item, "parse")
    assert stored() == {"a": ["parse"], "b": ["parse"]}
    journal.claim(first, ["a"], verified=False)
    step(first, "a", "late")
    assert stored() == {"b": ["parse"]}
    journal.reject(first, ["a"])
    journal.end(first, ["b"], outcome="failed")
    step(first, "b", "late")
    second = journal.assign()
    step(first, "b", "later")
    step(second, "b", "load")
    assert (stored(), second.has_new_step) == ({"b": ["parse", "load"]}, True)
    journal.end(second, ["b"], outcome="failed")
    # Two contexts made a step that was new; three that make none are too many.
    assert journal.pool.item("b").attempts == 0
    for _ in range(3):
        context = journal.assign()
        step(context, "b", "parse")
        assert stored() == {"b": ["load", "parse"]}
        journal.end(context, ["b"], outcome="failed")
    assert names(journal.pool, SET_ASIDE) == ["b"]
    assert stored() == {}


def test_items_are_added_once_and_in_order():
    """The same call again, also in other pieces, adds what is new."""
    journal = Journal(["b", "a"])
    journal.add(["a", "c", "b"])
    assert names(journal.pool, OPEN) == ["b", "a", "c"]
    assert journal.pool.next_work(2).items == ["b", "a"]


def test_adding_the_same_items_again_is_the_same_event():
    """A repeated write is stored once: the number of the event comes from its facts."""
    twice = [
        next(added("job", "job.pool", ["a"], source="fleet:main", at=at))
        for at in (START, START + 9)
    ]
    other = next(added("job", "job.pool", ["b"], source="fleet:main", at=START))
    assert twice[0]["n"] == twice[1]["n"] != other["n"]


def test_a_hundred_thousand_items_come_in_bounded_pieces_and_chunks():
    """No event and no plan holds more than a store and a state take."""
    items = [f"/some/where/deep/in/a/tree/of/sources/{number:06}.py" for number in range(100_000)]
    journal = Journal(items)
    assert max(len(str(event)) for event in journal.events) < 2 * MAX_PLAN_BYTES
    work = journal.pool.next_work(10**6)
    assert work.items == items[:CHUNK_ITEMS]
    journal.assign()
    assert journal.pool.next_work(10**6).items == items[CHUNK_ITEMS : 2 * CHUNK_ITEMS]


def test_large_items_make_small_chunks():
    """A chunk fills half a plan at most, and holds one item at least."""
    journal = Journal(["x" * 100_000, "y" * 100_000, "z" * 10_000])
    assert [len(item) for item in journal.pool.next_work(10).items] == [100_000]


def test_a_successor_continues_what_is_left_by_the_pools_count():
    """Claims that were rejected come back; what is settled or unknown to the pool stays apart."""
    journal = Journal(["a", "b", "c", "d"])
    first = journal.assign()
    journal.claim(first, ["a"])
    journal.claim(first, ["b"], verified=False)
    journal.reject(first, ["b"])
    journal.hand_off(first, interrupted=["c"], remaining=["d", "own"], notes="so far")
    assert journal.end(first, ["c"]) == ["handed_over", "ended"]
    work = journal.pool.next_work(1)
    assert work.handoff.interrupted == ("c",)
    assert work.handoff.remaining == ("d", "own", "b")
    second = journal.assign()
    assert second.items == ["c", "d", "b"]


def test_a_handoff_that_is_no_record_is_left_out():
    """Something else wrote it: its items are continued without it."""
    journal = Journal(["a"])
    first = journal.assign()
    journal.hand_off(first, remaining=["a"], tokens=-1)
    journal.end(first, outcome="returned")
    assert journal.pool.next_work(1) == (["a"], None)


def test_a_kill_does_not_erase_what_the_one_before_wrote():
    """The record that a fleet rebuilds has no words; those of the handoff before continue."""
    journal = Journal(["a"])
    first = journal.assign()
    journal.hand_off(first, remaining=["a"], notes="page 7", results={})
    journal.end(first, outcome="returned")
    second = journal.assign()
    journal.hand_off(second, interrupted=["a"], reason="lost", notes=None, results={})
    journal.end(second, ["a"], outcome="lost")
    assert journal.pool.next_work(1).handoff.notes == "page 7"
    third = journal.assign()
    journal.hand_off(third, interrupted=["a"], notes="page 7")
    assert not journal.pool.closing(third, ["a"], {})[0].progress


def test_three_contexts_without_progress_set_the_item_in_work_aside():
    """The rest continues; an end before the start is nobody's fault."""
    journal = Journal(["a", "b"])
    crash = {"outcome": "lost", "exit": {"returncode": 1}}
    for _ in range(2):
        journal.end(journal.assign(), ["b"], **crash)
    told = journal.end(journal.assign(), ["b"], **crash)
    assert told == ["ended", "set_aside"]
    assert (names(journal.pool, SET_ASIDE), names(journal.pool, OPEN)) == (["b"], ["a"])
    reason = "3 contexts without progress on it; the last one: lost (exit code 1)"
    assert journal.pool.item("b").reason == reason


@pytest.mark.parametrize(
    "end",
    [
        {"outcome": "lost", "exit": {}},
        {"outcome": "lost", "exit": {"returncode": -9, "signal": "SIGKILL"}},
        {"outcome": "lost", "exit": {"returncode": -9, "signal": "SIGKILL", "outOfMemory": False}},
        {"outcome": "lost", "exit": {"returncode": -15, "signal": "SIGTERM"}},
        {"outcome": "lost", "exit": {"returncode": 143}},
        {"outcome": "lost", "exit": {"returncode": 129}},
        {"outcome": "cancelled", "exit": {"returncode": -2, "signal": "SIGINT"}},
        {"outcome": "failed", "exit": {"error": "SystemExit", "returncode": 143}},
    ],
)
def test_a_kill_from_outside_is_no_attempt_on_the_item(end):
    """Nor is an end of unknown cause; after nine of them the item is set aside all the same."""
    journal = Journal(["b"])
    for _ in range(8):
        assert "set_aside" not in journal.end(journal.assign(), ["b"], **end)
    journal.end(journal.assign(), ["b"], outcome="lost", exit={"returncode": 1})
    assert journal.pool.item("b").attempts == 1
    assert "set_aside" in journal.end(journal.assign(), ["b"], **end)
    assert journal.pool.item("b").reason == "killed from outside 9 times"


@pytest.mark.parametrize(
    "end",
    [
        {"exit": {"returncode": -9, "signal": "SIGKILL", "outOfMemory": True}},
        {"exit": {"returncode": 137, "outOfMemory": True}},
        {"exit": {"returncode": -11, "signal": "SIGSEGV"}},
        {"exit": {"returncode": -15, "signal": "SIGTERM"}, "is_enforced": True},
    ],
)
def test_a_death_of_its_own_is_an_attempt(end):
    """Memory that the kernel took, a crash, and a kill by the supervisor for not returning."""
    journal = Journal(["a"])
    for _ in range(3):
        journal.end(journal.assign(), ["a"], outcome="lost", **end)
    assert names(journal.pool, SET_ASIDE) == ["a"]


def test_progress_forgets_kills_from_outside():
    """Some kills in a month of work say nothing about an item."""
    journal = Journal(["a", "b"])
    killed = {"outcome": "lost", "exit": {"returncode": -9, "signal": "SIGKILL"}}
    for _ in range(2):
        journal.end(journal.assign(), ["b"], **killed)
    context = journal.assign()
    journal.claim(context, ["a"])
    journal.end(context, ["b"], **killed)
    assert (journal.pool.item("b").kills, names(journal.pool, OPEN)) == (0, ["b"])


def test_an_item_that_was_reopened_is_as_good_as_new():
    """Only one that was verified, and its former context has it no more."""
    journal = Journal(["a", "b"])
    first = journal.assign()
    journal.claim(first, ["a"])
    journal.end(first, ["b"], outcome="lost", exit={"returncode": 1})
    told = journal.note("job.pool", "items_reopened", items=["a", "b", "x"], reasons={"a": "gone"})
    assert told == ["reopened"]
    assert names(journal.pool, OPEN) == ["a", "b"]
    assert (journal.pool.item("a").context, journal.pool.item("a").reason) == (None, "gone")
    assert journal.pool.item("b").attempts == 0  # its context had made progress
    assert list(journal.pool.held_by(first, VERIFIED)) == []
    second = journal.assign()
    journal.claim(second, ["a"])
    assert names(journal.pool, VERIFIED) == ["a"]


def test_changed_notes_are_progress_and_the_same_notes_are_not():
    """An item larger than a context is continued for as long as its notes move."""
    journal = Journal(["a"])
    for page in (*range(10), 9, 9):
        context = journal.assign()
        journal.hand_off(context, interrupted=["a"], notes=f"page {page}")
        assert names(journal.pool, SET_ASIDE) == []
        journal.end(context, ["a"], outcome="returned")
    context = journal.assign()
    journal.hand_off(context, interrupted=["a"], notes="page 9")
    journal.end(context, ["a"], outcome="returned")
    assert names(journal.pool, SET_ASIDE) == ["a"]


def test_an_item_in_work_at_a_kill_is_repeated_once_it_is_begun_again():
    """A handoff in good order repeats nothing."""
    journal = Journal(["a", "b"])
    first = journal.assign()
    journal.hand_off(first, interrupted=["a"], remaining=["b"])
    journal.end(first, ["a"], outcome="returned")
    journal.end(journal.assign(), ["a"], outcome="lost")
    assert list(journal.pool.repeated) == []
    journal.assign()
    assert list(journal.pool.repeated) == ["a"]


def test_a_claim_that_is_rejected_after_its_context_closed_is_put_back():
    """The item is open again, and an attempt is charged to it; what was verified stays so."""
    journal = Journal(["a", "b"], max_attempts=2)
    pool = journal.pool
    context = journal.assign()
    journal.claim(context, ["a", "b"], verified=False)
    journal.end(context)
    assert pool.claims() == {"job.1": ["a", "b"]}
    journal.note("job.1", "items_verified", items=["a"])
    journal.reject(context, ["b"])
    assert (pool.claims(), names(pool, VERIFIED), names(pool, OPEN)) == ({}, ["a"], ["b"])
    assert pool.reason_to_give_up("b", "empty") == "2 contexts without progress on it; empty"
    assert journal.assign().items == ["b"]


def test_what_a_handed_over_context_claimed_goes_to_its_successor_if_it_is_rejected():
    """It is among what is left of the handoff, once."""
    journal = Journal(["a", "b"])
    context = journal.assign()
    journal.claim(context, ["a"], verified=False)
    journal.hand_off(context, remaining=["b"], completed=["a"], notes="so far")
    journal.end(context, outcome="returned")
    journal.reject(context, ["a"])
    work = journal.pool.next_work(9)
    assert (sorted(work.items), work.handoff.completed) == (["a", "b"], ())
    journal.assign()
    assert journal.pool.next_work(9) is None


@pytest.mark.parametrize(
    ("end", "counts"),
    [
        ({"outcome": "lost", "exit": {"signal": "SIGKILL"}}, (1, 1)),
        ({"outcome": "lost", "exit": {"returncode": 0}}, (0, 1)),
        ({"outcome": "failed", "exit": {"error": "KeyError"}}, (0, 1)),
        ({"outcome": "returned"}, (0, 0)),
    ],
)
def test_what_was_in_work_at_an_end_without_a_handover_is_begun_again(end, counts):
    """A kill, a crash, an end that the store did not take; not where the agent handed over."""
    journal = Journal(["a", "b"])
    first = journal.assign()
    if end["outcome"] == "returned":
        journal.hand_off(first, interrupted=["a"], remaining=["b"])
    journal.end(first, ["a"], **end)
    assert (list(journal.pool.repeated), list(journal.pool.begun_again)) == ([], [])
    journal.assign()
    found = journal.pool.repeated, journal.pool.begun_again
    assert tuple(map(list, found)) == tuple(["a"][:count] for count in counts)


def test_an_agent_that_starts_after_its_work_was_put_back_is_detached():
    """What the journal says first holds, in both orders."""
    journal = Journal(["a", "b"])
    for number in (1, 2):
        work = journal.pool.next_work(1)
        journal.note(
            f"job.{number}", "agent_assigned", generation=0, supervisor="x", items=work.items
        )
    late, early = journal.pool.contexts.values()
    journal.note("job.1", "agent_lost", generation=0, outcome="lost", void=True)
    journal.note("job.1", "agent_started")
    journal.note("job.2", "agent_started")
    journal.note("job.2", "agent_lost", generation=0, outcome="lost", void=True)
    assert (late.is_detached, early.is_detached) == (True, False)
    assert (late.end is None, early.end is None) == (False, True)


@given(st.data())
def test_every_item_has_one_status_and_the_counts_add_up(data):
    """Whatever happens in whatever order, and read a second time it is the same pool."""
    journal = Journal([f"i{number}" for number in range(data.draw(st.integers(1, 8)))])
    pool = journal.pool
    for _ in range(data.draw(st.integers(0, 25))):
        if pool.open_contexts and data.draw(st.booleans()):
            context = data.draw(st.sampled_from(pool.open_contexts))
            held = [name for name, _ in pool.held_by(context, ASSIGNED)]
            done = [name for name in held if data.draw(st.booleans())]
            journal.claim(context, done, verified=data.draw(st.booleans()))
            if data.draw(st.booleans()):
                journal.reject(context, [name for name, _ in pool.held_by(context, CLAIMED)])
            elif data.draw(st.booleans()):
                journal.hand_off(context, remaining=held)
            outcome = data.draw(st.sampled_from(["lost", "completed", "returned", "failed"]))
            journal.end(context, held[:1], outcome=outcome)
        elif pool.next_work(1) is not None:
            journal.assign(data.draw(st.integers(1, 5)))
        counts = pool.counts
        assert counts.assigned == sum(
            (counts.verified, counts.claimed, counts.set_aside, counts.left)
        )
        found = Counter(name for status in STATUSES for name in names(pool, status))
        assert set(found.values()) <= {1}
        assert found.total() == counts.assigned
    again = ItemPool(journal.max_attempts)
    for number, event in enumerate(journal.events, 1):
        list(again.read(JournalEvent.of(event), str(number)))
    assert [names(again, status) for status in STATUSES] == [
        names(pool, status) for status in STATUSES
    ]
    assert again.next_work(3) == pool.next_work(3)
    assert again.claims() == pool.claims()
    assert sum(map(len, pool.claims().values())) == pool.counts.claimed


@pytest.mark.parametrize("run", ["job", "x" * MAX_ID_LENGTH])
def test_contexts_have_valid_ids_of_their_own(run):
    """A long run is shortened, and two long runs are distinguished."""
    agent_id = check_agent_id(name_in_run(run, 123_456))
    assert agent_id != name_in_run(run, POOL)
    assert agent_id.endswith(".123456")
    assert name_in_run("y" + "x" * MAX_ID_LENGTH, 1) != name_in_run(
        "y" * 2 + "x" * MAX_ID_LENGTH, 1
    )
