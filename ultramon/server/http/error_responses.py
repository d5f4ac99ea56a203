"""What goes wrong, as answers: one status for each kind of error, the words in ``detail``."""

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
    NotPermittedError,
    QueueFullError,
    RegistrationError,
    StateError,
    UltramonError,
)
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from fastapi import FastAPI, Request

    from ultramon.server.caller import Caller
    from ultramon.server.services import Services

_STATUSES: tuple[tuple[type[UltramonError], int], ...] = (
    (AgentNotFoundError, 404),
    (NotPermittedError, 403),
    (AgentAlreadyRunningError, 409),
    (FencedError, 409),
    (HandoffTakenError, 409),
    (LifecycleError, 409),
    (QueueFullError, 429),
    (StateError, 503),
)
# Of a registration: the agent has ended; and whoever is to be told never asked for it.
_REGISTRATION_STATUSES = {
    "stopped": 409,
    "ended": 409,
    "notify_cycle": 409,
    "notify_refused": 403,
}
_FORBIDDEN = 403
_REFUSED = 422
_MAX_NOTED_CHARS = 200


class Json(JSONResponse):
    """JSON in ASCII: whatever text an agent was given, an answer can be made of it."""

    def render(self, content: Any) -> bytes:
        """Return the body of an answer."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def status_of(error: UltramonError) -> int:
    """Return the status of an error; 422 for what was asked wrongly."""
    if isinstance(error, RegistrationError):
        return _REGISTRATION_STATUSES.get(error.problem, _REFUSED)
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), _REFUSED)


def answer(error: UltramonError) -> Json:
    """Return the answer to a request that raised an error of ultramon."""
    return Json({"detail": str(error)}, status_of(error))


def answer_http(error: HTTPException) -> Json:
    """Return the answer to a request that was refused with a status."""
    headers = None if error.headers is None else dict(error.headers)
    return Json({"detail": error.detail}, error.status_code, headers)


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


def install_failures(app: FastAPI) -> None:
    """Have an application answer what is raised in it."""

    @app.exception_handler(UltramonError)
    async def failed(request: Request, error: UltramonError) -> Json:
        if status_of(error) != _FORBIDDEN:
            return answer(error)
        services, caller = app.state.services, request.state.caller
        claimed = getattr(error, "requester", None)
        refusal = await run_in_threadpool(
            refuse,
            request,
            services,
            caller,
            str(error),
            agent_id=getattr(error, "agent_id", None),
            claimed=None if claimed == caller.agent_id else claimed,
        )
        return answer_http(refusal)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Json:
        return answer_http(error)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: RequestValidationError) -> Json:
        # What was sent is not sent back: it may be long, or have no form as JSON.
        problems = [
            {name: problem[name] for name in ("type", "loc", "msg")} for problem in error.errors()
        ]
        return Json({"detail": problems}, _REFUSED)

    @app.exception_handler(Exception)
    async def broken(_: Request, _error: Exception) -> Json:
        return Json({"detail": "the server failed; its log says why"}, 500)
