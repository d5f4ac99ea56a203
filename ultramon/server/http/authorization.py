"""Who calls, and what they may do: by what they prove, never by what they say.

`ultramon.server.http.authentication` asks `prove` before anything else happens; the routes ask for
the kind of caller that they are for. Whoever proves nothing gets the same 401 everywhere; who
proves something and has not the right gets 403, and what it tried is an event of type ``audit``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.concurrency import run_in_threadpool

from ultramon.errors import AgentNotFoundError
from ultramon.server.caller import ADMIN, HOOK, Caller
from ultramon.server.http.authentication import HOOK_HEADERS, unauthorized
from ultramon.server.http.error_responses import refuse
from ultramon.server.services import Services
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent
    from ultramon.state.record import StateRecord


class _Documented(SecurityBase):
    """A scheme in /openapi.json; the caller is identified before a route is looked up."""

    def __init__(self, scheme: HTTPBearer | APIKeyHeader) -> None:
        self.model, self.scheme_name = scheme.model, scheme.scheme_name

    async def __call__(self) -> None:
        """Read nothing."""


_bearer = _Documented(
    HTTPBearer(description="The admin token, an agent's token, or the hook secret.")
)
_hook_header = _Documented(
    APIKeyHeader(name=HOOK_HEADERS[0], description="The hook secret; on routes under /hooks only.")
)


async def services_of(request: Request) -> Services:
    """Return the parts of the server that answers."""
    services: Services = request.app.state.services
    return services


Served = Annotated[Services, Depends(services_of)]


async def hook_caller(
    request: Request,
    _bearer: Annotated[object, Depends(_bearer)],
    _secret: Annotated[object, Depends(_hook_header)],
) -> Caller:
    """Admit whoever has the hook secret, the admin, and agents."""
    caller: Caller = request.state.caller
    return caller


HookCaller = Annotated[Caller, Depends(hook_caller)]


async def any_caller(request: Request, _bearer: Annotated[object, Depends(_bearer)]) -> Caller:
    """Admit the admin and agents."""
    caller: Caller = request.state.caller
    if caller.kind == HOOK:
        raise unauthorized()
    return caller


AnyCaller = Annotated[Caller, Depends(any_caller)]


async def admin_caller(request: Request, services: Served, caller: AnyCaller) -> Caller:
    """Admit the admin only."""
    if caller.kind != ADMIN:
        problem = "only the admin token may do this"
        raise await run_in_threadpool(refuse, request, services, caller, problem)
    return caller


AdminCaller = Annotated[Caller, Depends(admin_caller)]


def permit(request: Request, services: Services, caller: Caller, agent_id: str) -> StoredAgent:
    """Return an agent with its state, to a caller who may read it and act on it.

    That is the admin, the agent itself, and its direct parent.

    Args:
        request: For the audit event.
        services: The parts of the server.
        caller: Who calls.
        agent_id: The agent, as it was asked for.

    Raises:
        InvalidAgentIdError: It is no agent id.
        AgentNotFoundError: There is no such agent.
        StateError: Its state cannot be read.
        HTTPException: 403, it is the agent of somebody else.
    """
    if caller.stored is not None and caller.agent_id == agent_id:
        return caller.stored
    stored = services.backend.load(check_agent_id(agent_id))
    if stored.record is None:
        raise AgentNotFoundError(agent_id)
    if not may_see(caller, stored.record):
        problem = f"agent {caller.agent_id} is neither agent {agent_id} nor its direct parent"
        raise refuse(request, services, caller, problem, agent_id=agent_id)
    return stored


def may_see(caller: Caller, record: StateRecord) -> bool:
    """Return whether an agent is the caller's: its own, or a direct child's."""
    return caller.kind == ADMIN or caller.agent_id in (record.agent_id, record.parent_id)


def requester_of(
    request: Request, services: Services, caller: Caller, claimed: str | None
) -> str | None:
    """Return in whose name a caller acts.

    Args:
        request: For the audit event.
        services: The parts of the server.
        caller: Who calls.
        claimed: Whom the body names: the admin may speak for anybody, an agent for itself.

    Returns:
        An agent id; None for an admin who names nobody.

    Raises:
        HTTPException: 403, an agent names another one.
    """
    if caller.kind == ADMIN:
        return claimed
    if claimed not in (None, caller.agent_id):
        problem = f"the token is that of agent {caller.agent_id}, not of {claimed!r}"
        raise refuse(request, services, caller, problem, claimed=claimed)
    return caller.agent_id
