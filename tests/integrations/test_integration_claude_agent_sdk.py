"""What holds for the Claude Agent SDK alone: its client's hooks, turns, subagents, compactions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from claude_agent_sdk import (
    AssistantMessage,
    ClaudeAgentOptions,
    HookMatcher,
    ResultMessage,
    create_sdk_mcp_server,
)
from helpers.frameworks import NOTE, Run
from helpers.frameworks.claude_agent_sdk import OUTER_TOOL, drive, session
from real_client.api import Refusal, marked

from ultramon.integrations import current_monitor
from ultramon.integrations.adapter import WatchedAgent
from ultramon.integrations.claude_agent_sdk import ContextHooks

pytestmark = pytest.mark.real_client


@pytest.fixture
def run():
    return Run("async")


def talk(watched, options, *prompts, after=lambda message: None):
    """Have a conversation of several turns with one client."""

    async def turns():
        async with watched.client(options) as client:
            for prompt in prompts:
                await client.query(marked(prompt))
                async for message in client.receive_response():
                    after(message)

    asyncio.run(turns())


def test_a_session_has_the_hooks_that_it_needs(ultramon_backend):
    """The client waits for each one: an adapter that only reads takes what a call used from it."""

    def hooks(servers=None, tools=None, **choices):
        watched = ContextHooks(backend=ultramon_backend, **choices)
        options = ClaudeAgentOptions(mcp_servers=servers or {}, tools=tools)
        return set(watched.client(options).options.hooks)

    starts = {"UserPromptSubmit", "SubagentStart"}
    before_requests = {"PostToolUse", "PostToolUseFailure"}
    own = {"own": create_sdk_mcp_server("own", tools=[])}
    assert hooks() == starts
    assert hooks({"files": {"command": "files"}}) == starts
    assert hooks(own) == {*starts, "PreToolUse"}
    assert hooks(own, tools=["Read", "Agent"]) == {*starts, "PreToolUse"}
    assert hooks(own, tools=["Read", "Bash"]) == hooks(own, tools=[]) == starts
    for acts in ({"tell": True}, {"pins": True}, {"on_return": "stop"}):
        assert hooks(**acts) == starts | before_requests


def test_the_turns_of_a_session_are_one_agent_and_hooks_of_the_user_stay(run):
    """It waits between them; a level of the last reply is said with the next prompt."""
    run.outer.turns = ((10_000, 10), (72_000, 10), (73_000, 10))
    next_turn, calls = run.outer.next_turn, iter((True, False, False))
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], next(calls))
    run.choices = {"tell": True}
    watched = ContextHooks(**run.adapter_choices())
    phases, called = [], []

    async def own(given, _call_id, _context):
        called.append(given["tool_name"])
        return {}

    def after(message):
        if isinstance(message, ResultMessage):
            phases.extend(agent.monitor.get_state().phase for agent in watched.adapter.agents)

    with session(run) as options:
        hooks = {"PostToolUse": [HookMatcher(hooks=[own])]}
        talk(watched, replace(options, hooks=hooks), "Go.", "Go on.", after=after)
    assert phases == ["waiting", "waiting"]
    assert called == [OUTER_TOOL]
    assert [NOTE in request for request in run.outer.requests] == [False, False, True]
    (state,) = run.states()
    assert (state.estimated_tokens, state.outcome) == (73_000, "completed")


def test_without_tools_that_begin_subagents_the_session_is_who_calls(run):
    watched, seen = ContextHooks(**run.adapter_choices()), []
    run.outer.look = lambda: seen.append(current_monitor()) or "seen"
    run.outer.turns = ((1_000, 50), (1_100, 50), (1_200, 50))
    with session(run, tools=[]) as options:
        assert "PreToolUse" not in watched.client(options).options.hooks
        talk(watched, options, "Go.", after=lambda _message: seen.extend(watched.adapter.agents))
    agents = [one for one in seen if isinstance(one, WatchedAgent)]
    monitors = [one for one in seen if not isinstance(one, WatchedAgent)]
    assert len(monitors) == 2
    assert {*monitors} == {one.monitor for one in agents}


def test_a_caller_learns_that_its_subagent_was_ended(run):
    """Only the subagent is ended; the next request of its caller names the handoff."""
    run.mode, run.choices = "nested", {"on_return": "stop"}
    run.outer.turns = ((10_000, 10), (11_000, 10), (12_000, 10))
    drive(run)
    by_parent = {state.parent_id is None: state for state in run.states()}
    assert (run.outer.served, run.inner.served) == (3, 3)
    assert by_parent[False].handoff["handoffId"] in run.outer.requests[1]
    assert (by_parent[False].outcome, by_parent[True].outcome) == ("returned", "completed")


@pytest.mark.exhaustive
def test_a_subagent_in_the_background_ends_by_itself(run):
    """The turn of its caller ends before it does; both are read to their ends."""
    run.mode = "nested"
    # The client calls the model again when the subagent has ended, if it still runs then.
    run.outer.turns = ((12_000, 10),) * 4
    next_turn = run.outer.next_turn
    run.outer.next_turn = lambda request: (*next_turn(request)[:2], run.outer.served == 1)
    run.inner.turns = ((20_000, 10), (21_000, 10))
    watched = ContextHooks(**run.adapter_choices())

    async def query(options):
        async for _message in watched.query(prompt=marked("Go."), options=options):
            pass

    with session(run, in_background=True) as options:
        asyncio.run(query(options))
    tokens = {state.parent_id is None: state.estimated_tokens for state in run.states()}
    assert tokens == {True: 12_000, False: 21_000}
    assert [state.outcome for state in run.states()] == ["completed"] * 2


def test_a_compaction_is_a_new_epoch(run):
    """The client says that it compacted before it asks again."""
    run.outer.turns = ((60_000, 10), (180_000, 10), (20_000, 10))
    run.choices = {"config": None}
    watched, seen = ContextHooks(**run.adapter_choices()), []

    def after(_message):
        states = [agent.monitor.get_state() for agent in watched.adapter.agents]
        seen.extend((state.epoch, state.context_window) for state in states)

    with session(run) as options:
        talk(watched, options, "Go.", after=after)
    assert (seen[0][0], seen[-1]) == (1, (2, 200_000))
    (state,) = run.states()
    assert (state.estimated_tokens, state.outcome) == (20_000, "completed")


@pytest.mark.exhaustive
def test_a_turn_that_the_api_refused_is_a_failure(run):
    """The result says so to the user as ever; the agent ends as failed."""
    results = []
    refusal = Refusal("no such model", status=404, kind="not_found_error")
    with session(run, refusal=refusal) as options:
        talk(ContextHooks(**run.adapter_choices()), options, "Go.", after=results.append)
    assert results[-1].is_error
    (state,) = run.states()
    assert (state.outcome, state.exit) == ("failed", {"error": "ClaudeSDKError"})


@pytest.mark.exhaustive
def test_a_turn_that_the_user_interrupts_is_none(run):
    """The session continues, and ends as completed."""
    watched = ContextHooks(**run.adapter_choices())

    async def turn(options):
        async with watched.client(options) as client:
            await client.query(marked("Go."))
            async for message in client.receive_response():
                if isinstance(message, AssistantMessage) and run.outer.served == 2:
                    await client.interrupt()
            return message

    with session(run) as options:
        result = asyncio.run(turn(options))
    assert result.terminal_reason.startswith("aborted")
    (state,) = run.states()
    assert (state.outcome, state.exit) == ("completed", None)


def test_without_ultramon_the_options_are_those_of_the_user(monkeypatch):
    """Disabled, nothing is added: no hook, no server."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    options = ClaudeAgentOptions(max_turns=3)
    assert ContextHooks().client(options).options is options
