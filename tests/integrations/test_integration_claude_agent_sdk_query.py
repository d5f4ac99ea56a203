"""How a query of the Claude Agent SDK ends, and which agent a session is, over a transport."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import pytest
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, Transport
from helpers.frameworks import Run

from ultramon.integrations.claude_agent_sdk import ContextHooks

RESULT = {"duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1}


class Served(Transport):
    """Answers a prompt with one message of so many tokens, and its result."""

    def __init__(self, tokens, session_id="s1"):
        self.tokens, self.session_id = tokens, session_id

    async def connect(self):
        self.messages = asyncio.Queue()

    async def write(self, data):
        sent = json.loads(data)
        if sent["type"] == "control_request":
            answer = {"subtype": "success", "request_id": sent["request_id"], "response": {}}
            self.messages.put_nowait({"type": "control_response", "response": answer})
            return
        named = {"session_id": self.session_id}
        self.messages.put_nowait({"type": "system", "subtype": "init", "model": "served"} | named)
        usage = {"input_tokens": self.tokens, "output_tokens": 1}
        message = {"model": "served", "content": [{"type": "text", "text": "Done."}]}
        self.messages.put_nowait({"type": "assistant", "message": message | {"usage": usage}})
        self.messages.put_nowait({"type": "result", "subtype": "success"} | named | RESULT)

    async def read_messages(self):
        while True:
            message = await self.messages.get()
            yield message
            if message["type"] == "result":
                return

    async def close(self):
        pass

    async def end_input(self):
        pass

    def is_ready(self):
        return True


@pytest.fixture
def run():
    return Run("async")


@pytest.fixture
def ask(run):
    """Start a query of a new object."""
    watched = ContextHooks(**run.adapter_choices())
    return lambda tokens=10_000, session_id="s1": watched.query(
        prompt="Go.", options=ClaudeAgentOptions(), transport=Served(tokens, session_id)
    )


class OwnError(Exception):
    pass


async def raise_in_loop(messages):
    async for message in messages:
        if isinstance(message, AssistantMessage):
            raise OwnError


async def raise_in_block(messages):
    async with aclosing(messages):
        await raise_in_loop(messages)


async def raise_behind_the_result(messages):
    async for message in messages:
        if isinstance(message, ResultMessage):
            raise OwnError


@pytest.mark.parametrize("work", [raise_in_loop, raise_behind_the_result])
def test_a_program_that_raises_inside_a_query_has_failed(run, ask, work):
    """The state names its error, which reaches the caller as ever."""

    async def whole():
        await work(ask())

    with pytest.raises(OwnError):
        asyncio.run(whole())
    (state,) = run.states()
    assert (state.outcome, state.exit["error"]) == ("failed", "OwnError")


@pytest.mark.parametrize("work", [raise_in_loop, raise_in_block])
def test_a_program_that_catches_what_it_raised_has_failed(run, ask, work):
    """Its turn was left before the result, and nothing else is known of it."""

    async def whole():
        with pytest.raises(OwnError):
            await work(ask())

    asyncio.run(whole())
    (state,) = run.states()
    assert (state.outcome, state.exit) == ("failed", {"error": "LeftQueryError"})


def test_a_program_that_is_cancelled_inside_a_query_is_cancelled(run, ask):
    """As everywhere: nobody failed."""

    async def read():
        async for message in ask():
            if isinstance(message, AssistantMessage):
                reading.set()
                await asyncio.Event().wait()

    reading = asyncio.Event()

    async def whole():
        task = asyncio.create_task(read())
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(whole())
    (state,) = run.states()
    assert state.outcome == "cancelled"


def test_a_program_that_leaves_behind_the_result_has_completed(run, ask):
    """Many programs stop reading there."""

    async def whole():
        async for message in ask():
            if isinstance(message, ResultMessage):
                break

    asyncio.run(whole())
    (state,) = run.states()
    assert (state.outcome, state.estimated_tokens) == ("completed", 10_000)


def test_a_session_that_is_resumed_is_the_same_agent(run):
    """By the client's id for it, with its last reading; another session is another agent."""

    async def turn(tokens, session_id):
        watched = ContextHooks(**run.adapter_choices())
        served = Served(tokens, session_id)
        seen = []
        async for message in watched.query(prompt="Go.", transport=served):
            if isinstance(message, AssistantMessage):
                seen = [agent.monitor.get_state() for agent in watched.adapter.agents]
        return seen

    for tokens, session_id in ((10_000, "s1"), (11_000, "s1"), (20_000, "s2")):
        asyncio.run(turn(tokens, session_id))
    by_tokens = {state.estimated_tokens: state for state in run.states()}
    assert set(by_tokens) == {11_000, 20_000}
    assert (by_tokens[11_000].epoch, by_tokens[11_000].generation) == (1, 2)
