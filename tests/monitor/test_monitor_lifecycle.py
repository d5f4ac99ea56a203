"""The lifecycle of an agent: names, starts, ends, and the verbs of each phase. Real monitors."""

import os
from contextlib import nullcontext

import pytest

import ultramon
from ultramon import (
    AgentState,
    ConfigurationError,
    ContextConfig,
    ContextMonitor,
    create_context_monitor,
    detect_threshold,
    signals,
)
from ultramon.backends.opening import open_backend
from ultramon.errors import InvalidAgentIdError, LifecycleError
from ultramon.testing import FakeClock, fill

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def kinds(store, *members):
    """The types of all stored events, with some of their members."""
    events = store.events().events
    if not members:
        return [event["type"] for event in events]
    return [(event["type"], *(event[member] for member in members)) for event in events]


def stored(store, agent_id="scout-1"):
    return store.load(agent_id).record


def test_names_come_from_the_environment(monkeypatch, ultramon_backend, ultramon_clock):
    """A child process needs no arguments: id, run and parent are inherited; arguments win."""
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "scout-7")
    monkeypatch.setenv("ULTRAMON_RUN", "audit")
    monkeypatch.setenv("ULTRAMON_PARENT_ID", "lead-1")
    near = {"backend": ultramon_backend, "clock": ultramon_clock}
    state = create_context_monitor(**near).get_state()
    assert (state.agent_id, state.run, state.parent_id) == ("scout-7", "audit", "lead-1")
    state = create_context_monitor("a", run="b", parent_id="c", **near).get_state()
    assert (state.agent_id, state.run, state.parent_id) == ("a", "b", "c")


def test_without_a_name_one_is_made_up(ultramon_monitor):
    """Two monitors without an id are two agents, in the run `default`."""
    first, second = ultramon_monitor(), ultramon_monitor()
    assert first.agent_id != second.agent_id
    assert (first.get_state().run, first.get_state().parent_id) == ("default", None)


@pytest.mark.parametrize("names", [{"agent_id": "../x"}, {"run": "a/b"}, {"parent_id": "a b"}])
def test_names_that_cannot_be_file_names_are_refused(names):
    """Ids are refused before anything is created."""
    with pytest.raises(InvalidAgentIdError):
        create_context_monitor(**names)


@pytest.mark.parametrize("name", ["agent_id", "run", "parent_id"])
def test_an_empty_name_is_refused(monkeypatch, ultramon_backend, name):
    """Empty is no way to say none; an empty variable is one that is not set."""
    with pytest.raises(InvalidAgentIdError, match="is not allowed: it is empty"):
        create_context_monitor(**{name: ""}, backend=ultramon_backend)
    monkeypatch.setenv(f"ULTRAMON_{name.upper()}", "")
    create_context_monitor(backend=ultramon_backend)


