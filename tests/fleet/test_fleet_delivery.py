"""How a fleet reads on: cursors, leases, handlers that raise, run and watch, idle chains."""

from __future__ import annotations

import asyncio
import threading

import pytest
from helpers.fleet_fixtures import agent_clock, clock, fleet_on, make, names  # noqa: F401 - fixtures

from ultramon import Fleet
from ultramon.fleet.consumer import LEASE_SECONDS
from ultramon.testing import capture_signals, fill


def test_a_consumer_made_anew_goes_on_behind_its_cursor(make, fleet_on):
    """What was acknowledged under a name does not come again, what came meanwhile does."""
    first = fleet_on()
    monitor = make("a")
    assert names(first.poll()) == ["started"]
    first.close()
    monitor.stop()
    assert names(fleet_on().poll()) == ["ended"]


def test_what_is_not_acknowledged_comes_again(make, fleet_on):
    """A fleet that ends within a handler leaves its event to the next one."""
    make("a")
    first = fleet_on()

    @first.on("started")
    def interrupted(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.poll()
    first.close()
    assert names(fleet_on().poll()) == ["started"]


def test_leaving_a_watch_redelivers_the_event_in_hand(make, fleet_on):
    """Asking for the next event acknowledges the last one, and nothing else does."""
    make("a")
    make("b")
    make("c")
    seen = []
    for event in fleet_on().watch():
        seen.append(event.agent_id)
        if len(seen) == 2:
            break
    assert seen == ["a", "b"]
    assert [event.agent_id for event in fleet_on().poll()] == ["b", "c"]


def test_of_two_fleets_with_one_name_one_stands_by(make, fleet_on, clock):
    """The second takes over when the lease of the first expires, behind what that one did."""
    first, second = fleet_on(), fleet_on()
    make("a")
    assert [names(fleet.poll()) for fleet in (first, second)] == [["started"], []]
    monitor = make("b")
    clock.advance(LEASE_SECONDS - 1)
    assert second.poll() == []
    clock.advance(1)
    assert [event.agent_id for event in second.poll()] == ["b"]
    monitor.stop()
    assert first.poll() == []
    assert names(second.poll()) == ["ended"]


def test_a_closed_fleet_makes_room_at_once(make, fleet_on):
    """`close` gives the name up without waiting for the lease."""
    first, second = fleet_on(), fleet_on()
    first.poll()
    make("a")
    first.close()
    assert names(second.poll()) == ["started"]


def test_a_fleet_that_slept_through_its_lease_goes_on_where_the_other_one_stopped(
    make, fleet_on, clock
):
    """It neither delivers again what another fleet did, nor sets that one's cursor back."""
    first, second = fleet_on(), fleet_on()
    make("a")
    first.poll()
    clock.advance(LEASE_SECONDS)
    make("b")
    assert len(second.poll()) == 1
    second.close()
    make("c")
    assert [event.agent_id for event in first.poll()] == ["c"]


def test_fleets_with_two_names_both_get_everything(make, fleet_on, clock, agent_clock):
    """Each consumer has a cursor of its own; verdicts are noticed twice and stored once."""
    fleets = fleet_on(), fleet_on(consumer="dashboard")
    make("a", clock=agent_clock)
    clock.advance(46)
    seen = [names(fleet.poll()) for fleet in fleets]
    agent_clock.advance(46)
    seen += [names(fleet.poll()) for fleet in fleets]
    assert seen == [["started", "stale"], ["started", "stale"], ["recovered"], ["recovered"]]


def test_verdicts_are_told_as_signals_once_in_a_process(make, fleet_on, clock, agent_clock):
    """Two fleets and two polls of a process make one signal of one verdict."""
    fleets = fleet_on(), fleet_on(consumer="dashboard")
    make("a", clock=agent_clock)
    clock.advance(46)
    with capture_signals() as seen:
        for fleet in (*fleets, *fleets):
            fleet.poll()
    assert [name for name, _ in seen] == ["agent_stale"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_raises_hurts_nobody(kind, make, fleet_on, caplog):
    """Its error is logged and kept with its event, the others are called, the event is done."""
    fleet, seen = fleet_on(), []
    if kind == "sync":

        @fleet.on("started")
        def broken(event):
            raise LookupError("not here")
    else:

        @fleet.on("started")
        async def broken(event):
            raise LookupError("not here")

    fleet.on("started")(seen.append)
    make("a")
    make("b")
    assert names(fleet.poll()) == ["started", "started"]
    assert [event.agent_id for event in seen] == ["a", "b"]
    assert [(event.agent_id, str(error)) for event, error in fleet.failures] == [
        ("a", "not here"),
        ("b", "not here"),
    ]
    assert "handler of started for agent a raised" in caplog.messages
    fleet.close()
    assert fleet_on().poll() == []


def test_run_ends_after_the_poll_in_which_a_handler_calls_stop(make, fleet_on):
    """What that poll found is delivered; then the name is free for another fleet."""
    fleet, seen = fleet_on(), []
    make("a")
    make("b")

    @fleet.on("started")
    def handle(event):
        seen.append(event.agent_id)
        fleet.stop()

    fleet.run()
    assert seen == ["a", "b"]
    make("c")
    assert [event.agent_id for event in fleet_on().poll()] == ["c"]


def test_run_async_ends_when_a_handler_calls_stop(make, fleet_on):
    """Handlers run in the loop that runs the fleet."""
    fleet, seen = fleet_on(), []
    make("a")

    @fleet.on("started")
    async def handle(event):
        await asyncio.sleep(0)
        seen.append(event.agent_id)
        fleet.stop()

    asyncio.run(fleet.run_async())
    assert seen == ["a"]


def test_run_async_can_be_cancelled(make, fleet_on):
    """Cancellation does not wait for the interval, and frees the name."""
    fleet = fleet_on(poll_interval_seconds=3600.0)
    make("a")

    async def main():
        handled = asyncio.Event()
        fleet.on("started")(lambda event: handled.set())
        task = asyncio.create_task(fleet.run_async())
        await handled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    make("b")
    assert fleet_on().poll()[-1].agent_id == "b"


def test_watch_goes_on_from_event_to_event(make, fleet_on):
    """What a step of the loop causes is the next event, without any interval in between."""
    fleet, seen = fleet_on(poll_interval_seconds=3600.0), []
    monitor = make("a")
    for event in fleet.watch():
        seen.append(event.name)
        if event.name == "started":
            fill(monitor, 0.9)
        elif event.name == "force_return":
            monitor.hand_off()
            monitor.stop("returned")
        elif event.name == "ended":
            fleet.stop()
    assert seen == ["started", "force_return", "handoff_ready", "ended"]


def test_watch_is_an_async_iterator_too(make, fleet_on):
    """The same events in a loop, which is free meanwhile."""
    fleet, seen = fleet_on(poll_interval_seconds=3600.0), []
    monitor = make("a")

    async def main():
        async for event in fleet.watch():
            seen.append(event.name)
            if event.name == "ended":
                fleet.stop()
            else:
                await asyncio.to_thread(monitor.stop)

    asyncio.run(main())
    assert seen == ["started", "ended"]


def test_an_event_of_another_thread_wakes_a_fleet_that_rests(make, store):
    """A running fleet delivers at once, however long its interval."""
    fleet = Fleet(backend=store, poll_interval_seconds=3600.0)
    polled, seen = threading.Event(), []

    @fleet.on("started")
    def handle(event):
        seen.append(event.agent_id)
        polled.set()
        if event.agent_id == "b":
            fleet.stop()

    make("a")
    thread = threading.Thread(target=fleet.run)
    thread.start()
    assert polled.wait(30)
    make("b")
    thread.join(30)
    assert seen == ["a", "b"]


def chain(make, completing=()):
    """Run agents that hand over to each other; return nothing, the fleet tells."""
    handoff = None
    for number in range(5):
        with make(f"a.{number}", continues=handoff) as monitor:
            monitor.plan([f"item-{item}" for item in range(9)] if handoff is None else [])
            if number in completing:
                monitor.complete_task(monitor.pending()[0])
            handoff = monitor.hand_off()


@pytest.mark.parametrize(
    ("limit", "completing", "stopped_at"),
    [
        (3, (), ["a.2", "a.3", "a.4"]),
        (1, (), ["a.0", "a.1", "a.2", "a.3", "a.4"]),
        (3, (0, 1, 2, 3, 4), []),
        (3, (1,), ["a.4"]),
        (3, (2,), []),
        (2, (2,), ["a.1", "a.4"]),
    ],
)
def test_a_chain_that_completes_nothing_is_not_handed_on(
    limit, completing, stopped_at, make, fleet_on
):
    """The last of so many idle agents in a row gets `no_progress` instead of `handoff_ready`."""
    fleet = fleet_on(max_generations_without_progress=limit)
    chain(make, completing)
    told = ("handoff_ready", "no_progress")
    events = [event for event in fleet.poll() if event.name in told]
    assert [event.agent_id for event in events] == [f"a.{number}" for number in range(5)]
    assert [event.agent_id for event in events if event.name == "no_progress"] == stopped_at


def test_a_redelivered_handoff_counts_once(make, fleet_on):
    """A handler that was killed with a handoff in hand does not make a chain look idler."""
    first = fleet_on()
    with make("a") as monitor:
        monitor.plan(["one"])
        monitor.hand_off()
    for _ in range(5):
        for event in first._deliveries.step():
            if event.name == "handoff_ready":
                break
        assert event.name == "handoff_ready"
