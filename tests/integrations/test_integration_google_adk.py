"""What holds for the Google ADK alone: sessions, transfers, failures, compactions."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("google.adk", reason="in an environment of its own: pip install google-adk")

from google.adk.agents import LlmAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from helpers.frameworks import Run, Script
from helpers.frameworks.google_adk import GO, ServedModel, make_agent, make_runner

from ultramon.integrations.google_adk import ContextPlugin

pytestmark = pytest.mark.filterwarnings("ignore:.EXPERIMENTAL.:UserWarning")


@pytest.fixture
def run():
    return Run("async")


async def turn(runner):
    async for _event in runner.run_async(user_id="u", session_id="s", new_message=GO):
        pass


def test_the_turns_of_a_session_are_one_agent(run):
    """It waits between them, and ends with the runner."""
    run.outer.turns = ((10_000, 10), (20_000, 10), (30_000, 10))
    next_turn = run.outer.next_turn
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], False)
    plugin = ContextPlugin(**run.adapter_choices())
    runner = make_runner(make_agent(run, run.outer), plugin)
    phases = []

    async def turns():
        for _number in range(3):
            await turn(runner)
            phases.append([agent.monitor.get_state().phase for agent in plugin.adapter.agents])
        await runner.close()

    asyncio.run(turns())
    assert phases == [["waiting"]] * 3
    (state,) = run.states()
    assert (state.estimated_tokens, state.outcome) == (30_000, "completed")


def test_an_agent_that_takes_over_is_a_child(run):
    """It has a window of its own; its parent is the first agent of the session."""
    run.outer.turns, run.inner.turns = ((10_000, 10), (11_000, 10)), ((20_000, 10),)
    writer = LlmAgent(name="writer", model=ServedModel(script=run.inner))
    model = ServedModel(script=run.outer, first_calls=("transfer_to_agent",))
    model.arguments["transfer_to_agent"] = {"agent_name": "writer"}
    lead = LlmAgent(name="lead", model=model, sub_agents=[writer], tools=[run.outer.look])
    runner = make_runner(lead, ContextPlugin(**run.adapter_choices()))

    async def whole():
        await turn(runner)
        await runner.close()

    asyncio.run(whole())
    by_label = {state.label: state for state in run.states()}
    assert by_label["writer"].parent_id == by_label["lead"].agent_id
    assert by_label["writer"].estimated_tokens == 20_000
    assert {state.outcome for state in by_label.values()} == {"completed"}


def test_a_refused_prompt_passes_on_and_teaches_the_window(run):
    """The error is the caller's as ever; the window is the one that the provider named."""

    def refuse(request):
        raise ValueError("prompt is too long: 95001 tokens > 90000 maximum")

    run.outer.next_turn = refuse
    run.choices = {"config": None}
    runner = make_runner(make_agent(run, run.outer), ContextPlugin(**run.adapter_choices()))
    with pytest.raises(ValueError, match="prompt is too long"):
        asyncio.run(turn(runner))
    (state,) = run.states()
    assert (state.context_window, state.outcome) == (90_000, "failed")


def test_a_compaction_of_events_is_a_new_epoch(run):
    """What the application summarised between two turns begins a new epoch in the next one."""
    run.outer.turns = ((60_000, 10), (61_000, 10), (9_000, 10))
    next_turn = run.outer.next_turn
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], False)
    summary = Script(turns=((1_000, 10),) * 3)
    config = EventsCompactionConfig(
        compaction_interval=2,
        overlap_size=0,
        summarizer=LlmEventSummarizer(llm=ServedModel(script=summary)),
    )
    plugin = ContextPlugin(**run.adapter_choices())
    runner = make_runner(make_agent(run, run.outer), plugin, events_compaction_config=config)
    epochs = []

    async def turns():
        for _number in range(3):
            await turn(runner)
            epochs.extend(agent.monitor.get_state().epoch for agent in plugin.adapter.agents)

    asyncio.run(turns())
    assert summary.served >= 1
    assert epochs == [1, 1, 2]
