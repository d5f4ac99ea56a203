"""What holds for the Google ADK alone: sessions, transfers, failures, compactions."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("google.adk", reason="in an environment of its own: pip install google-adk")

from google.adk.agents import LlmAgent
from google.adk.apps.app import App, EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from helpers.frameworks import NOTE, Run, Script
from helpers.frameworks.google_adk import GO, ServedModel, make_agent, make_runner

from ultramon.backends.local.backend import LocalBackend
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


def replies_only(script):
    """Serve every turn as a reply without a tool call."""
    next_turn = script.next_turn
    script.next_turn = lambda request: (*next_turn(request)[:2], False)


async def ask(runner, user="u", session="s"):
    """One turn of a session, which is made where it has to be."""
    named = {"user_id": user, "session_id": session}
    known = await runner.session_service.get_session(app_name=runner.app_name, **named)
    if known is None:
        await runner.session_service.create_session(app_name=runner.app_name, **named)
    async for _event in runner.run_async(new_message=GO, **named):
        pass


def runner_of(run, plugin, service, name="tests"):
    """A runner with its own plugin, as each process has, and a common service."""
    app = App(name=name, root_agent=make_agent(run, run.outer), plugins=[plugin])
    return Runner(app=app, session_service=service)


def test_a_session_comes_back_with_its_last_reading(run):
    """Another runner, as in another process, continues it while it waits, and after its end."""
    run.outer.turns = ((80_000, 10), (81_000, 10), (82_000, 10))
    run.choices = {"tell": True}
    replies_only(run.outer)
    service, readings = InMemorySessionService(), []
    serve = run.outer.next_turn

    def look(request):
        (one,) = plugin.adapter.agents
        readings.append(one.monitor.get_state().estimated_tokens)
        return serve(request)

    run.outer.next_turn = look
    for ends in (False, True, True):
        plugin = ContextPlugin(**run.adapter_choices())
        asyncio.run(ask(runner_of(run, plugin, service)))
        if ends:
            plugin.adapter.close()
    assert readings == [0, 80_000, 81_000]
    (state,) = run.states()
    assert (state.estimated_tokens, state.epoch) == (82_000, 1)
    assert [NOTE in request for request in run.outer.requests] == [False, True, False]


def test_a_new_session_of_an_old_name_begins_with_nothing(run):
    """What an earlier one left, as with sessions in memory, is not its reading."""
    run.outer.turns = ((80_000, 10), (1_000, 10))
    replies_only(run.outer)
    for _number in range(2):
        plugin = ContextPlugin(**run.adapter_choices())
        asyncio.run(ask(runner_of(run, plugin, InMemorySessionService())))
        plugin.adapter.close()
    (state,) = run.states()
    assert (state.estimated_tokens, state.epoch) == (1_000, 2)


def test_sessions_of_users_and_applications_are_never_mixed(run):
    """The same session id of another user or application is another agent."""
    run.outer.turns = tuple((1_000 * number, 10) for number in range(1, 7))
    replies_only(run.outer)
    plugin, service = ContextPlugin(**run.adapter_choices()), InMemorySessionService()
    readings = {}
    for _turn in range(2):
        for app, user in (("one", "u"), ("one", "v"), ("two", "u")):
            known = set(readings)
            asyncio.run(ask(runner_of(run, plugin, service, app), user))
            states = {state.agent_id: state.estimated_tokens for state in run.states()}
            changed = {one for one in states if states[one] != readings.get(one)}
            assert len(changed) == 1
            assert bool(changed - known) == (_turn == 0)
            readings = states
    assert sorted(readings.values()) == [4_000, 5_000, 6_000]


def test_nothing_is_kept_of_sessions_that_ended(run):
    """However many there were, the plugin holds none of them."""
    run.outer.turns = ((1_000, 10),) * 10
    replies_only(run.outer)
    plugin, service = ContextPlugin(**run.adapter_choices()), InMemorySessionService()

    async def work():
        runner = runner_of(run, plugin, service)
        for number in range(10):
            await ask(runner, session=f"s{number}")
        assert len(plugin.adapter.agents) == len(plugin._waiting) == 10
        assert plugin._sessions == {}
        await runner.close()

    asyncio.run(work())
    assert len(plugin.adapter.agents) == len(plugin._waiting) == len(plugin._sessions) == 0


def test_the_runner_ends_a_thousand_sessions_in_its_time(run, tmp_path):
    """When `close` returns, in the five seconds that a plugin has, each end is in its file."""
    run.choices = {"backend": LocalBackend(tmp_path)}
    plugin = ContextPlugin(**run.adapter_choices())
    runner = runner_of(run, plugin, InMemorySessionService())

    def begin(number):
        plugin.adapter.finish(plugin.adapter.begin(f"s{number}"), goes_on=True)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(begin, range(1_000)))

    async def close():
        await runner.close()
        return {agent.record.outcome for agent in run.choices["backend"].list_agents()}

    assert asyncio.run(close()) == {"completed"}
    assert plugin.adapter.agents == []


def test_a_tool_that_raises_leaves_no_tool_running(run):
    """The run raises, and its agent ends as failed."""

    def fail():
        held.extend(plugin.adapter.agents)
        raise OSError("gone")

    held = []
    run.outer.look = fail
    plugin = ContextPlugin(**run.adapter_choices())
    with pytest.raises(OSError, match="gone"):
        asyncio.run(ask(runner_of(run, plugin, InMemorySessionService())))
    assert [one.running_tools for one in held] == [0]
    assert [state.outcome for state in run.states()] == ["failed"]


def test_a_model_that_reports_no_usage_is_estimated(run):
    """The messages and the reply are counted, and labelled so."""
    run.outer.turns = ((0, 0), (0, 0))
    run.outer.look = lambda: "word " * 4_000
    plugin = ContextPlugin(**run.adapter_choices())
    asyncio.run(ask(runner_of(run, plugin, InMemorySessionService())))
    plugin.adapter.close()
    (state,) = run.states()
    assert state.tokens_source == "estimated"
    assert 3_000 < state.estimated_tokens < 8_000
