"""What holds for pydantic-ai alone: compaction parts, failures, conversations, parallel runs."""

from __future__ import annotations

import asyncio

import pytest
from helpers.frameworks import NOTE, Run, Script
from helpers.frameworks.pydantic_ai import ServedModel, make_agent
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import CompactionPart, ModelRequest
from pydantic_ai.usage import RequestUsage

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


def ask(agent, question="Go.", **given):
    """Run an agent once."""
    return asyncio.run(agent.run(question, **given))


def replies_only(script):
    """Serve every turn as a reply without a tool call."""
    next_turn = script.next_turn
    script.next_turn = lambda request: (*next_turn(request)[:2], False)


def test_a_conversation_comes_back_with_its_last_reading(run):
    """By its history, in another object as in another process, and it is not notified again."""
    run.outer.turns = ((80_000, 10), (81_000, 10), (82_000, 10))
    run.choices = {"tell": True}
    replies_only(run.outer)
    history, readings = None, []
    serve = run.outer.next_turn

    def look(request):
        (one,) = watched.adapter.agents
        readings.append(one.monitor.get_state().estimated_tokens)
        return serve(request)

    run.outer.next_turn = look
    for _number in range(3):
        watched = ContextCapability(**run.adapter_choices())
        agent = make_agent(run, run.outer, watched)
        history = ask(agent, message_history=history).all_messages()
        assert watched.adapter.agents == []
    assert readings == [0, 80_000, 81_000]
    (state,) = run.states()
    assert (state.estimated_tokens, state.epoch) == (82_000, 1)
    assert [NOTE in request for request in run.outer.requests] == [False, True, False]


def test_a_capability_made_for_each_run_does_not_tell_again(run):
    """What was reported is the monitor's, whatever watches it."""
    run.outer.turns = ((80_000, 10), (81_000, 10), (82_000, 10))
    replies_only(run.outer)
    with create_context_monitor("mine", **run.adapter_choices()) as monitor:
        for _number in range(3):
            ask(make_agent(run, run.outer, ContextCapability(monitor, tell=True)))
    assert [NOTE in request for request in run.outer.requests] == [False, True, False]


def test_conversations_are_never_mixed(run):
    """Two users' ids are two agents; so are two agents in one conversation."""
    run.outer.turns = tuple((1_000 * number, 10) for number in range(1, 6))
    replies_only(run.outer)
    watched = ContextCapability(**run.adapter_choices())
    model = ServedModel(run.outer)
    for conversation, name in (("a", "x"), ("b", "x"), ("a", "y")):
        agent = Agent(model, name=name, capabilities=[watched])
        ask(agent, conversation_id=conversation)
    assert len(run.states()) == 3


def test_a_run_that_asks_for_approval_waits_and_goes_on(run):
    """It is the same agent when the answer comes."""
    run.outer.turns = ((10_000, 50), (20_000, 60))
    watched = ContextCapability(**run.adapter_choices())
    agent = Agent(
        ServedModel(run.outer), capabilities=[watched], output_type=[str, DeferredToolRequests]
    )
    agent.tool_plain(requires_approval=True)(look)
    asked = ask(agent)
    (state,) = run.states()
    assert (state.phase, state.active, state.estimated_tokens) == ("waiting", True, 10_000)
    answers = DeferredToolResults(
        approvals={call.tool_call_id: True for call in asked.output.approvals}
    )
    ask(agent, None, message_history=asked.all_messages(), deferred_tool_results=answers)
    (answered,) = run.states()
    assert (answered.agent_id, answered.outcome) == (state.agent_id, "completed")
    assert answered.estimated_tokens == 20_000


def look() -> str:
    """Look."""
    return "seen"


class Silent(ServedModel):
    """States no usage, where `FunctionModel` would state an estimate of its own."""

    async def request(self, *given):
        response = await super().request(*given)
        response.usage = RequestUsage()
        return response


def test_a_model_that_reports_no_usage_is_estimated(run):
    """The messages and the reply are counted, and labelled so."""
    run.outer.look = lambda: "word " * 1_000
    agent = make_agent(run, run.outer, ContextCapability(**run.adapter_choices()))
    agent.model = Silent(run.outer)
    ask(agent)
    (state,) = run.states()
    assert state.tokens_source == "estimated"
    assert 3_000 < state.estimated_tokens < 8_000
