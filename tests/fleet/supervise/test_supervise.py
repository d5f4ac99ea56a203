"""`Fleet.supervise` with real processes: every way in which contexts, checks and people can act."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import wait as wait_for

import pytest
from helpers.run_history import read_events
from helpers.supervised import (
    do,
    effects,
    environment,
    run_by_target,
    spawner,
    start_orchestrator,
)
from helpers.waiting import until

from ultramon import ConfigurationError, Fleet, RunUnfinishedError, open_backend
from ultramon.backends.lease_holder import name_holder
from ultramon.fleet.supervise import children, supervisor
from ultramon.fleet.supervise.jobs import make_event
from ultramon.fleet.supervise.verification import DaemonThreads, Rejection, Undecided
from ultramon.testing import assert_no_work_lost

ITEMS = [f"item {number}" for number in range(12)]


@pytest.fixture
def fleet():
    fleet = Fleet("job", poll_interval_seconds=0.2)
    yield fleet
    fleet.close()


@pytest.fixture
def quick(monkeypatch):
    """Have pauses and the patience with SIGTERM short."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(children, "TERMINATE_SECONDS", 0.3)


def done_in(tmp_path):
    return lambda item: item in effects(tmp_path)


def add_up(result):
    """The counts of a result, which name every item once."""
    counts = result.counts
    assert counts.assigned == sum((counts.verified, counts.claimed, counts.set_aside, counts.left))
    assert (len(result.left), len(result.set_aside)) == (counts.left, counts.set_aside)
    assert result.lost == ()
    return counts


def test_tasks_in_an_agents_own_words_are_claims_of_items(fleet, tmp_path):
    """`item_of` says which item a task is about; one about none claims nothing."""
    result = fleet.supervise(
        spawner(tmp_path, "own_words"),
        ["a", "b"],
        item_of=lambda name: name.removeprefix("read ") if name.startswith("read ") else None,
    )
    assert result.raise_for_failure() is result
    assert effects(tmp_path) == ["read a", "read b", "sum up"]
    assert add_up(result).claimed == 2


@pytest.mark.parametrize(
    ("mode", "shared_store"),
    [("obey", "file"), ("obey", "postgres"), ("by_hand", "file")],
    indirect=["shared_store"],
)
def test_items_are_carried_across_contexts_and_verified(mode, shared_store, tmp_path):
    """Windows fill and are handed over, whether the agent knows `worker` or not."""
    fleet = Fleet("job")
    result = fleet.supervise(
        spawner(tmp_path, mode), ITEMS * 2 + ["ä \" '\n", "x"], workers=2, verify=done_in(tmp_path)
    )
    assert sorted(effects(tmp_path)) == sorted([*ITEMS, "ä \" '\n", "x"])
    assert result.ok
    assert add_up(result).verified == 14
    assert len(result.contexts) >= 2
    assert str(result) == f"14 of 14 verified, {len(result.contexts)} contexts, 0 killed, " + (
        "0 begun again, 0 lost"
    )
    assert json.loads(json.dumps(result.to_json()))["counts"]["verified"] == 14
    assert_no_work_lost("job")


def test_without_verify_items_are_claimed_and_nothing_more(fleet, tmp_path):
    """The agent says so, and no check has looked."""
    result = fleet.supervise(spawner(tmp_path, "claims"), ["a", "b"])
    assert str(result) == "2 of 2 claimed, 1 context, 0 killed, 0 begun again, 0 lost"
    assert result.ok
    assert effects(tmp_path) == []


def test_the_same_call_goes_on_and_adds_what_is_new(fleet, tmp_path):
    """What is done is not done again, and what was not verified is verified now."""
    spawn = spawner(tmp_path, "obey")
    fleet.supervise(spawn, ["a", "b"])
    again = Fleet("job").supervise(spawn, ["b", "c"], verify=done_in(tmp_path))
    assert effects(tmp_path) == ["a", "b", "c"]
    assert (again.counts.claimed, again.counts.verified) == (0, 3)
    assert [context.agent_id for context in again.contexts] == ["job.1", "job.2"]
    assert len(fleet.supervise(spawn).contexts) == 2


def test_a_job_tells_a_process_all_it_needs(fleet, tmp_path):
    """Items, handoff and prompt: a model needs no more than text."""
    jobs = []
    start = spawner(tmp_path, "obey")

    def spawn(job):
        jobs.append(job)
        return start(job)

    fleet.supervise(spawn, ITEMS)
    first, second = jobs[:2]
    assert (first.agent_id, first.items, first.handoff) == ("job.1", tuple(ITEMS), None)
    assert "# Work (12 items)\n\n- item 0\n" in first.prompt
    assert second.items == second.handoff.remaining
    assert second.prompt == second.handoff.to_prompt()