@pytest.mark.parametrize(
    ("given", "variables", "message"),
    [
        ({"run": "a b"}, {}, "run 'a b' is not allowed"),
        ({"parent_id": "a b"}, {}, "parent_id 'a b' is not allowed"),
        ({}, {"ULTRAMON_RUN": "a b"}, "ULTRAMON_RUN 'a b' is not allowed"),
        ({}, {"ULTRAMON_AGENT_ID": "a b"}, "ULTRAMON_AGENT_ID 'a b' is not allowed"),
        ({}, {"ULTRAMON_NOTIFY": "boss"}, r"notify='boss' \(from ULTRAMON_NOTIFY\) is not"),
        ({"notify": ""}, {}, r"notify='' \(from argument\) is not allowed: must be None, self"),
        ({}, {"ULTRAMON_NOTIFY": "parent"}, r"\(from ULTRAMON_NOTIFY\) .* given with a parent_id"),
    ],
)
def test_a_refusal_names_what_was_given_and_where(monkeypatch, given, variables, message):
    """An error about a run does not speak of an agent id, and a variable is no argument."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        create_context_monitor(**given)


def test_the_class_makes_what_the_factory_makes(ultramon_backend, ultramon_clock):
    """Who guesses the class and who reads the docs get the same monitor."""
    near = {"backend": ultramon_backend, "clock": ultramon_clock, "run": "audit"}
    assert create_context_monitor is ContextMonitor
    with ContextMonitor("a1", ContextConfig(context_limit_tokens=1000), **near) as monitor:
        state = monitor.get_state()
    assert (state.agent_id, state.run, state.context_limit) == ("a1", "audit", 1000)


def test_a_dict_as_configuration_names_the_class(ultramon_backend):
    """The error shows how the same settings are given."""
    given = {"context_limit_tokens": 1000, "model": "gpt-5"}
    wanted = r"config=.*a ContextConfig: ContextConfig\(context_limit_tokens=\.\.\., model=\.\.\.\)"
    with pytest.raises(ConfigurationError, match=wanted):
        ContextMonitor("a1", given, backend=ultramon_backend)
    with pytest.raises(ConfigurationError, match="a ContextConfig"):
        detect_threshold(0.5, given)


def test_names_that_people_guess_are_there():
    """The signal is importable from the root, and two types under their names elsewhere."""
    assert ultramon.context_threshold_reached is signals.context_threshold_reached
    assert ultramon.ThresholdLevel is ultramon.Level
    assert ultramon.SubagentContextState is AgentState


def test_the_state_of_an_ended_agent_does_not_move(make, store, ultramon_clock):
    """It was alive until its end, whenever it is read."""
    monitor = make("scout-1", **LIMIT)
    ultramon_clock.advance(1)
    monitor.stop()
    before = monitor.get_state()
    ultramon_clock.advance(100)
    assert monitor.get_state() == before
    assert before.last_heartbeat == before.last_activity
    assert before == AgentState.from_record(stored(store))


def test_the_default_backend_is_the_state_directory(tmp_path, ultramon_clock):
    """Without a backend the state lies where ULTRAMON_STATE_DIR says."""
    with create_context_monitor("scout-1", clock=ultramon_clock):
        assert (tmp_path / "state" / "subagents" / "scout-1.json").is_file()
    open_backend().close()


def test_a_start_is_stored_before_it_is_told(make, store, ultramon_signals):
    """Others can read a started agent, with the facts it was given about itself."""
    make("scout-1", label="reads the docs", session_id="s-1", model="gpt-4.1", grace_seconds=9)
    record = stored(store)
    assert (record.active, record.phase, record.generation, record.epoch) == (True, "working", 1, 1)
    assert (record.label, record.session_id, record.model) == ("reads the docs", "s-1", "gpt-4.1")
    assert (record.pid, record.cwd, record.grace_seconds) == (os.getpid(), os.getcwd(), 9)
    ((name, event),) = ultramon_signals
    assert (name, event.agent_id, event.generation) == ("agent_started", "scout-1", 1)


def test_a_crossing_is_told_after_it_was_stored(make, store):
    """A receiver of the signal finds the new level in the store."""
    seen = []

    def receive(sender, event):
        seen.append((sender, event.level, stored(store).threshold_status))

    with signals.context_threshold_reached.connected_to(receive):
        fill(make("scout-1", **LIMIT), 0.72)
    assert seen == [("scout-1", "warning", "warning")]


def test_a_receiver_that_raises_hurts_nobody(make, caplog):
    """The agent's turn and the other receivers continue; the log names the receiver."""
    seen = []

    def broken(sender, event):
        raise RuntimeError("not the agent's fault")

    def healthy(sender, event):
        seen.append(event.level)

    with (
        signals.context_threshold_reached.connected_to(broken),
        signals.context_threshold_reached.connected_to(healthy),
    ):
        assert fill(make("scout-1", **LIMIT), 0.72).level == "warning"
    assert seen == ["warning"]
    assert "broken" in caplog.text


@pytest.mark.parametrize(
    ("error", "outcome", "cause"),
    [
        (None, "completed", None),
        (ValueError("x"), "failed", {"error": "ValueError", "message": "ValueError: x"}),
        (KeyboardInterrupt(), "cancelled", None),
        (GeneratorExit(), "cancelled", None),
        (SystemExit(3), "failed", {"error": "SystemExit", "message": "SystemExit: 3"}),
    ],
)
def test_leaving_the_block_ends_the_agent(make, store, error, outcome, cause):
    """The way a block is left is the outcome; the exception is raised further."""
    monitor = make("scout-1")
    with nullcontext() if error is None else pytest.raises(type(error)), monitor:
        if error is not None:
            raise error
    record = stored(store)
    assert (record.active, record.outcome, record.exit) == (False, outcome, cause)
    assert kinds(store)[-1] == "agent_stopped"
    assert store.events().events[-1]["outcome"] == outcome


