"""What holds for the OpenAI Agents SDK alone: handoffs, conversations, agents as tools."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from agents import Agent, RunConfig, Runner, handoff
from agents.tool_context import ToolContext
from helpers.frameworks import NOTE, Run, Script
from helpers.frameworks.openai_agents import ServedModel, make_agent
from openai.types.responses import ResponseFunctionToolCall

from ultramon import ConfigurationError
from ultramon.integrations.openai_agents import ContextHooks

QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture
def run():
    return Run("async")


def test_an_agent_that_takes_over_is_a_child(run):
    """Each agent of a run has a window of its own; the second one's parent is the first."""
    run.inner.turns = ((20_000, 10),)
    writer = Agent("writer", model=ServedModel(run.inner))
    lead = make_agent(run, run.outer, None)
    lead.handoffs = [handoff(writer, tool_name_override="over")]
    lead.model.first_calls = ("over",)
    watched = ContextHooks(**run.adapter_choices())
    asyncio.run(Runner.run(lead, "Go.", **watched.options(QUIET)))
    by_label = {state.label: state for state in run.states()}
    assert by_label["writer"].parent_id == by_label["helper"].agent_id
    assert by_label["writer"].estimated_tokens == 20_000
    assert {state.outcome for state in by_label.values()} == {"completed"}


def test_the_runs_of_a_conversation_are_one_agent(run):
    """Between its runs it waits; an unnamed run is an agent of its own."""
    run.outer.turns = ((10_000, 10), (20_000, 10), (30_000, 10))
    next_turn = run.outer.next_turn
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], False)
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    phases = []
    for conversation in ("c", "c", None):
        options = watched.options(QUIET, conversation=conversation)
        asyncio.run(Runner.run(agent, "Go.", **options))
        phases.append([seen.monitor.get_state().phase for seen in watched.adapter.agents])
    assert phases == [["waiting"]] * 3
    watched.adapter.close()
    assert sorted(state.estimated_tokens for state in run.states()) == [20_000, 30_000]


def test_the_users_filter_comes_first_and_a_compaction_is_a_new_epoch(run):
    """What is measured is what is sent, after the user's own filter compacted it."""
    run.outer.turns = ((10_000, 50), (72_000, 60), (12_000, 70), (13_000, 80))
    run.choices = {"tell": True}
    epochs = []

    def compact(data):
        (seen,) = watched.adapter.agents or [None]
        epochs.append(seen.monitor.get_state().epoch if seen else None)
        if run.outer.served < 2:
            return data.model_data
        item = {"type": "compaction", "id": "c1", "encrypted_content": "x"}
        return replace(data.model_data, input=[item, *data.model_data.input[1:]])

    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    asyncio.run(
        Runner.run(agent, "Go.", **watched.options(replace(QUIET, call_model_input_filter=compact)))
    )
    assert epochs == [None, 1, 1, 2]
    assert "compaction" in run.outer.requests[2]
    assert NOTE not in str(run.outer.requests)


def test_a_tool_of_the_sdks_own_changes_nothing_for_its_caller(run):
    """An agent as a tool that nobody watches is not taken for one that was handed over to."""
    run.inner.turns = ((20_000, 10),)
    lead = make_agent(run, run.outer, None)
    lead.tools.append(Agent("i", model=ServedModel(run.inner)).as_tool("inner", "Works."))
    lead.model.first_calls = ("inner",)
    watched = ContextHooks(**run.adapter_choices())
    asyncio.run(Runner.run(lead, "Go.", **watched.options(QUIET)))
    assert run.inner.served == 1
    (state,) = run.states()
    assert state.estimated_tokens == run.outer.turns[-1][0]


def test_a_watched_tool_that_is_ended_says_so_to_its_caller(run):
    """Its handoff is named in the tool's result, without an advice to try again."""
    run.choices = {"on_return": "stop"}
    run.mode = "nested"
    watched = ContextHooks(**run.adapter_choices())
    tool = watched.as_tool(make_agent(run, run.inner, watched), "inner", "Works.", run_config=QUIET)
    call = ResponseFunctionToolCall(
        arguments='{"input": "Go."}', call_id="1", name="inner", type="function_call"
    )
    context = ToolContext(
        context=None, tool_name="inner", tool_call_id="1", tool_arguments=call.arguments,
        tool_call=call,
    )  # fmt: skip
    said = asyncio.run(tool.on_invoke_tool(context, call.arguments))
    (state,) = run.states()
    assert state.handoff["handoffId"] in said
    assert "try again" not in said
    assert state.outcome == "returned"


def test_a_run_that_failed_in_a_call_ends_as_failed_when_closed(run):
    """The SDK has no hook for a failed call: closing the adapter ends what is left."""
    script = Script()
    script.next_turn = None
    agent = Agent("helper", model=ServedModel(script))
    watched = ContextHooks(**run.adapter_choices())
    with pytest.raises(TypeError):
        asyncio.run(Runner.run(agent, "Go.", **watched.options(QUIET)))
    assert [state.active for state in run.states()] == [True]
    watched.adapter.close()
    assert [state.outcome for state in run.states()] == ["failed"]


async def run_streamed(agent, question, **given):
    result = Runner.run_streamed(agent, question, **given)
    return [event async for event in result.stream_events()]


@pytest.mark.parametrize("given", ["hooks", "run_config"])
@pytest.mark.parametrize("run_method", [Runner.run, run_streamed])
def test_hooks_and_run_config_without_each_other_are_refused(given, run_method, run):
    """One half would read nothing, or say nothing; the error names the other half."""
    watched = ContextHooks(**run.adapter_choices())
    options = watched.options(QUIET)
    half = {"run_config": QUIET, given: options[given]}
    (missing,) = set(options) - {given}
    agent = make_agent(run, run.outer, None)
    with pytest.raises(ConfigurationError, match=f"{missing}=None .* options") as caught:
        asyncio.run(run_method(agent, "Go.", **half))
    assert caught.value.name == missing
    watched.adapter.close()
