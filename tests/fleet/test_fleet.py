"""The orchestrator's side: what a handler is called with, states, requests, environments."""

from __future__ import annotations

import asyncio

import pytest
from helpers.fleet_fixtures import agent_clock, clock, fleet_on, make, names  # noqa: F401 - fixtures

from ultramon import ConfigurationError, Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.opening import open_backend
from ultramon.errors import AgentNotFoundError
from ultramon.fleet.events import EVENT_NAMES
from ultramon.testing import fill, make_event


def started(make):
    make("a")


def prepare_handoff(make):
    fill(make("a"), 0.75)


def force_return(make):
    fill(make("a"), 0.9)


def handoff_ready(make):
    make("a").hand_off(notes="half way")


def ended(make):
    make("a").stop("failed")


def stale(make, fleet, clock, agent_clock):
    make("a", clock=agent_clock)
    clock.advance(46)


def recovered(make, fleet, clock, agent_clock):
    stale(make, fleet, clock, agent_clock)
    fleet.poll()
    agent_clock.advance(46)


def lost(make, fleet, clock, agent_clock):
    make("a", clock=agent_clock)
    clock.advance(601)


def no_progress(make):
    handoff = None
    for agent_id in ("a.1", "a.2", "a"):
        with make(agent_id, continues=handoff) as monitor:
            monitor.plan(["larger than the window"])
            handoff = monitor.hand_off()


SCENES = {
    scene.__name__: scene
    for scene in (
        prepare_handoff, force_return, handoff_ready, ended, stale, recovered, lost, started,
        no_progress,
    )
}  # fmt: skip


def play(name, make, fleet, clock, agent_clock):
    scene = SCENES[name]
    if name in ("stale", "recovered", "lost"):
        scene(make, fleet, clock, agent_clock)
    else:
        scene(make)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("name", EVENT_NAMES)
def test_every_name_reaches_its_handlers_once(name, kind, make, fleet_on, clock, agent_clock):
    """A handler is called once with the agent and its state, a coroutine is run to its end."""
    fleet, seen = fleet_on(), []
    if kind == "sync":
        fleet.on(name)(seen.append)
    else:

        @fleet.on(name)
        async def handle(event):
            await asyncio.sleep(0)
            seen.append(event)

    play(name, make, fleet, clock, agent_clock)
    assert name in names(fleet.poll())
    (event,) = [event for event in seen if event.agent_id == "a"]
    assert (event.name, event.state.agent_id, event.event.agent_id) == (name, "a", "a")
    assert fleet.poll() == []
    assert fleet.failures == []


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_in_a_running_loop_every_name_reaches_its_handlers(
    name, make, fleet_on, clock, agent_clock
):
    """`poll_async` awaits coroutines in the caller's loop and calls plain functions."""
    fleet, seen = fleet_on(), []
    fleet.on(name)(lambda event: seen.append(("sync", event.agent_id)))

    @fleet.on(name)
    async def handle(event):
        seen.append((asyncio.get_running_loop() is loops[0], event.agent_id))

    loops = []

    async def main():
        loops.append(asyncio.get_running_loop())
        return await fleet.poll_async()

    play(name, make, fleet, clock, agent_clock)
    assert name in names(asyncio.run(main()))
    assert [entry for entry in seen if entry[1] == "a"] == [("sync", "a"), (True, "a")]


def test_an_unknown_name_is_refused_with_the_known_ones():
    """A misspelt handler is an error when it is registered, not silence later."""
    with pytest.raises(ValueError, match="no event 'finished': choose one of prepare_handoff"):
        Fleet(backend="memory:").on("finished")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("poll_interval_seconds", 0), ("max_generations_without_progress", 0)],
)
def test_impossible_settings_are_refused(setting, value):
    """A fleet that could never work is not made."""
    with pytest.raises(ConfigurationError, match=setting):
        Fleet(backend="memory:", **{setting: value})


def test_a_fleet_sees_its_own_run_only(make, fleet_on):
    """Agents of another run neither are listed nor cause events."""
    make("mine", run="audit")
    make("theirs", run="other").stop()
    fleet = fleet_on("audit")
    assert [event.agent_id for event in fleet.poll()] == ["mine"]
    assert [state.agent_id for state in fleet.get_states()] == ["mine"]


def test_the_handoff_comes_with_what_its_agent_left(make, fleet_on):
    """A handler gets the record itself, bound to its backend: claiming it needs nothing else."""
    fleet = fleet_on()
    with make("a") as monitor:
        monitor.plan(["one", "two"])
        with monitor.task("one"):
            pass
        monitor.hand_off(notes="look at two")
    events = {event.name: event for event in fleet.poll()}
    handoff = events["handoff_ready"].handoff
    assert (handoff.completed, handoff.remaining) == (("one",), ("two",))
    handoff.claim("b")
    with pytest.raises(RuntimeError, match="b"):
        handoff.claim("c")
    assert events["ended"].outcome == "returned"
    assert not events["ended"].state.active


