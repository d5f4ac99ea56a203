"""Deep agents: their own subagents are seen through the middleware of the agent above."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("deepagents", reason="in an environment of its own: pip install deepagents")

from deepagents import create_deep_agent
from helpers.frameworks import Run, Script
from helpers.frameworks.langchain import ServedModel

from ultramon.integrations.langchain import ContextMiddleware

QUESTION = {"messages": [("user", "Go.")]}
pytestmark = pytest.mark.filterwarnings("default")  # its imports warn


class Delegating(ServedModel):
    """Hands its first task to a subagent; then it answers."""

    def _reply(self, messages):
        reply = super()._reply(messages)
        for call in reply["tool_calls"]:
            call["name"] = "task"
            call["args"] = {"description": "Go.", "subagent_type": "searcher"}
        return reply


@pytest.mark.parametrize("is_async", [False, True])
def test_the_subagents_of_a_deep_agent_are_children(is_async):
    """Each has its own readings and ends with its task; the lead's are its own."""
    run = Run("plain")
    run.outer.turns = ((10_000, 50), (20_000, 50))
    inner = Script(turns=((30_000, 50),))
    next_turn = inner.next_turn
    inner.next_turn = lambda request: (*next_turn(request)[:2], False)
    watched = ContextMiddleware(**run.adapter_choices())
    searcher = {
        "name": "searcher",
        "description": "Searches.",
        "system_prompt": "Search.",
        "model": ServedModel(script=inner),
        "tools": [],
    }
    agent = create_deep_agent(
        Delegating(script=run.outer), [], middleware=[watched], subagents=[searcher]
    )
    if is_async:
        asyncio.run(agent.ainvoke(QUESTION))
    else:
        agent.invoke(QUESTION)
    lead, child = sorted(run.states(), key=lambda state: state.parent_id or "")
    assert (child.parent_id, child.label) == (lead.agent_id, "searcher")
    assert (lead.estimated_tokens, child.estimated_tokens) == (20_000, 30_000)
    assert [lead.outcome, child.outcome] == ["completed"] * 2
    assert watched.adapter.agents == []