def test_of_many_items_the_prompt_shows_some(fleet):
    """It is at most 1,500 tokens long, and counts what it leaves out."""
    prompts = []

    def spawn(job):
        prompts.append(job.prompt)
        raise OSError("no more processes")

    fleet.supervise(spawn, [f"a/long/path/{number}.py" for number in range(500)], max_restarts=0)
    assert len(prompts[0]) < 6000
    assert "\n- … and " in prompts[0]


def test_a_spawn_that_raises_is_an_early_death(fleet, quick, tmp_path, caplog):
    """Two failures are followed by a start; what it raised is the reason."""
    start, calls = spawner(tmp_path, "obey"), []

    def spawn(job):
        calls.append(job.agent_id)
        if len(calls) < 3:
            raise OSError("no more processes")
        return start(job)

    result = fleet.supervise(spawn, ["a"])
    assert result.ok
    assert [context.reason for context in result.contexts] == [
        "lost (spawn raised OSError: no more processes)",
        "lost (spawn raised OSError: no more processes)",
        "completed",
    ]
    assert (result.killed, result.repeated) == (0, ())
    assert "raised" in caplog.text


@pytest.mark.parametrize("mode", ["exits", "lazy"])
def test_contexts_without_any_progress_end_the_call(mode, fleet, quick, tmp_path):
    """They are restarted so often and no more; the items are left for the next call."""
    result = fleet.supervise(spawner(tmp_path, mode), ["a", "b"], max_restarts=1)
    assert result.stopped == "max_restarts"
    assert not result.ok
    assert len(result.contexts) == 2
    assert result.left == ("a", "b")
    add_up(result)
    assert Fleet("job").supervise(spawner(tmp_path, "obey")).ok


def test_an_item_whose_agents_are_killed_is_set_aside(fleet, quick, tmp_path):
    """After nine kills, which are no attempts on it; the rest continues, and the program fails."""
    result = fleet.supervise(spawner(tmp_path, "poison"), ["a", "poison", "b"], workers=1)
    assert effects(tmp_path) == ["a", "b"]
    assert (add_up(result).claimed, result.stopped, result.ok) == (2, None, False)
    assert result.set_aside == {"poison": "killed from outside 9 times"}
    assert "1 set aside" in str(result)
    with pytest.raises(RunUnfinishedError, match="set aside: poison: killed from outside 9 time"):
        result.raise_for_failure()
    with pytest.raises(AssertionError, match="run job: 1 item set aside, no agent"):
        assert_no_work_lost("job")


def test_an_agent_that_fails_at_an_item_has_made_an_attempt(fleet, quick, tmp_path):
    """An exception is its own; three of them set the item aside."""
    result = fleet.supervise(spawner(tmp_path, "fails"), ["a", "poison", "b"])
    reason = "3 contexts without progress on it; the last one: failed (ZeroDivisionError)"
    assert result.set_aside == {"poison": reason}
    assert effects(tmp_path) == ["a", "b"]


def test_a_claim_that_is_rejected_twice_is_done_again(fleet, tmp_path):
    """By the next context, whose job names it."""
    result = fleet.supervise(
        spawner(tmp_path, "careless"), ["a", "b", "c"], verify=done_in(tmp_path)
    )
    assert effects(tmp_path) == ["b", "c", "a"]
    assert add_up(result).verified == 3
    rejected = [event for event in read_events(fleet.backend) if event["type"] == "items_rejected"]
    assert [(event["items"], event["attempt"]) for event in rejected] == [(["a"], 1), (["a"], 2)]


def test_an_agent_that_claims_without_doing_does_not_get_away_with_it(fleet, quick, tmp_path):
    """Three contexts later the items are set aside, with what the check said."""
    result = fleet.supervise(
        spawner(tmp_path, "claims"), ["a", "b"], verify=done_in(tmp_path), workers=2
    )
    assert add_up(result).set_aside == 2
    assert set(result.set_aside.values()) == {"3 contexts without progress on it; not verified"}


def test_what_no_other_context_would_do_better_is_set_aside_at_once(fleet, quick, tmp_path):
    """`Rejection` with `is_final`, though the agent has not even ended."""

    def verify(item):
        return item != "b" or Rejection("it is not allowed", is_final=True)

    result = fleet.supervise(spawner(tmp_path, "obey"), ["a", "b", "c"], verify=verify)
    assert result.set_aside == {"b": "it is not allowed"}
    assert (add_up(result).verified, effects(tmp_path)) == (2, ["a", "b", "c"])


