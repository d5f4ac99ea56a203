"""What holds for the adapters of all frameworks, below any of them."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from ultramon import ConfigurationError, ContextConfig
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations import adapter, current_monitor
from ultramon.integrations.adapter import IDLE_SECONDS, SILENT_SECONDS, Adapter
from ultramon.state.pins import Pin, Pins


@pytest.fixture
def choices(ultramon_backend, ultramon_clock):
    config = ContextConfig(context_window_tokens=100_000, on_error="raise")
    return {"config": config, "backend": ultramon_backend, "clock": ultramon_clock}


def outcomes(backend):
    return sorted(str(agent.record.outcome) for agent in backend.list_agents())


def used(tokens):
    return {"input_tokens": tokens, "output_tokens": 1}


def test_an_agent_that_cannot_be_started_runs_unwatched(choices, monkeypatch, caplog):
    """A failure of monitoring is a warning, and every later call of the adapter does nothing."""
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "only-one")
    caplog.set_level(logging.WARNING, "ultramon.integrations")
    first = Adapter("Test", **choices).begin()
    second = Adapter("Test", **choices).begin()
    assert first.monitor.agent_id == "only-one"
    assert second.monitor is None
    assert "a run of Test is not watched: agent only-one is already running" in caplog.text
    assert second.before_call("gpt-4.1") is None
    second.after_call(used(99_000))
    second.tool_returned("text", "read")
    second.compacted()
    with second.inside():
        assert current_monitor() is None
    assert not second.should_end
    assert first.monitor.get_state().estimated_tokens == 0


def test_conversations_that_are_left_end_and_those_in_work_do_not(choices, ultramon_backend):
    """Idle ones as completed, failed runs as failed; a call that is long is no end for an hour."""
    watched, clock = Adapter("Test", **choices), choices["clock"]
    resting, failed, working = (watched.begin() for _number in range(3))
    for agent in (resting, failed, working):
        agent.before_call()
    resting.after_call(used(1_000))
    watched.finish(resting, goes_on=True)
    failed.failed(ValueError("no"))
    clock.advance(IDLE_SECONDS)
    watched.begin()
    assert outcomes(ultramon_backend) == ["None", "None", "completed", "failed"]
    clock.advance(SILENT_SECONDS - IDLE_SECONDS)
    assert working in watched.agents
    watched.begin()
    assert working not in watched.agents


def test_the_facts_are_said_once_for_each_level_and_again_after_a_compaction(choices):
    """Upward only; a new epoch says them anew, a return to the rung's lower side does not."""
    agent = Adapter("Test", tell=True, **choices).begin()
    said = []
    for tokens in (10_000, 71_000, 72_000, 86_000, 75_000, 87_000, None, 72_000):
        choices["clock"].advance(1)
        if tokens is None:
            agent.compacted()
        else:
            agent.after_call(used(tokens))
        said.append(agent.before_call() is not None)
    assert said == [False, True, False, True, False, True, False, True]


def test_a_return_that_an_orchestrator_asks_for_is_said_too(choices, ultramon_fleet):
    """Below every level a request to return reaches the agent with its next call."""
    agent = Adapter("Test", tell=True, on_return="stop", **choices).begin()
    agent.after_call(used(10_000))
    assert agent.before_call() is None
    ultramon_fleet().request_return(agent.monitor.agent_id)
    agent.monitor._writer.check_request()
    assert agent.before_call() is not None
    assert agent.should_end
    assert agent.hand_off().reason == "cancelled"


def test_what_a_process_leaves_open_ends_with_it(choices, ultramon_backend):
    """An interpreter that ends closes every adapter: its agents are not lost."""
    watched = Adapter("Test", **choices)
    agent = watched.begin()
    agent.before_call()
    agent.after_call(used(1_000))
    adapter._close_all()
    assert outcomes(ultramon_backend) == ["completed"]
    assert watched.agents == []


def test_a_given_monitor_must_be_active(choices, ultramon_monitor, caplog):
    """An ended monitor watches nothing, and the log says which."""
    monitor = ultramon_monitor("mine")
    monitor.stop()
    assert Adapter("Test", monitor).begin().monitor is None
    assert "<ContextMonitor mine ended>" in caplog.text


@pytest.mark.parametrize("given", [ContextConfig(), "agent-1", Adapter])
def test_only_a_monitor_is_taken_as_the_monitor(given):
    """The first argument is easily taken for the configuration or an id."""
    with pytest.raises(ConfigurationError, match=r"monitor='.*' .* must be a ContextMonitor"):
        Adapter("a framework", given, label="scout")


def test_a_compaction_stores_what_was_done_and_gives_pinned_rules_back(tmp_path, choices):
    """The record is that of the epoch that ends; the rules are in each request from then on."""
    backend = LocalBackend(str(tmp_path))
    pins = Pins(str(tmp_path))
    agents = [
        Adapter("Test", pins=True, keeps_texts=keeps, **{**choices, "backend": backend}).begin()
        for keeps in (False, True)
    ]
    for agent in agents:
        pins.add(Pin(agent.monitor.agent_id, "Never push.", None), is_session=True)
        agent.monitor.plan(["a", "b"])
        agent.monitor.complete_task("a")
        agent.after_call(used(60_000))
        assert agent.before_call() is None
        agent.compacted()
    said = [[agent.before_call() for _number in range(2)] for agent in agents]
    rule = "Rules that the user has pinned, word for word:\n1. Never push."
    assert said == [[rule, rule], [rule, None]]
    stored = [one for one in backend.events(limit=100).events if one["type"] == "checkpoint_stored"]
    assert [one["handoff"]["completed"] for one in stored] == [["a"], ["a"]]
    assert all(one["epoch"] == 1 and one["handoff"]["tokens"] >= 60_000 for one in stored)
    assert all(agent.monitor.get_state().handoff is None for agent in agents)
    backend.close()