def test_leaving_the_block_after_a_handoff_is_a_return(make, store):
    """An agent that handed off has returned, and not completed."""
    with make("scout-1") as monitor:
        monitor.hand_off()
    assert stored(store).outcome == "returned"


def test_an_outcome_given_in_the_block_stays(make, store):
    """A stop inside the block is final; leaving the block says nothing more."""
    with make("scout-1") as monitor:
        monitor.stop("expired")
        monitor.stop("failed")
    assert stored(store).outcome == "expired"
    assert kinds(store).count("agent_stopped") == 1


def test_an_unknown_outcome_is_refused(make):
    """The agent is still active after a refused stop."""
    monitor = make("scout-1")
    with pytest.raises(ValueError, match="no outcome 'done': choose one of completed, returned"):
        monitor.stop("done")
    assert monitor.get_state().active


CALLS = {
    "track_content": lambda monitor: monitor.track_content("x"),
    "report_usage": lambda monitor: monitor.report_usage(input_tokens=1),
    "report_response": lambda monitor: monitor.report_response(None),
    "report_overflow": lambda monitor: monitor.report_overflow("x"),
    "fits": lambda monitor: monitor.fits(1),
    "record_compaction": lambda monitor: monitor.record_compaction(),
    "clear": lambda monitor: monitor.clear(),
    "waiting": lambda monitor: monitor.waiting(),
    "working": lambda monitor: monitor.working(),
    "update_heartbeat": lambda monitor: monitor.update_heartbeat(),
    "task": lambda monitor: monitor.task("x").__enter__(),
    "set_current_task": lambda monitor: monitor.set_current_task("x"),
    "complete_task": lambda monitor: monitor.complete_task("x"),
    "step": lambda monitor: monitor.step("x", item="y"),
    "hand_off": lambda monitor: monitor.hand_off(),
}
SETTINGS = {
    "plan": lambda monitor: monitor.plan(["x"]),
    "set_tasks_total": lambda monitor: monitor.set_tasks_total(3),
    "set_model": lambda monitor: monitor.set_model("gpt-4.1"),
    "set_host_limits": lambda monitor: monitor.set_host_limits(trigger_tokens=9_000),
}


@pytest.mark.parametrize("verb", [*CALLS, "stop"])
def test_before_the_start_only_settings_are_allowed(ultramon_backend, verb):
    """A verb of a running agent names itself, the phase and what is allowed now."""
    monitor = create_context_monitor("scout-1", backend=ultramon_backend)
    with pytest.raises(LifecycleError) as caught:
        CALLS.get(verb, lambda monitor: monitor.stop())(monitor)
    assert (caught.value.phase, caught.value.verb) == ("created", verb)
    assert "start" in caught.value.allowed
    for setting in SETTINGS.values():
        setting(monitor)


@pytest.mark.parametrize("verb", [*CALLS, *SETTINGS, "start"])
def test_after_the_end_only_reads_are_allowed(make, verb):
    """An ended agent can be read and stopped again, nothing else."""
    monitor = make("scout-1")
    monitor.stop()
    with pytest.raises(LifecycleError) as caught:
        {**CALLS, **SETTINGS, "start": lambda monitor: monitor.start()}[verb](monitor)
    assert (caught.value.agent_id, caught.value.phase) == ("scout-1", "ended")
    assert not monitor.get_state().active
    assert str(monitor.explain()).startswith("agent scout-1")
    assert (monitor.get_threshold_action().level, monitor.pending()) == ("unknown", [])


def test_disabled_stores_and_tells_nothing(monkeypatch, tmp_path, ultramon_signals):
    """With ULTRAMON_DISABLED the agent's code runs as before: levels and plan, and no trace."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    with create_context_monitor("scout-1", ContextConfig(**LIMIT)) as monitor:
        monitor.plan(["a", "b"])
        for item in monitor.pending():
            with monitor.task(item):
                pass
        assert fill(monitor, 0.9).should_return
        record = monitor.hand_off(notes="n")
        monitor.update_heartbeat()
    assert (record.completed, record.reason) == (("a", "b"), "threshold_critical")
    assert monitor.get_state().outcome == "returned"
    assert ultramon_signals == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0", "false", "no"])
def test_not_disabled(monkeypatch, ultramon_backend, value):
    """Values that mean no leave the monitor on."""
    monkeypatch.setenv("ULTRAMON_DISABLED", value)
    clock = FakeClock()
    create_context_monitor("scout-1", backend=ultramon_backend, clock=clock).start()
    assert stored(ultramon_backend).active
