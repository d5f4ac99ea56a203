"""Who calls, and what they may do: by what they prove, never by what they say.

`ultramon.server.http.authentication` asks `prove` before anything else happens; the routes ask for
the kind of caller that they are for. Whoever proves nothing gets the same 401 everywhere; who
proves something and has not the right gets 403, and what it tried is an event of type ``audit``.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import APIKeyHeader, HTTPBearer
from starlette.concurrency import run_in_threadpool

from ultramon.errors import AgentNotFoundError
from ultramon.server.caller import ADMIN, AGENT, HOOK, Caller
from ultramon.server.services import Services
from ultramon.system.ids import check_agent_id, random_hex
from ultramon.system.timestamps import format_time
from ultramon.tokens import verify_token

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from ultramon.state.record import StateRecord


HOOK_PATHS = "/hooks/"
HOOK_HEADERS = ("X-Ultramon-Hook-Secret", "X-SM-Hook-Secret")
"""Either may hold the hook secret; scripts that were written for another server send the second."""
_MAX_NOTED_CHARS = 200

# They only describe themselves in /openapi.json: `prove` has read the head before.
_bearer = HTTPBearer(
    auto_error=False, description="The admin token, an agent's token, or the hook secret."
)
_hook_header = APIKeyHeader(
    name=HOOK_HEADERS[0],
    auto_error=False,
    description="The hook secret; on routes under /hooks only.",
)


async def services_of(request: Request) -> Services:
    """Return the parts of the server that answers."""
    services: Services = request.app.state.services
    return services


Served = Annotated[Services, Depends(services_of)]


async def prove(services: Services, headers: Headers, path: str) -> Caller:
    """Return who sends a request.

    Args:
        services: The parts of the server.
        headers: Of the request.
        path: Of the request: the hook secret is good for those of hooks only.

    Raises:
        HTTPException: 401, nobody who is known here.
        StateError: The store cannot be read.
    """
    token = _bearer_token(headers)
    if path.startswith(HOOK_PATHS):
        for given in (token, *map(headers.get, HOOK_HEADERS)):
            if given is not None and _equal(given, services.hook_secret):
                return Caller(HOOK)
    if token is None:
        raise unauthorized()
    if _equal(token, services.admin_token):
        return Caller(ADMIN)
    agent_id = await run_in_threadpool(
        verify_token, token, backend=services.backend, clock=services.clock
    )
    if agent_id is None:
        raise unauthorized()
    return Caller(AGENT, agent_id)


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


def permit(request: Request, services: Services, caller: Caller, agent_id: str) -> StateRecord:
    """Return the state of an agent, to a caller who may look at it and act on it.

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
    record = services.backend.load(check_agent_id(agent_id)).record
    if record is None:
        raise AgentNotFoundError(agent_id)
    if not may_see(caller, record):
        problem = f"agent {caller.agent_id} is neither agent {agent_id} nor its direct parent"
        raise refuse(request, services, caller, problem, agent_id=agent_id)
    return record


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


def unauthorized() -> HTTPException:
    """Return the answer to whoever proves nothing: the same whatever was wrong."""
    return HTTPException(
        401, "a valid token is required: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
    )


def refuse(
    request: Request,
    services: Services,
    caller: Caller,
    problem: str,
    *,
    agent_id: str | None = None,
    claimed: str | None = None,
) -> HTTPException:
    """Note what a caller tried and may not; return the answer.

    Args:
        request: What was tried.
        services: The parts of the server.
        caller: Who did.
        problem: What is wrong, for the answer.
        agent_id: The agent that it was about, where one was named.
        claimed: In whose name, where it was not the caller's own.

    Raises:
        StateError: It cannot be noted.
    """
    services.backend.append_events(
        [
            {
                "eventId": random_hex(16),
                "type": "audit",
                "agentId": caller.agent_id or caller.kind,
                "sessionId": "",
                "run": "default",
                "generation": 0,
                "epoch": 1,
                "source": "server",
                "occurredAt": format_time(services.clock.now()),
                "n": int(random_hex(6), 16),  # each attempt is an event of its own
                "action": f"{request.method} {request.url.path}"[:_MAX_NOTED_CHARS],
                "target": agent_id,
                "claimed": None if claimed is None else claimed[:_MAX_NOTED_CHARS],
                "reason": problem[:_MAX_NOTED_CHARS],
            }
        ]
    )
    return HTTPException(403, problem)


def _bearer_token(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("latin-1"), expected.encode("ascii"))