def test_without_the_choice_nobody_reads_pins(tmp_path, choices):
    """Adapters observe; a store without a directory has no pins either."""
    backend = LocalBackend(str(tmp_path))
    agent = Adapter("Test", **{**choices, "backend": backend}).begin()
    Pins(str(tmp_path)).add(Pin(agent.monitor.agent_id, "Never push.", None), is_session=True)
    agent.compacted()
    assert agent.before_call() is None
    assert agent.monitor.pinned_rules().endswith("1. Never push.")
    other = Adapter("Test", pins=True, **choices).begin()
    other.compacted()
    assert other.before_call() is None
    (tmp_path / "pins.json").write_text("{")
    assert agent.monitor.pinned_rules().startswith("The pinned rules cannot be read")
    backend.close()


CONTINUE = """
import sys
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations.adapter import Adapter

watched = Adapter("Test", backend=LocalBackend(sys.argv[1]))
agent = watched.begin(watched.conversation_id("c"))
print(agent.monitor.get_state().estimated_tokens)
agent.before_call()
agent.after_call({"input_tokens": int(sys.argv[2]), "output_tokens": 1})
watched.finish(agent, goes_on=True)
"""


def continue_elsewhere(folder, tokens):
    """Continue the conversation in another process, to its end; return the reading it found."""
    command = [sys.executable, "-c", CONTINUE, str(folder), str(tokens)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_conversation_goes_on_in_other_processes(tmp_path):
    """It is one agent with its last reading, while one waits with it and after that one's end."""
    backend = LocalBackend(tmp_path)
    watched = Adapter("Test", backend=backend)
    agent_id = watched.conversation_id("c")
    agent = watched.begin(agent_id)
    agent.before_call()
    agent.after_call(used(10_000))
    watched.finish(agent, goes_on=True)
    assert continue_elsewhere(tmp_path, 20_000) == 10_000
    assert continue_elsewhere(tmp_path, 30_000) == 20_000
    back = watched.begin(agent_id)
    assert back is not agent
    assert back.monitor.get_state().estimated_tokens == 30_000
    assert not back.should_end
    assert watched.agents == [back]
    watched.close()
    (stored,) = backend.list_agents()
    assert (stored.record.outcome, stored.record.epoch) == ("completed", 1)


def test_a_conversation_at_work_is_not_taken_away(choices):
    """A run that comes meanwhile is unwatched, or an agent of its own where that is asked for."""
    first, second = Adapter("Test", **choices), Adapter("Test", **choices)
    agent_id = first.conversation_id("c")
    working = first.begin(agent_id)
    assert second.begin(agent_id).monitor is None
    for watched in (first, second):
        other = watched.begin(agent_id, alone=True)
        assert other.monitor.agent_id != agent_id
    assert working.active


def test_a_conversation_is_named_by_run_framework_and_all_its_names(choices, monkeypatch):
    """Whatever the names hold, two conversations never share an id; the same one keeps it."""
    named = [("a", "b"), ("ab",), ("a", "b", ""), ("a\ud800",)]
    ids = {Adapter("Test", **choices).conversation_id(*names) for names in named}
    ids.add(Adapter("Other", **choices).conversation_id("a", "b"))
    ids.add(Adapter("Test", run="audit", **choices).conversation_id("a", "b"))
    assert len(ids) == 6
    monkeypatch.setenv("ULTRAMON_RUN", "audit")
    assert Adapter("Test", **choices).conversation_id("a", "b") in ids


def test_objects_made_for_each_turn_hold_no_conversation_that_ended(choices):
    """The next turn of any of them ends what others have left idle, and lets them go."""
    made = []
    for number in range(20):
        watched = Adapter("Test", **choices)
        watched.finish(watched.begin(f"c{number}"), goes_on=True)
        made.append(watched)
    choices["clock"].advance(IDLE_SECONDS)
    Adapter("Test", **choices).begin()
    assert [one for one in made if one.agents or one in adapter._open] == []


def test_what_was_told_is_the_monitors(choices, ultramon_monitor):
    """An object made for each run does not warn again; a request that failed warned of nothing."""
    monitor, told = ultramon_monitor("mine", context_window_tokens=100_000), []
    monitor.report_usage(input_tokens=72_000)
    for fails in (True, False, False):
        watched = Adapter("Test", monitor, tell=True)
        agent = watched.begin()
        assert watched not in adapter._open
        told.append(agent.before_call() is not None)
        if fails:
            agent.failed(ConnectionError("reset"))
        else:
            agent.after_call(used(72_000))
    assert told == [True, True, False]


def test_many_agents_end_together_with_their_own_outcomes(choices, ultramon_backend):
    """Each is stored when `close` returns: completed, failed, returned."""
    watched = Adapter("Test", **choices)
    for number in range(30):
        agent = watched.begin()
        agent.before_call()
        if number % 3 == 0:
            agent.after_call(used(1_000))
        elif number % 3 == 1:
            agent.failed(ValueError("no"))
        else:
            agent.after_call(used(90_000))
            agent.monitor.hand_off()
    watched.close()
    assert outcomes(ultramon_backend) == sorted(["completed", "failed", "returned"] * 10)
    assert watched.agents == []