def test_items_begin_when_they_may(fleet, tmp_path):
    """Two that exclude each other are never out at once; what waits for another one does wait."""
    done, together = set(), []

    def may_take(held):
        together.append(held)
        free = {"free"} | (set() if held & {"left", "right"} else {"left", "right"})
        return lambda name: name in free or (name == "last" and {"left", "right"} <= done)

    def verify(item):
        done.add(item)
        return True

    items = ["last", "left", "right", "free"]
    spawn = spawner(tmp_path, "obey")
    result = fleet.supervise(spawn, items, workers=4, verify=verify, may_take=may_take)
    assert result.ok
    assert sorted(effects(tmp_path)) == sorted(items)
    assert not any({"left", "right"} <= held for held in together)
    order = effects(tmp_path)
    assert order.index("last") > max(order.index("left"), order.index("right"))


def test_a_context_gets_as_many_items_as_it_may(fleet, tmp_path):
    """The number is asked for before each context, and is one at least."""
    most = {0: 2, 2: 0, 3: 3}
    spawn = spawner(tmp_path, "obey")
    items = ["a", "b", "c", "d", "e", "f"]
    result = fleet.supervise(spawn, items, most_items=lambda: most[len(effects(tmp_path))])
    assert [one.items for one in result.contexts] == [2, 1, 3]
    assert effects(tmp_path) == items


def test_items_that_may_never_begin_end_the_call(fleet, tmp_path):
    """What they wait for was set aside, or is one of them."""
    spawn = spawner(tmp_path, "obey")
    result = fleet.supervise(spawn, ["a", "b", "c"], may_take=lambda held: lambda name: name == "b")
    assert (result.stopped, result.left) == ("blocked", ("a", "c"))
    assert effects(tmp_path) == ["b"]


def test_a_verify_that_raises_is_false_and_named(fleet, quick, tmp_path, caplog):
    """It stops no agent, and is not hidden."""

    def verify(item):
        if item == "b":
            raise KeyError(item)
        return True

    result = fleet.supervise(spawner(tmp_path, "obey"), ["a", "b"], verify=verify)
    assert result.verify_errors == {"b": "verify raised KeyError: 'b'"}
    assert list(result.set_aside) == ["b"]
    assert result.counts.verified == 1
    assert "item 'b': verify raised KeyError" in caplog.text


def test_a_slow_verify_does_not_hold_the_others_up(fleet, tmp_path):
    """While it runs, windows fill and successors start."""
    started, release = [], threading.Event()

    def note(event):
        started.extend([event.agent_id] if event.name == "started" else [])
        if len(started) > 1:
            release.set()

    result = fleet.supervise(
        spawner(tmp_path, "obey"),
        ITEMS,
        workers=2,
        verify=lambda item: item != "item 0" or release.wait(60),
        on_event=note,
    )
    assert result.ok


def test_a_verdict_that_a_later_call_gives_is_waited_for_by_none(fleet, tmp_path):
    """A verify that stops the run leaves the claim as it is, and the run is over at once."""
    asked = []

    def stop(item):
        asked.append(item)
        fleet.stop()
        return Undecided()

    given = (spawner(tmp_path, "obey"), ["a"])
    result = fleet.supervise(*given, verify=stop, grace_seconds=3_600)
    assert (result.stopped, result.counts.claimed, result.counts.set_aside) == ("stopped", 1, 0)
    again = fleet.supervise(*given, verify=lambda item: not asked.append(item))
    assert (again.counts.verified, asked, effects(tmp_path)) == (1, ["a", "a"], ["a"])


def test_an_item_larger_than_a_context_is_continued(fleet, tmp_path):
    """Its contexts leave changed notes; that is progress, and nothing is repeated."""
    result = fleet.supervise(spawner(tmp_path, "large", PAGES=25), ["book", "leaflet"], workers=2)
    assert result.ok
    assert len(result.contexts) > 4
    pages = effects(tmp_path)
    assert Counter(pages) == Counter(
        f"{name}/{page}" for name in ("book", "leaflet") for page in range(25)
    )
    assert result.repeated == ()


