"""What holds for pydantic-ai alone: compaction parts, failures, conversations, parallel runs."""

from __future__ import annotations

import asyncio

import pytest
from helpers.frameworks import Run, Script
from helpers.frameworks.pydantic_ai import ServedModel, make_agent
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import CompactionPart, ModelRequest

from ultramon import create_context_monitor
from ultramon.integrations.pydantic_ai import ContextCapability


@pytest.fixture
def run():
    return Run("async")


class Compacting(AbstractCapability):
    """Replaces the history by a summary from the third request on."""

    def __init__(self, script):
        self.script = script

    async def before_model_request(self, ctx, request_context):
        if self.script.served >= 2:
            summary = ModelRequest(parts=[CompactionPart(content="What happened so far.")])
            request_context.messages[:-2] = [summary]
        return request_context


def test_a_summary_in_what_is_sent_is_a_new_epoch(run):
    """The capability stands behind one that compacts, even when it is listed first."""
    run.outer.turns = ((10_000, 50), (60_000, 60), (50_000, 70), (51_000, 80))
    watched = ContextCapability(**run.adapter_choices())
    epochs = []
    agent = Agent(ServedModel(run.outer), capabilities=[watched, Compacting(run.outer)])

    @agent.tool_plain
    def look() -> str:
        (seen,) = watched.adapter.agents
        epochs.append(seen.monitor.get_state().epoch)
        return "seen"

    asyncio.run(agent.run("Go."))
    assert epochs == [1, 1, 2]
    assert "What happened so far." in run.outer.requests[2]


def test_a_refused_prompt_passes_on_and_teaches_the_window(run):
    """The error is the caller's as ever; the window is the one that the provider named."""

    def refuse(request):
        raise ValueError("prompt is too long: 95001 tokens > 90000 maximum")

    run.outer.next_turn = refuse
    run.choices = {"config": None}
    agent = make_agent(run, run.outer, ContextCapability(**run.adapter_choices()))
    with pytest.raises(ValueError, match="prompt is too long"):
        asyncio.run(agent.run("Go."))
    (state,) = run.states()
    assert (state.context_window, state.outcome) == (90_000, "failed")
    assert state.exit == {"error": "ValueError"}


def test_runs_side_by_side_are_agents_of_their_own(run):
    """One capability serves many runs at once, and mixes up none of their readings."""
    watched = ContextCapability(**run.adapter_choices())
    scripts = [Script(turns=((tokens, 10),) * 3) for tokens in (11_000, 22_000, 33_000)]

    async def all_at_once():
        agents = [make_agent(run, script, watched) for script in scripts]
        await asyncio.gather(*(agent.run("Go.") for agent in agents))

    asyncio.run(all_at_once())
    for script in scripts:
        assert [tokens for tokens, _source in script.readings] == [script.turns[0][0]] * 2
    assert sorted(state.estimated_tokens for state in run.states()) == [11_000, 22_000, 33_000]
    assert {state.parent_id for state in run.states()} == {None}


def test_a_conversation_goes_on_with_the_users_own_monitor(run):
    """Two runs with one monitor are one agent, and its end is the user's."""
    run.outer.turns = ((10_000, 10), (20_000, 10))
    next_turn = run.outer.next_turn
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], False)
    with create_context_monitor("talk", **run.adapter_choices()) as monitor:
        agent = make_agent(run, run.outer, ContextCapability(monitor))
        first = asyncio.run(agent.run("Go."))
        asyncio.run(agent.run("Go on.", message_history=first.all_messages()))
        assert monitor.is_active
        assert monitor.get_state().estimated_tokens == 20_000
    (state,) = run.states()
    assert (state.agent_id, state.outcome) == ("talk", "completed")