def test_a_printed_event_is_short(make, fleet_on):
    """A first handler prints what it is given; a whole state would hide what happened."""
    fleet = fleet_on()
    make("a").stop()
    printed = str(fleet.poll()[-1])
    assert printed.startswith("FleetEvent(name='ended', agent_id='a', ")
    assert len(printed) < 120


def test_an_agent_that_failed_says_with_what(make, fleet_on):
    """The error that ended an agent is in the `exit` of its `ended` event."""
    fleet = fleet_on()
    with pytest.raises(ZeroDivisionError), make("a"):
        _ = 1 / 0
    (event,) = [event for event in fleet.poll() if event.name == "ended"]
    cause = {"error": "ZeroDivisionError", "message": "ZeroDivisionError: division by zero"}
    assert (event.outcome, event.exit) == ("failed", cause)


def test_the_states_are_those_of_the_run_ended_ones_included(make, fleet_on, clock, agent_clock):
    """`get_states` lists all, `get_stale` those whose beats are overdue and no others."""
    fleet = fleet_on()
    make("alive")
    make("ended").stop()
    make("silent", clock=agent_clock)
    make("waiting", clock=agent_clock).waiting()
    agent_clock.advance(1)
    clock.advance(50)
    assert sorted(state.agent_id for state in fleet.get_states()) == [
        "alive", "ended", "silent", "waiting",
    ]  # fmt: skip
    assert [state.agent_id for state in fleet.get_stale()] == ["silent"]


def test_an_event_without_meaning_is_skipped(make, fleet_on, store, caplog):
    """What no ultramon wrote, or a newer one, does not keep later events back."""
    make("a")
    store.append_events(
        [
            make_event("a", "agent_stopped", occurredAt="yesterday"),
            make_event("a", "handoff_ready", handoff={"remaining": 7}),
            make_event("a", "something_new"),
            make_event("../a", "agent_stopped"),
        ]
    )
    make("b")
    fleet = fleet_on()
    assert [(event.name, event.agent_id) for event in fleet.poll()] == [
        ("started", "a"), ("ended", "../a"), ("started", "b"),
    ]  # fmt: skip
    assert caplog.text.count("is skipped") == 2
    assert fleet.poll() == []


def test_a_request_to_return_reaches_the_agent_on_its_next_look(make, fleet_on, clock):
    """The agent sees `should_return`; its handoff in time means that nothing expires."""
    fleet, monitor = fleet_on(), make("a")
    fleet.poll()
    fleet.request_return("a", deadline_seconds=10)
    clock.advance(1)
    assert monitor.get_threshold_action().should_return
    monitor.hand_off()
    clock.advance(60)
    assert names(fleet.poll()) == ["handoff_ready"]


def test_a_request_to_an_unknown_agent_is_refused(make, fleet_on):
    """Neither a stranger nor an agent of another run can be asked; a deadline is no past time."""
    make("theirs", run="other")
    make("mine")
    for agent_id in ("nobody", "theirs"):
        with pytest.raises(AgentNotFoundError, match=f"no agent {agent_id}: not in run default"):
            fleet_on().request_return(agent_id)
    with pytest.raises(ConfigurationError, match="deadline_seconds"):
        fleet_on().request_return("mine", deadline_seconds=-1)


def test_a_request_to_an_ended_agent_changes_nothing(make, fleet_on, store):
    """Its end may have crossed the request; a later agent of that name is not asked."""
    make("a").stop()
    fleet = fleet_on()
    fleet.request_return("a")
    assert store.get_request("a") is None
    assert names(fleet.poll()) == ["started", "ended"]


def test_a_child_gets_run_id_and_store_by_its_environment(fleet_on, store, monkeypatch):
    """`env` keeps what is there, names the agent, and makes an agent's own children its own."""
    monkeypatch.setenv("KEPT", "yes")
    environ = fleet_on("audit").env("child")
    assert environ["KEPT"] == "yes"
    assert environ["ULTRAMON_RUN"] == "audit"
    assert environ["ULTRAMON_AGENT_ID"] == "child"
    assert open_backend(environ["ULTRAMON_BACKEND"]).url == store.url
    assert "ULTRAMON_PARENT_ID" not in environ
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "boss")
    assert fleet_on("audit").env("child")["ULTRAMON_PARENT_ID"] == "boss"


def test_a_disabled_fleet_does_nothing(tmp_path, monkeypatch):
    """Under ULTRAMON_DISABLED no poll makes a file."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    fleet = Fleet(backend=LocalBackend(str(tmp_path / "none")))
    assert fleet.poll() == []
    assert not (tmp_path / "none").exists()