@pytest.mark.parametrize("more", [{}, {"STUBBORN": 1}])
def test_an_agent_that_does_not_return_is_ended_where_that_is_asked(more, fleet, quick, tmp_path):
    """First by SIGTERM, then by SIGKILL; its record is rebuilt from its plan."""
    result = fleet.supervise(
        spawner(tmp_path, "deaf", **more), ["a"], enforce=True, grace_seconds=0.2
    )
    name = "SIGKILL" if more else "SIGTERM"
    assert {context.reason for context in result.contexts} == {f"lost ({name})"}
    assert list(result.set_aside) == ["a"]
    assert effects(tmp_path) == ["a", "a", "a"]
    assert result.repeated == ("a",)


def test_a_deadline_asks_everybody_to_hand_off(fleet, tmp_path):
    """No child is left, the items are, and the next call does them."""
    children = []
    start = spawner(tmp_path, "waits")

    def spawn(job):
        children.append(start(job))
        return children[-1]

    result = fleet.supervise(spawn, ITEMS, workers=2, deadline_seconds=2)
    assert result.stopped == "deadline"
    assert {context.reason for context in result.contexts} == {"returned"}
    assert all(child.returncode == 0 for child in children)
    counts = add_up(result)
    assert 0 < counts.claimed <= len(effects(tmp_path)) <= 2
    assert Fleet("job").supervise(spawner(tmp_path, "obey")).ok


def test_max_contexts_lets_those_that_run_end(fleet, tmp_path):
    """A budget, not an emergency."""
    result = fleet.supervise(spawner(tmp_path, "obey"), ITEMS, max_contexts=1)
    assert (result.stopped, len(result.contexts)) == ("max_contexts", 1)
    assert add_up(result).claimed == len(effects(tmp_path)) > 0


def test_items_can_be_added_while_it_runs(fleet, tmp_path):
    """From a handler of the fleet, a callback, or another process of the run."""

    @fleet.on("started")
    def add(event):
        fleet.add_items(["b"])

    def add_elsewhere(event):
        if event.name == "claimed" and "b" in event.items:
            code = "from ultramon import Fleet; Fleet('job').add_items(['a', 'c'])"
            subprocess.run([sys.executable, "-c", code], check=True)

    result = fleet.supervise(spawner(tmp_path, "obey"), ["a"], on_event=add_elsewhere)
    assert effects(tmp_path) == ["a", "b", "c"]
    assert add_up(result).claimed == 3


def test_a_process_whose_work_was_put_back_is_ended(fleet, tmp_path):
    """It began too late, and knows nothing of `worker`, which would have told it."""
    fleet.add_items(["a"])
    assigned = fleet._deliveries.assignments.event(
        "job.1", ["a"], 0, number=0, source="fleet:main", at=0.0, supervisor=name_holder()
    )
    lost = make_event("job", "job.1", "agent_lost", source="fleet:main", at=0.0, void=True)
    fleet.backend.append_events([assigned, lost])
    env = environment(fleet.env("job.1"), tmp_path)
    program = sys.modules[do.__module__].__file__
    late = subprocess.Popen([sys.executable, "-B", program, "lingers"], env=env)
    try:
        until(lambda: effects(tmp_path), late)
        assert fleet.supervise(spawner(tmp_path, "obey")).ok
        assert late.wait(60) == -signal.SIGTERM
    finally:
        late.kill()


def test_it_runs_in_any_thread(fleet, tmp_path):
    """Only the main one can be interrupted by a signal."""

    async def main():
        return await asyncio.to_thread(fleet.supervise, spawner(tmp_path, "obey"), ["a"])

    assert asyncio.run(main()).ok


def test_nothing_to_do_is_done_at_once(fleet):
    """No process is started for it."""
    assert fleet.supervise(lambda job: None).counts.assigned == 0


