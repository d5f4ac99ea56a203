"""`step` and `steps`: what is done inside an item is stored before the call returns."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys

import pytest
from helpers import IMPORT_PATH
from helpers.postgres_network import answers, network  # noqa: F401
from helpers.waiting import until

from ultramon import (
    ConfigurationError,
    ContextConfig,
    StateError,
    create_context_monitor,
    open_backend,
    worker,
)
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import AgentWorkError, LifecycleError
from ultramon.state.events import parse_event
from ultramon.state.item_steps import MAX_STEPS_BYTES

CONFIG = ContextConfig(context_limit_tokens=10_000, on_error="raise")


def stored(agent_id):
    events = open_backend().committed_events(None, agent_id=agent_id).events
    return [
        (event["item"], event["step"], event["result"])
        for event in events
        if event["type"] == "step_completed"
    ]


def test_a_step_is_in_the_journal_when_the_call_returns(ultramon_backend):
    """With its result as it will be read; the loop's item has it."""
    with worker(CONFIG, items=["a", "b"]) as agent:
        for item in agent.pending():
            assert agent.steps() == {}
            assert agent.step("parse", {"rows": (1, 2)}) == {"rows": [1, 2]}
            assert stored(agent.agent_id)[-1] == (item, "parse", {"rows": [1, 2]})
            assert agent.step("load") is None
            assert agent.steps() == {"parse": {"rows": [1, 2]}, "load": None}
        # Done items keep theirs for the agent itself.
        assert agent.steps("a") == agent.steps("b")
    events = ultramon_backend.committed_events(None, agent_id=agent.agent_id).events
    for event in events:
        parse_event(event)


def test_steps_belong_to_the_loops_item_whatever_is_begun_inside():
    """A plain monitor's belong to the task begun last; each item can be named."""
    with worker(CONFIG, items=["a"]) as agent:
        for _item in agent.pending():
            with agent.monitor.task("a part"):
                agent.step("parse", 1)
                agent.monitor.step("of the part", 2)
                agent.step("other", 3, item="b")
    assert stored(agent.agent_id) == [
        ("a", "parse", 1), ("a part", "of the part", 2), ("b", "other", 3)
    ]  # fmt: skip


def test_without_an_item_there_is_no_step():
    with worker(CONFIG, items=["a"]) as agent:
        for call in (lambda: agent.step("parse"), agent.steps):
            with pytest.raises(AgentWorkError) as caught:
                call()
            assert caught.value.problem == "no_item"
        assert list(agent.pending()) == ["a"]
        with pytest.raises(AgentWorkError):
            agent.step("parse")
    with pytest.raises(LifecycleError):
        agent.step("parse", item="a")
    assert stored(agent.agent_id) == []


def test_what_is_refused_is_not_stored():
    with worker(CONFIG, items=["a"]) as agent:
        for _item in agent.pending():
            agent.step("parse", "x" * (MAX_STEPS_BYTES - 100))
            with pytest.raises(ConfigurationError, match="at most 65,536 bytes"):
                agent.step("load", "x" * 200)
            with pytest.raises(ConfigurationError, match="a JSON value"):
                agent.step("load", {1, 2})
            assert list(agent.steps()) == ["parse"]
    assert [name for _, name, _ in stored(agent.agent_id)] == ["parse"]


def test_in_an_event_loop_it_is_stored_in_a_thread():
    async def work():
        async with create_context_monitor(config=CONFIG) as monitor:
            with monitor.task("a"):
                assert await monitor.step_async("parse", [1]) == [1]
        return monitor.agent_id

    assert stored(asyncio.run(work())) == [("a", "parse", [1])]


def killed_behind(steps, item="a", agent_id="scout"):
    """Run an agent in a process that is killed with SIGKILL behind some steps."""
    code = (
        "import os, signal, sys, ultramon\n"
        "with ultramon.create_context_monitor(sys.argv[1]) as monitor:\n"
        "    monitor.plan([sys.argv[2]])\n"
        "    monitor.set_current_task(sys.argv[2])\n"
        "    for name in sys.argv[3:]:\n"
        "        monitor.step(name, len(name))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, agent_id, item, *steps]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": IMPORT_PATH}, check=False)
    assert done.returncode == -9


def test_an_agent_that_begins_again_after_a_kill_has_its_steps(shared_store):
    """Under the same id; after an end that it stored it has none."""
    killed_behind(["parse", "load"])
    with create_context_monitor("scout", CONFIG) as monitor:
        assert monitor.steps("a") == {"parse": 5, "load": 4}
        monitor.step("check", 1, item="a")
    with create_context_monitor("scout", CONFIG) as monitor:
        assert monitor.steps("a") == {}


def test_a_store_that_is_away_is_waited_for_and_then_the_work_continues(network, caplog):
    """What was stored before is not known then; it is asked for again."""
    config = ContextConfig(context_limit_tokens=10_000, store_timeout_seconds=0.3)
    with create_context_monitor(config=config, backend=network.url) as monitor, monitor.task("a"):
        network.refuse()
        caplog.set_level(logging.DEBUG, "ultramon.monitor")
        assert monitor.steps() == {}
        assert "the steps before it are not known" in caplog.text
        monitor.step("parse", 1)
        network.accept()
        until(lambda: answers(monitor._writer.backend))
        monitor.step("load", 2)
        assert monitor.steps() == {"parse": 1, "load": 2}


def test_a_store_that_refuses_raises_where_that_is_asked_for(tmp_path):
    """A step that is refused is no step."""
    backend = LocalBackend(str(tmp_path / "own"))
    with create_context_monitor(config=CONFIG, backend=backend) as monitor:
        monitor.step("parse", 1, item="a")
        backend.close()
        journal = tmp_path / "own" / "journal.sqlite3"
        kept = journal.rename(tmp_path / "kept")
        journal.mkdir()
        with pytest.raises(StateError):
            monitor.step("load", 2, item="a")
        journal.rmdir()
        kept.rename(journal)
        monitor.step("load", 3, item="a")
    assert monitor.steps("a") == {"parse": 1, "load": 3}


def test_nothing_is_stored_where_ultramon_is_disabled(monkeypatch):
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    with worker(CONFIG, items=["a"]) as agent:
        for _item in agent.pending():
            assert agent.step("parse", 1) == 1
            assert agent.steps() == {"parse": 1}
