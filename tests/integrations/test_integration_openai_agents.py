"""What holds for the OpenAI Agents SDK alone: handoffs, conversations, agents as tools."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
    handoff,
)
from agents.tool_context import ToolContext
from helpers.frameworks import NOTE, TURNS, Run, Script
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
    """An agent as a tool that is not watched is not taken for one that was handed over to."""
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


def replies_only(script):
    """Serve every turn as a reply without a tool call."""
    next_turn = script.next_turn
    script.next_turn = lambda request: (*next_turn(request)[:2], False)


def ask(agent, watched, question="Go.", **given):
    """Run an agent once, with options of its own."""
    options = watched.options(QUIET)
    return asyncio.run(Runner.run(agent, question, **options, **given))


@pytest.mark.parametrize("run_method", [Runner.run, run_streamed])
def test_after_a_retried_call_the_last_attempt_is_the_reading(run_method, run):
    """The SDK counts the attempts as one response; the window holds what the last one sent."""
    serve, failures = run.outer.next_turn, [ConnectionError("reset"), ConnectionError("reset")]

    def fail_twice(request):
        if failures:
            raise failures.pop()
        return serve(request)

    run.outer.next_turn = fail_twice
    retry = ModelRetrySettings(
        max_retries=2, backoff={"initial_delay": 0.0}, policy=lambda _given: True
    )
    watched = ContextHooks(**run.adapter_choices())
    seen = []
    look = run.outer.look

    def look_at_reading():
        (one,) = watched.adapter.agents
        state = one.monitor.get_state()
        seen.append((state.estimated_tokens, state.tokens_source))
        return look()

    run.outer.look = look_at_reading
    agent = make_agent(run, run.outer, watched)
    agent.model_settings = ModelSettings(retry=retry)
    asyncio.run(run_method(agent, "Go.", **watched.options(QUIET)))
    assert seen[0] == (TURNS[0][0], "reported")


@pytest.mark.parametrize("run_method", [Runner.run, run_streamed])
def test_too_many_turns_are_a_failure(run_method, run):
    """The run raises, and its agent is not left as if it worked."""
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    with pytest.raises(MaxTurnsExceeded):
        asyncio.run(run_method(agent, "Go.", max_turns=2, **watched.options(QUIET)))
    assert [state.outcome for state in run.states()] == ["failed"]
    assert watched.adapter.agents == []


@pytest.mark.parametrize("run_method", [Runner.run, run_streamed])
def test_a_tool_that_raises_out_of_the_run_is_a_failure_and_leaves_no_tool_running(run_method, run):
    """Nothing in the caller's context is taken for that tool's work afterwards."""

    @function_tool(failure_error_function=None)
    def look() -> str:
        """Look."""
        raise OSError("gone")

    watched = ContextHooks(**run.adapter_choices())
    agent = Agent("helper", model=ServedModel(run.outer), tools=[look])
    held = []

    async def work():
        look.on_invoke_tool = hold(watched, held, look.on_invoke_tool)
        with pytest.raises(Exception, match="gone"):
            await run_method(agent, "Go.", **watched.options(QUIET))

    asyncio.run(work())
    assert [one.running_tools for one in held] == [0]
    assert [state.outcome for state in run.states()] == ["failed"]


def hold(watched, held, invoke):
    """Keep the agent of a call."""

    async def invoke_and_hold(*given):
        held.extend(watched.adapter.agents)
        return await invoke(*given)

    return invoke_and_hold


def test_a_model_that_raises_is_a_failure_at_once(run):
    """The SDK has no hook for it; the agent ends with the run all the same."""
    script = Script()
    script.next_turn = None
    watched = ContextHooks(**run.adapter_choices())
    with pytest.raises(TypeError):
        ask(Agent("helper", model=ServedModel(script)), watched)
    assert [state.outcome for state in run.states()] == ["failed"]


def test_the_options_of_a_run_are_refused_to_another(run):
    """Two runs would be one agent; the error says what to do."""
    watched = ContextHooks(**run.adapter_choices())
    options = watched.options(QUIET)
    agent = make_agent(run, run.outer, watched)
    asyncio.run(Runner.run(agent, "Go.", **options))
    with pytest.raises(ConfigurationError, match="made anew for each run"):
        asyncio.run(Runner.run(agent, "Go.", **options))
    assert run.outer.served == len(TURNS)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_run_that_asks_for_approval_waits_and_goes_on(is_stored, run):
    """It is the same agent after the answer, and waits for no one then."""
    run.outer.turns = ((10_000, 50), (20_000, 60))

    @function_tool(needs_approval=True)
    def look() -> str:
        """Look."""
        return "seen"

    watched = ContextHooks(**run.adapter_choices())
    agent = Agent("helper", model=ServedModel(run.outer), tools=[look])
    result = ask(agent, watched)
    (asked,) = run.states()
    assert (asked.phase, asked.active, asked.estimated_tokens) == ("waiting", True, 10_000)
    state = result.to_state()
    if is_stored:
        state = asyncio.run(RunState.from_string(agent, state.to_string()))
    state.approve(state.get_interruptions()[0])
    ask(agent, watched, state)
    (answered,) = run.states()
    assert (answered.agent_id, answered.outcome) == (asked.agent_id, "completed")
    assert answered.estimated_tokens == 20_000


def test_an_unseen_tool_of_the_sdks_own_is_said_once(run, caplog):
    """The log line names the agent and what to write."""
    caplog.set_level(logging.WARNING, "ultramon.integrations")
    watched = ContextHooks(**run.adapter_choices())
    for _number in range(2):
        lead = make_agent(run, Script(), None)
        lead.tools.append(Agent("i", model=ServedModel(Script())).as_tool("inner", "Works."))
        lead.model.first_calls = ("inner",)
        ask(lead, watched)
    said = [record.message for record in caplog.records if "Agent.as_tool" in record.message]
    assert len(said) == 1
    assert "'i'" in said[0]
    assert "watched.as_tool(agent, name, description)" in said[0]


@pytest.mark.parametrize("run_method", [Runner.run, run_streamed])
def test_hooks_alone_watch_a_run(run_method, run):
    """``hooks=ContextHooks()`` is enough for a run with defaults."""
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    for _number in range(2):
        run.outer.served = 0
        asyncio.run(run_method(agent, "Go.", hooks=watched, run_config=QUIET))
    assert [(state.estimated_tokens, state.outcome) for state in run.states()] == [
        (TURNS[-1][0], "completed")
    ] * 2


def test_a_conversation_comes_back_with_its_last_reading(run, tmp_path):
    """Another object, as in another process, continues it while it waits, and after its end."""
    run.outer.turns = ((80_000, 10), (81_000, 10), (82_000, 10))
    run.choices = {"tell": True}
    replies_only(run.outer)
    session = SQLiteSession("s", tmp_path / "sessions.db")
    readings = []
    for ends in (False, True, True):
        watched = ContextHooks(**run.adapter_choices())
        agent = make_agent(run, run.outer, watched)
        serve = agent.model.script.next_turn

        def look(request, serve=serve, watched=watched):
            (one,) = watched.adapter.agents
            readings.append(one.monitor.get_state().estimated_tokens)
            return serve(request)

        agent.model.script.next_turn = look
        ask(agent, watched, session=session)
        agent.model.script.next_turn = serve
        if ends:
            watched.adapter.close()
    assert readings == [0, 80_000, 81_000]
    (state,) = run.states()
    assert (state.estimated_tokens, state.epoch) == (82_000, 1)
    assert [NOTE in request for request in run.outer.requests] == [False, True, False]
    session.close()


def test_sessions_are_never_mixed(run, tmp_path):
    """Another database, another id, and another session in memory are other agents."""
    run.outer.turns = ((1_000, 10),) * 6
    replies_only(run.outer)
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    sessions = [
        SQLiteSession("s", tmp_path / "one.db"),
        SQLiteSession("s", tmp_path / "two.db"),
        SQLiteSession("t", tmp_path / "two.db"),
        SQLiteSession("s"),
        SQLiteSession("s"),
    ]
    for session in (*sessions, sessions[0]):
        ask(agent, watched, session=session)
    assert len({state.agent_id for state in run.states()}) == len(sessions)
    watched.adapter.close()
    for session in sessions:
        session.close()  # else its connection is found open at some later collection


def test_nothing_is_kept_of_conversations_that_ended(run):
    """However many there were, the hooks hold none of them."""
    run.outer.turns = ((1_000, 10),) * 20
    replies_only(run.outer)
    watched = ContextHooks(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched)
    for number in range(20):
        options = watched.options(QUIET, conversation=f"c{number}")
        asyncio.run(Runner.run(agent, "Go.", **options))
    assert len(watched.adapter.agents) == 20
    watched.adapter.close()
    kept = [value for value in vars(watched).values() if hasattr(value, "__len__")]
    assert sum(map(len, kept)) == 0
    assert watched.adapter.agents == []


def test_a_model_that_reports_no_usage_is_estimated(run):
    """The messages and the reply are counted, and labelled so."""
    run.outer.turns = ((0, 0), (0, 0))
    watched = ContextHooks(**run.adapter_choices())
    run.outer.look = lambda: "word " * 4_000
    ask(make_agent(run, run.outer, watched), watched)
    (state,) = run.states()
    assert state.tokens_source == "estimated"
    assert 3_000 < state.estimated_tokens < 8_000
