"""The tools and resources, as the MCP library serves them over stdin and stdout."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from ultramon.errors import UltramonError
from ultramon.mcp.models import ContextStatus, Fitting, HandedOff, Plan
from ultramon.mcp.own_agent import OwnAgent
from ultramon.version import __version__

FindOwnAgent = Callable[[Mapping[str, Any]], OwnAgent]
"""Returns the agent behind a call, by the ``_meta`` of the call.

Raises:
    LookupError: No agent is known.
    InvalidAgentIdError: Its id is none.
"""

INSTRUCTIONS = """\
ultramon knows how full your context window is. Ask context_status when a task is long, and
will_it_fit before you read something large. Keep your tasks with plan and task_done, so that a
successor knows what is done; hand_off leaves your work to one. All tools are about you, the
calling agent."""

_READS = ToolAnnotations(
    read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False
)
_ADDS = ToolAnnotations(
    read_only_hint=False, idempotent_hint=True, destructive_hint=False, open_world_hint=False
)
_LIST = Field(max_length=200)
_Tokens = Annotated[int, Field(ge=0, le=1_000_000_000)]
_JSON = "application/json"
# Their words say what to do, so they are the model's to read; any other error is logged.
_FORESEEN = (UltramonError, OSError, ValueError, LookupError)


def make_server(find: FindOwnAgent) -> MCPServer[Any]:
    """Return the server; `MCPServer.run` serves it until stdin is closed.

    Args:
        find: Finds the calling agent, for each call anew: a host may clear its session.
    """
    server: MCPServer[Any] = MCPServer(
        "ultramon", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING"
    )

    def own(context: Context[Any, Any]) -> OwnAgent:
        # Per call: the server outlives a clear, and one server serves a session's subagents too.
        return find(context.request_context.meta or {})

    @server.tool(annotations=_READS)
    def context_status(
        context: Context[Any, Any],
        agent_id: Annotated[
            str | None, Field(description="A subagent of yours; leave it out for yourself")
        ] = None,
    ) -> ContextStatus:
        """Say how full your context window is: tokens, limit, percentage, level, turns left.

        What is not known is "unknown". `action` says what is asked of you now.
        """
        with _tool_errors():
            return own(context).status(agent_id)

    @server.tool(annotations=_READS)
    def will_it_fit(
        context: Context[Any, Any],
        tokens: Annotated[
            _Tokens | None, Field(description="Its size in tokens, if you know it")
        ] = None,
        characters: Annotated[
            _Tokens | None, Field(description="Its size in characters or bytes")
        ] = None,
        file: Annotated[
            str | None, Field(description="A text file below your working directory")
        ] = None,
    ) -> Fitting:
        """Say whether something large would fit into your context window, before you read it.

        Give exactly one of tokens, characters and file. Nothing of the file enters your context.
        """
        with _tool_errors():
            return own(context).will_it_fit(tokens=tokens, characters=characters, file=file)

    @server.tool(annotations=_ADDS)
    def plan(
        context: Context[Any, Any],
        add: Annotated[
            list[str], _LIST, Field(description="Names of tasks to add, up to 200 characters each")
        ] = [],  # noqa: B006 - the schema shows the default, and nothing changes it
        start: Annotated[
            str | None, Field(description="The task that you begin now; added if it is new")
        ] = None,
    ) -> Plan:
        """Show your plan; add tasks to it or begin one. A task that is there is not added again.

        Tasks of the host's own task list are shown too, and are changed there.
        """
        with _tool_errors():
            return own(context).plan(add, start)

    @server.tool(annotations=_ADDS)
    def task_done(
        context: Context[Any, Any],
        task: Annotated[
            str | None, Field(description="Its name in the plan; leave it out for the current task")
        ] = None,
        result: Annotated[str | None, Field(description="Where its result is, e.g. a path")] = None,
    ) -> Plan:
        """Mark a task of your plan as done, and show the plan."""
        with _tool_errors():
            return own(context).finish_task(task, result)

    @server.tool(annotations=_ADDS)
    def hand_off(
        context: Context[Any, Any],
        *,
        notes: Annotated[
            str | None, Field(description="What you learned that a successor needs")
        ] = None,
        next_step: Annotated[
            str | None, Field(description="What a successor should do first")
        ] = None,
        decisions: Annotated[list[str], _LIST, Field(description="What was decided")] = [],  # noqa: B006
        open_questions: Annotated[list[str], _LIST, Field(description="What is not known")] = [],  # noqa: B006
        files_modified: Annotated[list[str], _LIST, Field(description="Paths")] = [],  # noqa: B006
    ) -> HandedOff:
        """Leave your work to a successor: your plan says what is done and left, you add the rest.

        You are not stopped. A later hand_off replaces the earlier one.
        """
        with _tool_errors():
            return own(context).hand_off(
                notes=notes,
                next_step=next_step,
                decisions=decisions,
                open_questions=open_questions,
                files_modified=files_modified,
            )

    @server.resource("ultramon://agent", title="Your own state", mime_type=_JSON)
    def own_state() -> str:
        """The stored state of the session, with the field names of its state file."""
        with _resource_errors():
            return json.dumps(find({}).state(None))

    @server.resource(
        "ultramon://agents/{agent_id}", title="The state of a subagent", mime_type=_JSON
    )
    def state_of_agent(agent_id: str, context: Context[Any, Any]) -> str:
        """The stored state of the calling agent, or of a subagent that it started."""
        with _resource_errors():
            return json.dumps(own(context).state(agent_id))

    return server


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, UltramonError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return str(error)


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Give the model the words of an error; only an unforeseen one is logged."""
    try:
        yield
    except _FORESEEN as error:
        raise ToolError(_words(error)) from error


@contextmanager
def _resource_errors() -> Iterator[None]:
    try:
        yield
    except _FORESEEN as error:
        raise ResourceError(_words(error)) from error
