"""Alerts about agents of ultramon: epochs, restarts, silence, ends, the journal, many processes."""

import io
import json
import logging
import multiprocessing
import time

import pytest
from helpers.alert_project import Project, store_agent

from ultramon import (
    AgentState,
    ContextConfig,
    check_and_alert_context,
    check_context,
    create_context_monitor,
)
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.state.events import AlertEvent, parse_event
from ultramon.system.processes import this_machine
from ultramon.testing import FakeClock

AGENT = "scout-1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory without settings, and an agent that the environment names."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ULTRAMON_AGENT_ID", AGENT)


@pytest.fixture
def states(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def monitor(states, clock):
    """Starts monitors of one agent with a window of 1,000 tokens, on the clock."""
    backend = LocalBackend(str(states))
    config = ContextConfig(context_limit_tokens=1_000, on_error="raise")

    def start(**options):
        return create_context_monitor(
            AGENT, config, backend=backend, clock=clock, **options
        ).start()

    yield start
    backend.close()


def alerted(clock, **arguments):
    """Ask for an alert; return its status, None when there was none."""
    stream = io.StringIO()
    outcome = check_and_alert_context(stream=stream, clock=clock, **arguments)
    assert bool(stream.getvalue()) == outcome.alerted
    return outcome.status if outcome else None


def events(states):
    """The alerts in the journal."""
    backend = LocalBackend(str(states))
    found = [event for event in backend.events().events if event["type"] == "context_alert"]
    backend.close()
    return found


def test_a_new_epoch_is_told_anew(monitor, clock):
    """After a compaction the same status alerts again, even where usage never fell below it."""
    agent = monitor()
    agent.report_usage(input_tokens=720)
    assert [alerted(clock), alerted(clock)] == ["warning", None]
    agent.record_compaction(715)
    agent.report_usage(input_tokens=720)
    assert [alerted(clock), alerted(clock)] == ["warning", None]
    agent.report_usage(input_tokens=880)
    assert alerted(clock) == "caution"
    agent.stop()


def test_a_restart_is_not_told_again_and_a_new_life_is(monitor, clock):
    """The successor of a crashed process continues its epoch; one after an end begins another."""
    monitor().report_usage(input_tokens=720)
    assert alerted(clock) == "warning"
    second = monitor(takeover=True)
    assert alerted(clock) is None
    second.stop()
    third = monitor()
    third.report_usage(input_tokens=720)
    assert alerted(clock) == "warning"
    third.stop()


def test_an_id_that_begins_anew_is_told_anew(monitor, clock, states):
    """Also where its state was deleted by hand and the epochs count from one again."""
    first = monitor()
    first.report_usage(input_tokens=720)
    assert alerted(clock) == "warning"
    first.stop()
    for path in (states / "subagents").iterdir():
        path.unlink()
    clock.advance(60)
    second = monitor()
    second.report_usage(input_tokens=720)
    assert second.get_state().epoch == 1
    assert alerted(clock) == "warning"
    second.stop()


def test_the_agents_own_record_is_left_alone(monitor, clock, states):
    """Only the agent's process writes its state; the memory of alerts is another file."""
    agent = monitor()
    agent.report_usage(input_tokens=720)
    agent.update_heartbeat()
    path = states / "subagents" / f"{AGENT}.json"
    before = path.read_bytes()
    assert alerted(clock) == "warning"
    assert path.read_bytes() == before
    memory = json.loads((states / "alerts" / f"{AGENT}.json").read_text())
    assert (memory["level"], memory["filling"][0]) == ("warning", 1)
    state = AgentState.from_record(StateDirectory(str(states)).read(AGENT))
    assert state.announced.rungs == {"warning": 1}
    agent.stop()


@pytest.mark.parametrize(
    ("fields", "silent_seconds", "status", "alert"),
    [
        ({}, 0, "warning", "warning"),
        ({}, 45, "warning", "warning"),
        ({}, 46, "stale", "stale"),
        ({"heartbeat_interval_seconds": 60.0}, 180, "warning", "warning"),
        ({"heartbeat_interval_seconds": None}, 86_400, "warning", "warning"),
        ({"phase": "waiting"}, 3600, "warning", "warning"),
        ({"pid": 2**22 + 1}, 0, "stale", "stale"),
        ({}, -60, "stale", "stale"),
        ({"active": False, "outcome": "completed"}, 0, "stale", None),
        ({"usage_ratio": None, "context_limit": None}, 0, "stale", None),
    ],
)
def test_an_agent_is_judged_as_everywhere(states, clock, fields, silent_seconds, status, alert):
    """Silent beyond three intervals, gone or ahead: stale. Ended or unknown: nothing to say."""
    store_agent(states, AGENT, at=clock.now() - silent_seconds, **{"ratio": 0.72, **fields})
    outcome = check_context(clock=clock)
    assert outcome.status == status
    assert bool(outcome.reason) == (status == "stale")
    assert [alerted(clock), alerted(clock)] == [alert, None]


def test_silence_is_told_of_once_in_each_epoch(states, clock):
    """A filling that goes silent is news, even within the hour."""
    for epoch in (1, 2):
        store_agent(states, AGENT, 0.5, clock.now() - 60, epoch=epoch)
        assert [alerted(clock), alerted(clock)] == ["stale", None]


def test_an_agent_that_has_ended_is_not_looked_for_in_the_project(states, clock, tmp_path):
    """The project's files would be somebody else's."""
    store_agent(states, AGENT, 0.5, clock.now(), active=False, outcome="completed")
    project = Project(tmp_path / "project", clock, AGENT)
    project.write(96, AGENT)
    assert alerted(clock, directory=str(project.path)) is None


def test_a_state_that_cannot_be_read_is_a_line_in_the_log(states, clock, caplog):
    """Silent for the caller; the file stays as it is."""
    store_agent(states, AGENT, 0.72, clock.now())
    path = states / "subagents" / f"{AGENT}.json"
    path.write_bytes(path.read_bytes()[:-20])
    broken = path.read_bytes()
    with caplog.at_level(logging.DEBUG, logger="ultramon.alerts"):
        assert alerted(clock) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"no alert: StateCorruptError: {path}: not a complete state: the checksum is missing"
    ]
    assert path.read_bytes() == broken
    assert check_context(clock=clock).status == "stale"