@pytest.mark.parametrize(
    ("items", "options", "message"),
    [
        ("one text", {}, "a list of items, not one text"),
        ([""], {}, "non-empty text or a path"),
        (["x" * 700_000], {}, "bytes as a plan stores it"),
        (["a"], {"workers": 0}, "workers"),
        (["a"], {"grace_seconds": float("nan")}, "grace_seconds"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(items, options, message, fleet):
    """With the value and what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        fleet.supervise(lambda job: None, items, **options)
    assert fleet.backend.events().events == []


def test_async_code_belongs_into_the_async_call(fleet):
    """The sync one could not await it."""

    async def spawn(job):
        pass

    with pytest.raises(TypeError, match="supervise_async"):
        fleet.supervise(spawn, ["a"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'worker'"):
        fleet.supervise(print, ["a"], worker=2)
    with pytest.raises(TypeError, match="either spawn or target"):
        fleet.supervise(items=["a"])


def test_a_spawn_that_returns_no_process_is_a_mistake(fleet):
    """Nobody could say when it ends."""
    with pytest.raises(TypeError, match="spawn returned NoneType: it has to return the process"):
        fleet.supervise(lambda job: None, ["a"])


def test_a_target_without_a_guard_is_refused(tmp_path):
    """Its process would supervise too, and stand by forever for the one that waits for it."""
    program = tmp_path / "unguarded.py"
    program.write_text(
        "from ultramon import Fleet\n"
        "def work(job): pass\n"
        "print(Fleet('unguarded').supervise(target=work, items=['a']))\n"
    )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=True
    )
    assert 'put the call below `if __name__ == "__main__":`' in done.stderr
    assert "0 of 1 claimed, 3 contexts" in done.stdout
    assert "broken_worker" in done.stdout


def test_a_callable_runs_in_a_process_of_its_own(fleet, tmp_path, monkeypatch):
    """It finds its work by the environment, like a program."""
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    result = fleet.supervise(target=run_by_target, items=ITEMS, workers=2)
    assert result.ok
    assert sorted(effects(tmp_path)) == sorted(ITEMS)


def test_in_an_event_loop_spawn_and_verify_may_be_coroutines(fleet, tmp_path):
    """Processes of asyncio, and a loop that continues meanwhile."""
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def spawn(job):
        env = environment(job.env, tmp_path)
        program = sys.modules[do.__module__].__file__
        return await asyncio.create_subprocess_exec(sys.executable, "-B", program, "obey", env=env)

    async def verify(item):
        await asyncio.sleep(0)
        return item in effects(tmp_path)

    async def main():
        ticking = asyncio.create_task(tick())
        try:
            return await fleet.supervise_async(spawn, ITEMS, workers=2, verify=verify)
        finally:
            ticking.cancel()

    result = asyncio.run(main())
    assert add_up(result).verified == len(ITEMS)
    assert sorted(effects(tmp_path)) == sorted(ITEMS)
    assert len(ticks) > 10


def test_a_cancelled_task_hands_off_and_is_cancelled(fleet, tmp_path):
    """No child is left behind, and nothing is lost."""
    children = []
    start = spawner(tmp_path, "waits")

    def spawn(job):
        children.append(start(job))
        return children[-1]

    async def main():
        running = asyncio.create_task(fleet.supervise_async(spawn, ITEMS))
        while not effects(tmp_path):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert [child.returncode for child in children] == [0]
    assert Fleet("job").supervise(spawner(tmp_path, "obey")).ok


@pytest.mark.parametrize("is_async", [False, True])
def test_ctrl_c_asks_all_agents_to_hand_off(is_async, tmp_path):
    """A terminal interrupts the whole group; the run continues with the next call."""
    process = start_orchestrator(
        tmp_path, "waits", ITEMS, verifies=False, workers=2, is_async=is_async
    )
    until(lambda: len(effects(tmp_path)) == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    result = json.loads(output)
    assert (process.returncode, result["stopped"]) == (0, "interrupted")
    assert {context["reason"] for context in result["contexts"]} == {"returned"}
    assert result["counts"]["claimed"] + result["counts"]["left"] == len(ITEMS)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    again = start_orchestrator(tmp_path, "obey", [], verifies=False)
    assert json.loads(again.communicate(timeout=60)[0])["ok"]
    assert set(effects(tmp_path)) == set(ITEMS)


def test_a_second_ctrl_c_ends_agents_that_do_not_return(tmp_path):
    """At once, and there is a result all the same."""
    process = start_orchestrator(
        tmp_path, "deaf", ITEMS, verifies=False, announce=True, workers=1, grace_seconds=600
    )
    until(lambda: effects(tmp_path), process)
    process.send_signal(signal.SIGINT)
    while (line := process.stdout.readline()) != "stopping\n":
        assert line
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    result = json.loads(output.splitlines()[-1])
    assert (process.returncode, result["stopped"]) == (0, "interrupted")
    assert [context["reason"] for context in result["contexts"]] == ["lost (SIGTERM)"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_verify_that_never_returns_keeps_nobody_from_ending(is_async, tmp_path):
    """Not the call, once agents have had their time, and not the program after it."""
    process = start_orchestrator(
        tmp_path, "obey", ["a"], hangs=True, grace_seconds=0.5, is_async=is_async
    )
    assert process.stdout.readline() == "verifying\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    result = json.loads(output.splitlines()[-1])
    assert (process.returncode, result["stopped"]) == (0, "interrupted")
    assert result["counts"]["claimed"] == 1
    again = start_orchestrator(tmp_path, "obey", [])
    assert json.loads(again.communicate(timeout=60)[0])["counts"]["verified"] == 1


def test_calls_are_made_by_as_many_threads_as_allowed():
    """Whatever a call raises is its answer, and one that is cancelled is not made."""
    threads = DaemonThreads(2)
    held, made = threading.Barrier(3), []

    def hold(name):
        held.wait(60)
        made.append(name)

    first, second, third, fourth = (threads.submit(hold, name) for name in "abcd")
    assert fourth.cancel()
    assert not any(future.done() for future in (first, second, third))
    held.wait(60)
    wait_for([first, second])
    held.abort()
    assert isinstance(third.exception(60), threading.BrokenBarrierError)
    assert sorted(made) == ["a", "b"]
    assert isinstance(threads.submit(sys.exit).exception(60), SystemExit)


def test_of_two_orchestrators_one_supervises(tmp_path):
    """The other stands by, and ends with the same result."""
    both = [start_orchestrator(tmp_path, "obey", ITEMS, workers=2) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    for result in results:
        # The one that stands by may have looked later.
        del result["done_earlier"], result["done_earlier_at"]
    assert results[0] == results[1]
    assert results[0]["counts"]["verified"] == len(ITEMS)
    assert sorted(effects(tmp_path)) == sorted(ITEMS)


def test_an_orchestrator_that_stands_by_takes_over(tmp_path):
    """The contexts of the one that was killed continue; no work is begun twice."""
    first = start_orchestrator(tmp_path, "waits", ITEMS, verifies=False)
    until(lambda: effects(tmp_path), first)
    second = start_orchestrator(tmp_path, "obey", [], verifies=False, deadline_seconds=3)
    first.kill()
    first.communicate()
    result = json.loads(second.communicate(timeout=60)[0])
    assert result["stopped"] == "deadline"
    assert [context["reason"] for context in result["contexts"]] == ["returned"]
    third = start_orchestrator(tmp_path, "obey", [])
    assert json.loads(third.communicate(timeout=60)[0])["ok"]
    assert sorted(effects(tmp_path)) == sorted(ITEMS)


def test_a_context_assigned_by_an_orchestrator_that_is_gone_is_put_back(fleet, tmp_path):
    """It was killed between the assignment and the start: no caller waits ten minutes for it."""
    fleet.add_items(["a"])
    event = fleet._deliveries.assignments.event(
        "job.1", ["a"], 0, number=0, source="fleet:main", at=0.0, supervisor=name_holder()
    )
    fleet.backend.append_events([event])
    result = fleet.supervise(spawner(tmp_path, "obey"))
    assert [context.reason for context in result.contexts] == [
        "lost (its orchestrator ended before it started)",
        "completed",
    ]
    assert effects(tmp_path) == ["a"]


def test_a_disabled_fleet_supervises_nothing(monkeypatch):
    """Every call is a no-op, and says so."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    result = Fleet("job").supervise(lambda job: None, ["a"])
    assert (result.stopped, result.left) == ("disabled", ("a",))


def test_a_file_name_that_is_no_text_is_an_item(fleet, tmp_path):
    """Linux allows any bytes; they come as lone surrogates and go through every record."""
    odd = os.fsdecode(b"caf\xe9.txt")
    result = fleet.supervise(spawner(tmp_path, "obey"), [odd, "b"], verify=done_in(tmp_path))
    assert result.ok
    assert effects(tmp_path) == [odd, "b"]


def test_what_on_event_raises_is_logged(fleet, tmp_path, caplog):
    """A broken display does not stop the job."""
    caplog.set_level(logging.WARNING)

    def draw(event):
        raise ValueError(event.name)

    assert fleet.supervise(spawner(tmp_path, "obey"), ["a"], on_event=draw).ok
    assert "ValueError: started" in caplog.text


def test_the_journal_alone_knows_what_became_of_the_items(fleet, tmp_path):
    """Also where every state has been deleted, nothing is done again."""
    fleet.supervise(spawner(tmp_path, "obey"), ["a", "b"])
    for agent in fleet.backend.list_agents("job"):
        (tmp_path / "state" / "subagents" / f"{agent.agent_id}.json").unlink()
    again = Fleet("job", backend=open_backend()).supervise(lambda job: None, ["a", "b"])
    assert again.counts.claimed == 2
