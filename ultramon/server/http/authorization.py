"""The rights of callers: by their credentials, never by what a body claims.

`ultramon.server.http.authentication` has identified the caller; each route depends on the kind of
caller that it admits. A caller without the right gets 403, and the attempt is recorded as an event
of type ``audit``.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.concurrency import run_in_threadpool

from ultramon.backends.base import StoredAgent
from ultramon.server.caller import HOOK, METRICS, Caller
from ultramon.server.http.authentication import HOOK_HEADERS, unauthorized
from ultramon.server.http.error_responses import refuse
from ultramon.server.http.responses import AgentIdInPath
from ultramon.server.services import Services
from ultramon.system.ids import check_agent_id


class _Documented(SecurityBase):
    """A scheme in /openapi.json; the caller is identified before a route is looked up."""

    def __init__(self, scheme: HTTPBearer | APIKeyHeader) -> None:
        self.model, self.scheme_name = scheme.model, scheme.scheme_name

    async def __call__(self) -> None:
        """Read nothing."""


_bearer = _Documented(
    HTTPBearer(
        description="The admin token, an agent's token, the hook secret, or the token of metrics."
    )
)
_hook_header = _Documented(
    APIKeyHeader(name=HOOK_HEADERS[0], description="The hook secret; on routes under /hooks only.")
)


async def services_of(request: Request) -> Services:
    """Return the parts of the running server."""
    services: Services = request.app.state.services
    return services


Served = Annotated[Services, Depends(services_of)]


async def hook_caller(
    request: Request,
    _bearer: Annotated[None, Depends(_bearer)],
    _secret: Annotated[None, Depends(_hook_header)],
) -> Caller:
    """Admit the hook secret, the admin, and agents."""
    caller: Caller = request.state.caller
    return caller


async def any_caller(request: Request, _bearer: Annotated[None, Depends(_bearer)]) -> Caller:
    """Admit the admin and agents."""
    caller: Caller = request.state.caller
    if caller.kind == HOOK:
        raise unauthorized()
    return caller


HookCaller = Annotated[Caller, Depends(hook_caller)]
AnyCaller = Annotated[Caller, Depends(any_caller)]


async def metrics_caller(request: Request, _bearer: Annotated[None, Depends(_bearer)]) -> Caller:
    """Admit the token of metrics, and the admin."""
    caller: Caller = request.state.caller
    if caller.kind != METRICS and not caller.is_admin:
        problem = "only the token of metrics and the admin token may do this"
        raise await run_in_threadpool(refuse, request, problem)
    return caller


MetricsCaller = Annotated[Caller, Depends(metrics_caller)]


async def admin_caller(request: Request, caller: AnyCaller) -> Caller:
    """Admit the admin only."""
    if not caller.is_admin:
        raise await run_in_threadpool(refuse, request, "only the admin token may do this")
    return caller


AdminCaller = Annotated[Caller, Depends(admin_caller)]


def may_see(caller: Caller, stored: StoredAgent) -> bool:
    """Return whether a caller may read an agent and act on it: the admin, it, its direct parent."""
    parent_id = None if stored.record is None else stored.record.parent_id
    return caller.is_admin or caller.agent_id in (stored.agent_id, parent_id)


def permit(request: Request, agent_id: str) -> StoredAgent:
    """Return an agent with its state, if the caller may read it and act on it; see `may_see`.

    Raises:
        InvalidAgentIdError: It is no agent id.
        AgentNotFoundError: There is no such agent.
        StateError: Its state cannot be read.
        HTTPException: 403, the caller may not; this is recorded as an audit event.
    """
    services: Services = request.app.state.services
    caller: Caller = request.state.caller
    # Its state was loaded to verify the token, and is not loaded twice.
    if caller.stored is not None and caller.agent_id == agent_id:
        return caller.stored
    stored = services.backend.load(check_agent_id(agent_id))
    if not may_see(caller, stored):
        problem = f"agent {caller.agent_id} is neither agent {agent_id} nor its direct parent"
        raise refuse(request, problem, agent_id=agent_id)
    return stored


def _permitted_agent(agent_id: AgentIdInPath, request: Request, _: AnyCaller) -> StoredAgent:
    return permit(request, agent_id)


PermittedAgent = Annotated[StoredAgent, Depends(_permitted_agent)]
"""The agent in the path, which the caller may read and act on."""


def requester_of(request: Request, claimed: str | None) -> str | None:
    """Return the agent in whose name the caller acts.

    Args:
        request: Its caller may be the admin, who acts for any agent, or an agent, for itself only.
        claimed: The requester in the body.

    Returns:
        An agent id; None for an admin who names no agent.

    Raises:
        HTTPException: 403, an agent names another one; this is recorded as an audit event.
    """
    caller: Caller = request.state.caller
    if caller.is_admin:
        return claimed
    if claimed not in (None, caller.agent_id):
        problem = f"the token is that of agent {caller.agent_id}, not of {claimed!r}"
        raise refuse(request, problem, claimed=claimed)
    return caller.agent_id