def test_each_alert_is_an_event_with_its_facts(states, clock):
    """What was said, about which filling, after which command; read back as a typed event."""
    store_agent(states, AGENT, 0.72, clock.now(), run="audit", generation=3, epoch=2)
    for _ in range(2):
        alerted(clock, command="complete")
    clock.advance(1)
    alerted(clock, force=True)
    first, second = (parse_event(event) for event in events(states))
    assert isinstance(first, AlertEvent)
    assert (first.agent_id, first.session_id, first.run) == (AGENT, "session-1", "audit")
    assert (first.generation, first.epoch, first.level) == (3, 2, "warning")
    assert (first.usage_ratio, first.tokens, first.context_limit) == (0.72, 144_000, 200_000)
    assert (first.command, first.forced, first.directory) == ("complete", False, None)
    assert (second.command, second.forced) == (None, True)


def test_alerts_of_projects_are_events_too(states, clock, tmp_path, monkeypatch):
    """Of two projects with sessions of one name, too; the run is that of the environment."""
    monkeypatch.setenv("ULTRAMON_RUN", "nightly")
    for name in "ab":
        project = Project(tmp_path / name, clock, AGENT)
        project.write(72, AGENT)
        assert alerted(clock, directory=str(project.path)) == "warning"
        clock.advance(0.001)
    found = [parse_event(event) for event in events(states)]
    assert [event.directory for event in found] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert {(event.agent_id, event.run, event.epoch) for event in found} == {(AGENT, "nightly", 1)}


