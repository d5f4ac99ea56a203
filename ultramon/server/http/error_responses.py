"""Answers to requests that fail: one status per kind of error, the text in ``detail``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    FencedError,
    HandoffTakenError,
    LifecycleError,
    MissingExtraError,
    NotPermittedError,
    QueueFullError,
    RegistrationError,
    StateError,
    UltramonError,
)
from ultramon.state.record import StateRecord
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from ultramon.server.caller import Caller
    from ultramon.server.services import Services

_STATUSES: tuple[tuple[tuple[type[UltramonError], ...], int], ...] = (
    ((AgentNotFoundError,), 404),
    ((NotPermittedError,), 403),
    ((AgentAlreadyRunningError, FencedError, HandoffTakenError, LifecycleError), 409),
    ((QueueFullError,), 429),
    ((StateError, MissingExtraError), 503),
)
# Of a registration: the agent has ended; the recipient never asked for it.
_REGISTRATION_STATUSES = {
    "stopped": 409,
    "ended": 409,
    "notify_cycle": 409,
    "notify_refused": 403,
}
_FORBIDDEN = 403
_REFUSED = 422
_MAX_AUDIT_CHARS = 200


class Json(JSONResponse):
    """JSON in ASCII, so that any text of an agent can be part of an answer."""

    def render(self, content: Any) -> bytes:
        """Return the body of an answer."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def status_of(error: UltramonError) -> int:
    """Return the status of an error; 422 for an invalid request."""
    if isinstance(error, RegistrationError):
        return _REGISTRATION_STATUSES.get(error.problem, _REFUSED)
    return next((status for kinds, status in _STATUSES if isinstance(error, kinds)), _REFUSED)


def answer(error: UltramonError | HTTPException) -> Json:
    """Return the answer to a request that failed, or was refused with a status."""
    if isinstance(error, HTTPException):
        return Json({"detail": error.detail}, error.status_code, error.headers)
    return Json({"detail": str(error)}, status_of(error))


def refuse(
    request: Request, problem: str, *, agent_id: str | None = None, claimed: str | None = None
) -> HTTPException:
    """Record an audit event about a request that its caller may not make; return the answer 403.

    Args:
        request: The request.
        problem: The reason, for the answer.
        agent_id: The agent that the request names.
        claimed: The requester that the body names, if it is not the caller.

    Raises:
        StateError: The event cannot be stored.
    """
    services: Services = request.app.state.services
    caller: Caller = request.state.caller
    event = StateRecord(
        caller.agent_id or caller.kind, run="default", epoch=1
    ).event(
        "audit",
        source="server",
        at=services.now(),
        n=int(random_hex(6), 16),  # each attempt is an event of its own
        action=f"{request.method} {request.url.path}"[:_MAX_AUDIT_CHARS],
        target=agent_id,
        claimed=None if claimed is None else claimed[:_MAX_AUDIT_CHARS],
        reason=problem[:_MAX_AUDIT_CHARS],
    )
    services.backend.append_events([event])
    return HTTPException(403, problem)


def install_error_handlers(app: FastAPI) -> None:
    """Answer every exception that a route of an application raises."""

    @app.exception_handler(UltramonError)
    async def failed(request: Request, error: UltramonError) -> Json:
        if status_of(error) != _FORBIDDEN:
            return answer(error)
        requester, agent_id = getattr(error, "requester", None), getattr(error, "agent_id", None)
        claimed = None if requester == request.state.caller.agent_id else requester
        refusal = await run_in_threadpool(
            refuse, request, str(error), agent_id=agent_id, claimed=claimed
        )
        return answer(refusal)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Json:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Json:
        # The input is not sent back: it may be long, or have no form as JSON.
        problems = [
            {name: problem[name] for name in ("type", "loc", "msg")} for problem in error.errors()
        ]
        return Json({"detail": problems}, _REFUSED)

    @app.exception_handler(Exception)
    async def broken(_: Request, _error: Exception) -> Json:
        return Json({"detail": "the server failed; its log says why"}, 500)
