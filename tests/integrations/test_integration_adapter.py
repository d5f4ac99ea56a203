"""What holds for the adapters of all frameworks, below any of them."""

from __future__ import annotations

import logging

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
    """A failure of monitoring is a warning, and every call of the adapter goes on doing nothing."""
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