def test_a_fleet_passes_alerts_over(states, clock, ultramon_fleet):
    """They are no news for an orchestrator, and do not hold up what is."""
    backend = LocalBackend(str(states))
    store_agent(states, AGENT, 0.72, clock.now(), run="default")
    assert alerted(clock) == "warning"
    fleet = ultramon_fleet(run="default", backend=backend, clock=clock)
    heard = []
    for name in ("started", "prepare_handoff", "force_return", "handoff_ready", "ended"):
        fleet.on(name)(heard.append)
    fleet.poll()
    assert heard == []
    fleet.close()
    backend.close()


def test_pruning_an_agent_prunes_what_was_alerted(states, clock):
    """Its memory goes with its state; that of others stays."""
    for agent_id, active in ((AGENT, False), ("other", True)):
        store_agent(states, agent_id, 0.72, clock.now())
        assert alerted(clock, session=agent_id) == "warning"
        store_agent(states, agent_id, 0.72, clock.now(), active=active, outcome=None)
    backend = LocalBackend(str(states))
    later = clock.now() + 60
    for dry_run in (True, False):
        names = {path.name for path in (states / "alerts").iterdir()}
        assert names == {f"{a}.{s}" for a in (AGENT, "other") for s in ("json", "lock")}
        backend.prune(
            agents_before=later,
            events_before=0.0,
            now=later,
            machine=this_machine(),
            dry_run=dry_run,
        )
    assert {path.name for path in (states / "alerts").iterdir()} == {"other.json", "other.lock"}
    backend.close()


def test_an_alert_directory_that_others_may_write_is_not_used(states, clock, caplog):
    """The alert comes, is not remembered, and the log says why."""
    store_agent(states, AGENT, 0.72, clock.now())
    (states / "alerts").mkdir()
    (states / "alerts").chmod(0o777)
    with caplog.at_level(logging.DEBUG, logger="ultramon.alerts"):
        assert [alerted(clock), alerted(clock)] == ["warning", "warning"]
    assert "others may write to it" in caplog.records[0].getMessage()
    assert list((states / "alerts").iterdir()) == []


# --- several processes


ROUNDS = 20


def ask_each_round(barrier, answers, directory):
    """Ask as soon as everybody is ready, again and again."""
    for _ in range(ROUNDS):
        stream = io.StringIO()
        barrier.wait(timeout=60)
        outcome = check_and_alert_context(stream=stream, directory=directory)
        answers.put((outcome.alerted, bool(stream.getvalue())))


@pytest.mark.parametrize("kind", ["agent", "project"])
def test_of_four_processes_at_once_one_alerts(states, tmp_path, kind):
    """Twenty crossings, one alert each, and each in the journal."""
    context = multiprocessing.get_context("spawn")
    project = Project(tmp_path / "project", session=AGENT)
    states.mkdir(mode=0o700)
    barrier, answers = context.Barrier(5), context.Queue()
    arguments = (barrier, answers, str(project.path))
    processes = [context.Process(target=ask_each_round, args=arguments) for _ in range(4)]
    for process in processes:
        process.start()
    for epoch in range(1, ROUNDS + 1):
        if kind == "agent":
            store_agent(states, AGENT, 0.72, time.time(), epoch=epoch)
        else:
            (project.path / f".context-last-alert-{AGENT}").unlink(missing_ok=True)
            project.write(72, AGENT, at=time.time(), heartbeatIntervalSeconds=60)
        barrier.wait(timeout=60)
        said = [answers.get(timeout=60) for _ in processes]
        assert sorted(said) == [(False, False)] * 3 + [(True, True)]
    for process in processes:
        process.join()
    assert len(events(states)) == ROUNDS


def test_a_process_that_holds_the_memory_silences_the_others_for_a_moment(states, clock, caplog):
    """The holder alerts; a process that cannot wait for it stays silent, and nothing is lost."""
    from ultramon.alerts.memory import AlertFile

    store_agent(states, AGENT, 0.72, clock.now())
    with AlertFile(str(states), AGENT).locked():
        assert alerted(clock) is None
    assert alerted(clock) == "warning"
