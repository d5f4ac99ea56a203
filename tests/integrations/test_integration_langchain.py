"""What holds for LangChain and LangGraph alone: threads, summaries, callbacks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers.frameworks import NOTE, TURNS, Run, Script
from helpers.frameworks.langchain import ServedModel, make_agent
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from langsmith.run_helpers import tracing_context

from ultramon import ConfigurationError, HandedOffError, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations.langchain import ContextCallbackHandler, ContextMiddleware
from ultramon.integrations.langchain_callbacks import NestedAgents

QUESTION = {"messages": [("user", "Go.")]}


@pytest.fixture
def run():
    return Run("plain")


def summarization(trigger, keep=1):
    return SummarizationMiddleware(
        FakeListChatModel(responses=["What happened so far."]),
        trigger=trigger,
        keep=("messages", keep),
    )


def test_a_thread_is_one_agent_that_waits_between_its_turns(run):
    """With a checkpointer the second turn continues with the first one's agent."""
    run.outer.turns = ((10_000, 50), (20_000, 50))
    run.outer.next_turn = replies_only(run.outer)
    watched = ContextMiddleware(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched, checkpointer=InMemorySaver(), name="helper")
    config = {"configurable": {"thread_id": "t1"}}
    agent.invoke(QUESTION, config)
    (state,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert (state.phase, state.estimated_tokens, state.label) == ("waiting", 10_000, "helper")
    agent.invoke(QUESTION, config)
    (again,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert (again.agent_id, again.estimated_tokens) == (state.agent_id, 20_000)
    watched.adapter.close()
    (stored,) = run.states()
    assert stored.outcome == "completed"


def replies_only(script):
    """Serve every turn as a reply without a tool call."""
    next_turn = script.next_turn
    return lambda request: (*next_turn(request)[:2], False)


def test_the_trigger_of_a_summarisation_is_the_limit_and_its_summary_a_new_epoch(run):
    """The ladder counts up to the trigger; after a summary it starts over."""
    run.outer.turns = ((10_000, 50), (33_000, 60), (41_000, 60), (12_000, 70), (13_000, 80))
    beside = summarization([("tokens", 40_000), ("messages", 7)])
    run.choices = {"tell": True}
    watched = ContextMiddleware(beside=beside, **run.adapter_choices())
    epochs = []
    look = run.outer.look

    def look_at_epoch():
        (seen,) = watched.adapter.agents
        state = seen.monitor.get_state()
        epochs.append((state.epoch, state.limit_source, state.context_limit))
        return look()

    run.outer.look = look_at_epoch
    make_agent(run, run.outer, watched, before=[beside]).invoke(QUESTION)
    assert epochs == [(1, "host", 40_000)] * 3 + [(2, "host", 40_000)]
    told = ["earlier messages are replaced by a summary" in text for text in run.outer.requests]
    assert told == [False, False, True, False, False]
    kinds = ("checkpoint_stored", "context_epoch_started")
    stored = [one for one in events(run) if one["type"] in kinds]
    assert [(one["type"], one["epoch"]) for one in stored] == [(kinds[0], 1), (kinds[1], 2)]
    assert stored[0]["handoff"]["tokens"] >= 41_060


def events(run):
    """The journal of a run."""
    return run.backend.events(limit=1_000).events


@pytest.mark.parametrize(
    ("trigger", "said"),
    [(None, "it never summarises"), (("tokens", 900_000), "does not let it reach")],
)
def test_a_summarisation_that_can_never_begin_is_said_once(run, caplog, trigger, said):
    """Without a trigger, or with one above the window, a log line says so."""
    beside = summarization(trigger)
    caplog.set_level(logging.WARNING, "ultramon.integrations")
    make_agent(
        run, run.outer, ContextMiddleware(beside=beside, **run.adapter_choices()), before=[beside]
    ).invoke(QUESTION)
    assert [said in record.message for record in caplog.records] == [True]


def test_a_refused_prompt_passes_on_and_teaches_the_window(run):
    """The error is the caller's as ever; the agent's window is the one that the provider named."""
    run.choices = {"config": None}
    watched = ContextMiddleware(**run.adapter_choices())

    def refuse(request):
        raise ValueError("prompt is too long: 200001 tokens > 190000 maximum")

    run.outer.next_turn = refuse
    with pytest.raises(ValueError, match="prompt is too long"):
        make_agent(run, run.outer, watched).invoke(QUESTION)
    watched.adapter.close()
    (state,) = run.states()
    assert (state.context_window, state.outcome) == (190_000, "failed")


def test_the_profile_gives_the_window_of_a_model_that_no_table_knows(run):
    """LangChain's own profile counts as the host's word, for unknown models only."""
    run.choices = {"config": None}
    windows = []
    for name in ("house-model-9", "gpt-4.1"):
        watched = ContextMiddleware(**run.adapter_choices())
        run.outer.served, run.outer.look = 0, lambda: "seen"
        model = NamedModel(script=run.outer, model_name=name, profile={"max_input_tokens": 50_000})
        create_agent(model, [], middleware=[watched]).invoke(QUESTION)
        windows += [(state.context_window, state.limit_source) for state in run.states()]
        run.backend = type(run.backend)()
    assert windows == [(50_000, "host"), (1_000_000, "model")]


class NamedModel(ServedModel):
    model_name: str

    def _reply(self, messages):
        return super()._reply(messages) | {"tool_calls": []}


def test_a_function_leaves_the_handoff(run):
    """on_return= may be the user's: what it leaves is the handoff, and its monitor is given."""
    left = []

    def leave(monitor):
        left.append(monitor.hand_off(notes="half of it"))
        return left[0]

    run.choices = {"on_return": leave}
    result = make_agent(run, run.outer, ContextMiddleware(**run.adapter_choices())).invoke(QUESTION)
    assert result["messages"][-1].additional_kwargs["ultramon_handoff_id"] == left[0].handoff_id
    (state,) = run.states()
    assert state.handoff["notes"] == "half of it"


def test_a_monitor_of_the_users_is_used_and_stays_open(run):
    """The user's own monitor sees every reading; its end is the user's."""
    choices = run.adapter_choices()
    with create_context_monitor("mine", **choices) as monitor:
        make_agent(run, run.outer, ContextMiddleware(monitor)).invoke(QUESTION)
        assert monitor.is_active
        assert monitor.get_state().estimated_tokens == TURNS[-1][0]
    with pytest.raises(ConfigurationError, match="given to the monitor mine"):
        ContextMiddleware(monitor, config=choices["config"])


def test_a_run_that_asks_a_person_waits_and_goes_on(run):
    """A tool that interrupts the graph is no failure; the answer continues with the same agent."""
    run.outer.turns = ((10_000, 50), (20_000, 50))
    run.outer.look = lambda: interrupt("May I?")
    watched = ContextMiddleware(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t1"}}
    agent.invoke(QUESTION, config)
    (asked,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert asked.phase == "waiting"
    agent.invoke(Command(resume="yes"), config)
    (answered,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert (answered.agent_id, answered.estimated_tokens) == (asked.agent_id, 20_000)
    watched.adapter.close()
    assert [state.outcome for state in run.states()] == ["completed"]


@pytest.mark.parametrize("choices", [{"on_return": "end"}, {"tel": True}])
def test_a_wrong_choice_is_refused(choices):
    """A misspelt or unknown choice names what is allowed."""
    with pytest.raises(ConfigurationError, match="must be"):
        ContextMiddleware(**choices)


def test_callbacks_read_plain_chains(run):
    """A handler sees each call of a chain, streamed or not, and the block ends its agent."""
    run.outer.next_turn = replies_only(run.outer)
    chain = ChatPromptTemplate.from_template("Say {word}.") | ServedModel(script=run.outer)
    readings = []
    with ContextCallbackHandler(**run.adapter_choices()) as handler:
        for call in (chain.invoke, lambda *given: list(chain.stream(*given))):
            call({"word": "go"}, {"callbacks": [handler]})
            (agent,) = handler.adapter.agents
            readings.append(agent.monitor.get_state().estimated_tokens)
    assert readings == [TURNS[0][0], TURNS[1][0]]
    (state,) = run.states()
    assert state.outcome == "completed"


@pytest.fixture
def stored_run(tmp_path):
    """A run whose agents are stored in files, which lets other threads run meanwhile."""
    with closing(LocalBackend(str(tmp_path / "states"))) as backend:
        yield Run("plain", backend=backend)


def test_calls_in_several_threads_are_one_conversation(stored_run):
    """Those that come first at the same time begin one agent."""
    run = stored_run
    model = FakeListChatModel(responses=["Done."])
    chain = RunnableLambda(model.invoke)
    with ContextCallbackHandler(**run.adapter_choices()) as handler:
        chain.batch(["Go."] * 8, {"callbacks": [handler], "max_concurrency": 8})
        assert len(handler.adapter.agents) == 1
    (state,) = run.states()
    assert state.outcome == "completed"


def parallel_graph():
    """A graph whose nodes all call a model at once."""
    model = FakeListChatModel(responses=["Done."])
    graph = StateGraph(MessagesState)
    for number in range(8):
        graph.add_node(f"node{number}", lambda _state: {"messages": model.invoke("Go.")})
        graph.add_edge(START, f"node{number}")
    return graph.compile()


def test_parallel_nodes_of_a_graph_in_a_tool_are_one_child(stored_run, caplog):
    """As the nodes of a graph that a handler sees."""
    run = stored_run
    run.outer.turns = TURNS[-2:]

    @tool
    def look() -> str:
        """Look."""
        parallel_graph().invoke(QUESTION)
        return "seen"

    model = ServedModel(script=run.outer)
    watched = ContextMiddleware(**run.adapter_choices())
    create_agent(model, [look], middleware=[watched]).invoke(QUESTION)
    with ContextCallbackHandler(**run.adapter_choices()) as handler:
        parallel_graph().invoke(QUESTION, {"callbacks": [handler]})
        assert len(handler.adapter.agents) == 1
    assert caplog.text == ""
    states = {state.agent_id: state for state in run.states()}
    (child,) = [state for state in states.values() if state.parent_id]
    assert states[child.parent_id].outcome == child.outcome == "completed"
    assert len(states) == 3


def test_callbacks_see_a_nested_graph_as_a_child(run):
    """A graph inside a tool has a window of its own, and a parent."""
    run = Run("nested")
    agent = make_agent(run, run.outer, None)
    with ContextCallbackHandler(**run.adapter_choices()) as handler:
        agent.invoke(QUESTION, {"callbacks": [handler]})
    outer, inner = sorted(run.states(), key=lambda state: state.parent_id or "")
    assert (outer.parent_id, inner.parent_id) == (None, outer.agent_id)
    assert [state.estimated_tokens for state in (outer, inner)] == [TURNS[-1][0]] * 2
    assert [state.outcome for state in (outer, inner)] == ["completed"] * 2


def test_callbacks_end_a_run_by_an_error(run):
    """A callback cannot end a graph cleanly: the caller gets the handoff in an error."""
    run.choices = {"on_return": "stop"}
    handler = ContextCallbackHandler(**run.adapter_choices())
    with pytest.raises(HandedOffError) as caught:
        make_agent(run, run.outer, None).invoke(QUESTION, {"callbacks": [handler]})
    assert run.outer.served == 3
    (state,) = run.states()
    assert caught.value.handoff.handoff_id == state.handoff["handoffId"]
    assert state.outcome == "returned"
    with pytest.raises(ConfigurationError, match="callbacks only read"):
        ContextCallbackHandler(tell=True)


def test_what_is_no_summarisation_is_refused():
    """The error says what ``beside`` is for."""
    with pytest.raises(ConfigurationError, match=r"beside=.* must be the agent's Summarization"):
        ContextMiddleware(beside=("tokens", 40_000))


def test_a_note_whose_request_failed_is_told_with_the_next(run):
    """The history of that request is lost with it; an answered one is reported once."""
    run.outer.turns = ((72_000, 50), (72_500, 50), (73_000, 50))
    run.choices = {"tell": True}
    replies_once(run.outer, failing=(2,))
    watched = ContextMiddleware(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched, checkpointer=InMemorySaver())
    for number in range(4):
        if number == 1:
            with pytest.raises(ConnectionError):
                agent.invoke(QUESTION, THREAD)
        else:
            agent.invoke(QUESTION, THREAD)
    assert [NOTE in request for request in run.outer.requests] == [False, True, True, False]


THREAD = {"configurable": {"thread_id": "t1"}}


def replies_once(script, failing=()):
    """Serve replies without a tool call; the calls of those numbers, from 1, fail."""
    serve, calls = script.next_turn, []

    def next_turn(request):
        calls.append(request)
        if len(calls) in failing:
            script.requests.append(str(request))
            raise ConnectionError("reset")
        return (*serve(request)[:2], False)

    script.next_turn = next_turn


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_person_asked_by_the_middleware_is_waited_for(run, mode, is_async):
    """No tool has begun: the agent waits, and works on with the answer."""
    run.outer.turns = ((10_000, 50), (20_000, 50))
    phases = []

    def look():
        (seen,) = watched.adapter.agents
        phases.append(seen.monitor.get_state().phase)
        return "seen"

    run.outer.look = look
    try:
        asking = HumanInTheLoopMiddleware({"look": True}, interrupt_mode=mode)
    except TypeError:
        pytest.skip("this version asks once for all calls")
    watched = ContextMiddleware(**run.adapter_choices())
    agent = make_agent(run, run.outer, watched, before=[asking], checkpointer=InMemorySaver())

    def invoke(given):
        if is_async:
            return asyncio.run(agent.ainvoke(given, THREAD))
        return agent.invoke(given, THREAD)

    result = invoke(QUESTION)
    (asked,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert (asked.phase, asked.estimated_tokens) == ("waiting", 10_000)
    assert result["__interrupt__"]
    answer = {"type": "approve"}
    invoke(Command(resume=answer if mode == "per_call" else {"decisions": [answer]}))
    (answered,) = (seen.monitor.get_state() for seen in watched.adapter.agents)
    assert (answered.agent_id, answered.estimated_tokens) == (asked.agent_id, 20_000)
    assert phases == ["working"]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_agent_in_a_tool_without_a_middleware_is_a_child_that_is_read(run, is_async):
    """The children are seen at every depth, each with the agent whose tool it is."""
    run.outer.turns = ((72_000, 10), (73_000, 10))
    deep, inner = Script(), Script(turns=((30_000, 10), (31_000, 10)))
    given = run.adapter_choices()
    deepest = make_agent(run, deep, None, name="deepest")
    middle = create_agent(
        ServedModel(script=inner, tool_name="call"), [caller(deepest)], name="middle"
    )
    watched = ContextMiddleware(tell=True, **given)
    outer = create_agent(
        ServedModel(script=run.outer, tool_name="call"),
        [caller(middle)],
        middleware=[watched],
        name="lead",
    )
    if is_async:
        asyncio.run(outer.ainvoke(QUESTION))
    else:
        outer.invoke(QUESTION)
    states = run.states()
    by_id = {state.agent_id: state for state in states}
    parents = {
        (state.label, by_id[state.parent_id].label if state.parent_id else None) for state in states
    }
    assert parents == {("lead", None), ("middle", "lead"), ("deepest", "middle")}
    assert {state.outcome for state in states} == {"completed"}
    tokens = {state.label: state.estimated_tokens for state in states}
    assert tokens == {"lead": 73_000, "middle": 31_000, "deepest": TURNS[-1][0]}
    assert NOTE in str(run.outer.requests)
    assert NOTE not in str([*inner.requests, *deep.requests])
    assert watched.adapter.agents == []


def caller(agent):
    """Make a tool that runs an agent, in the way of its caller."""

    def call() -> str:
        """Have it done."""
        agent.invoke(QUESTION)
        return "done"

    async def acall() -> str:
        """Have it done."""
        await agent.ainvoke(QUESTION)
        return "done"

    made = tool(call)
    made.coroutine = acall
    return made


def test_a_thread_comes_back_with_its_last_reading(run):
    """Another object, as in another process, continues it while it waits, and after its end."""
    run.outer.turns = ((80_000, 10), (81_000, 10), (82_000, 10))
    run.choices = {"tell": True}
    replies_once(run.outer)
    saver, readings = InMemorySaver(), []
    serve = run.outer.next_turn

    def look(request):
        (one,) = watched.adapter.agents
        readings.append(one.monitor.get_state().estimated_tokens)
        return serve(request)

    run.outer.next_turn = look
    for ends in (False, True, True):
        watched = ContextMiddleware(**run.adapter_choices())
        make_agent(run, run.outer, watched, checkpointer=saver).invoke(QUESTION, THREAD)
        if ends:
            watched.adapter.close()
    assert readings == [0, 80_000, 81_000]
    (state,) = run.states()
    assert (state.estimated_tokens, state.epoch) == (82_000, 1)
    assert [NOTE in request for request in run.outer.requests] == [False, True, False]


def test_threads_are_never_mixed(run):
    """The same name in another saver, or another name, is another agent."""
    run.outer.turns = ((1_000, 10),) * 4
    replies_once(run.outer)
    watched = ContextMiddleware(**run.adapter_choices())
    for saver, names in ((InMemorySaver(), ("a", "b")), (InMemorySaver(), ("a",))):
        agent = make_agent(run, run.outer, watched, checkpointer=saver)
        for name in names:
            agent.invoke(QUESTION, {"configurable": {"thread_id": name}})
    assert len(watched.adapter.agents) == len({one.agent_id for one in run.states()}) == 3


@pytest.mark.parametrize("is_callback", [False, True])
def test_a_model_that_reports_no_usage_is_estimated(run, is_callback):
    """The messages and the reply are counted, and labelled so."""
    run.outer.turns = ((0, 0), (0, 0))
    run.outer.look = lambda: "word " * 4_000
    if is_callback:
        with ContextCallbackHandler(**run.adapter_choices()) as handler:
            make_agent(run, run.outer, None).invoke(QUESTION, {"callbacks": [handler]})
    else:
        make_agent(run, run.outer, ContextMiddleware(**run.adapter_choices())).invoke(QUESTION)
    (state,) = run.states()
    assert state.tokens_source == "estimated"
    assert 3_000 < state.estimated_tokens < 8_000


class CountingThreads(ThreadPoolExecutor):
    """Counts what an event loop gives to threads."""

    def __init__(self):
        super().__init__(1)
        self.given = 0

    def submit(self, *given, **named):
        self.given += 1
        return super().submit(*given, **named)


def test_a_model_call_takes_no_thread(run):
    """In an event loop the start and the end of an agent do, however many calls it makes."""

    async def count(calls, watched):
        run.outer = Script()
        run.outer.turns = tuple((1_000 + number, 50) for number in range(calls))
        threads = CountingThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        await make_agent(run, run.outer, watched).ainvoke(QUESTION)
        return threads.given

    def more(calls):
        watched = ContextMiddleware(**run.adapter_choices())
        return asyncio.run(count(calls, watched)) - asyncio.run(count(calls, None))

    assert more(2) == more(6)


def test_a_program_that_traces_has_whole_spans():
    """LangSmith measures a coroutine function to its end."""
    watched = ContextMiddleware()
    hooks = (watched.awrap_model_call, watched.awrap_tool_call)
    assert not any(map(inspect.iscoroutinefunction, hooks))
    with tracing_context(enabled=True):
        hooks = (watched.awrap_model_call, watched.awrap_tool_call)
    assert all(map(inspect.iscoroutinefunction, hooks))


def test_the_config_of_a_tool_call_does_not_hold_itself(run):
    """It goes with its call, and not with the next garbage collection."""
    adapter = ContextMiddleware(**run.adapter_choices()).adapter
    nested = NestedAgents(adapter, adapter.begin())
    config = {"metadata": {"langgraph_checkpoint_ns": "tools:1"}}
    nested.attach(config, in_loop=True)
    (handler,) = map(weakref.ref, config["callbacks"])
    gc.disable()
    try:
        del config, nested
        assert handler() is None
    finally:
        gc.enable()
        adapter.close()
