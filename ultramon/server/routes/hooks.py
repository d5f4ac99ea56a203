"""The route of hook scripts: readings and boundaries of agents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from ultramon.errors import ConfigurationError, UltramonError
from ultramon.server.caller import AGENT, Caller
from ultramon.server.http.authorization import HookCaller, Served
from ultramon.server.http.error_responses import Json, answer, refuse
from ultramon.server.http.legacy_bodies import ContextUsage
from ultramon.server.http.request_filter import repeat_first
from ultramon.server.http.responses import problems
from ultramon.server.posted_agents import COMPACTION_COMPLETE, EVENTS
from ultramon.server.services import Services
from ultramon.system import compact_json
from ultramon.system.ids import is_agent_id
from ultramon.system.timestamps import format_time, parse_time

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

router = APIRouter(tags=["hooks"])

PATH = "/hooks/context-usage"
HANDOFF = "handoff"
_BODY = {"content": {"application/json": {"schema": ContextUsage.model_json_schema()}}}


async def posted_body(request: Request) -> ContextUsage | None:
    """Return the parsed body; None for an empty body, and for one that is no JSON object."""
    return parse_body(await request.body())


def parse_body(body: bytes) -> ContextUsage | None:
    """Return a body as `posted_body` does.

    Raises:
        RequestValidationError: A member is not of its kind.
    """
    try:
        values = compact_json.loads(body)
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    try:
        return ContextUsage.model_validate(values)
    except ValidationError as error:
        problems = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        raise RequestValidationError(problems) from error


@router.post(
    PATH,
    response_model=None,
    responses={
        200: {
            "description": "The result, as `status`: `ok`, `not_registered`, "
            "`stale_sample`, `compaction_logged`, `compaction_complete_logged`, `flags_reset`, "
            "`handoff_noted`, `unknown_session`, `measured_elsewhere` or `stopped`."
        },
        204: {"description": "The body is empty or no JSON object; nothing changed."},
        **problems(body=True),
    },
    openapi_extra={"requestBody": _BODY},
)
async def context_usage(
    request: Request,
    services: Served,
    caller: HookCaller,
    post: Annotated[ContextUsage | None, Depends(posted_body)],
) -> Response:
    """Post a reading or an event of an agent.

    An agent's token posts for that agent only, and the body need not name it. Every well-formed
    post is answered 200 with a `status`. Events are `compaction`, `compaction_complete`,
    `context_reset` and `handoff`.
    """
    if post is None:
        return Response(status_code=204)
    agent_id = post.agent_id
    if caller.kind == AGENT:
        agent_id = agent_id or caller.agent_id
        if agent_id != caller.agent_id:
            problem = f"the token is that of agent {caller.agent_id}, which posts for itself only"
            # A refusal is stored as an event, which must not hold up the loop.
            raise await run_in_threadpool(refuse, request, problem, claimed=agent_id)
    return Json(await _take(services, agent_id, post))


async def _take(services: Services, agent_id: str | None, post: ContextUsage) -> dict[str, Any]:
    if not is_agent_id(agent_id):
        return {"status": "unknown_session"}
    problem = f"agent {agent_id} posts too often: 200 at once and 50 in a second are taken"
    services.limit_rate(agent_id, problem)
    emitted_at, warnings = _emitted_at(post.sm_hook_emitted_at)
    if post.event:
        taken = await run_in_threadpool(_take_event, services, agent_id, post, emitted_at)
        if post.event == HANDOFF:
            return taken
    else:
        report = partial(
            services.posted.report_usage,
            agent_id,
            services.clock.now(),
            used_percentage=post.used_percentage,
            total_input_tokens=post.total_input_tokens,
            emitted_at=emitted_at,
        )
        # A pool of its own: by that of the routes a post took 0.7 ms of processor time more.
        taken = await asyncio.get_running_loop().run_in_executor(services.threads, report)
    return {**taken, "warnings": warnings} if warnings else taken


@dataclass(frozen=True, slots=True)
class ReadingLane:
    """Answers posted readings before a route is looked up, which takes longer than the reading.

    Everything else, and each reading that has to be refused, goes to its route.

    Attributes:
        app: The routes.
        services: The parts of the server.
    """

    app: ASGIApp
    services: Services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a reading, or pass the request on."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        message = await receive()  # the whole body: the request filter has read it
        post = _find_reading(scope["state"]["caller"], message)
        if post is None:
            await self.app(scope, repeat_first(message, receive), send)
            return
        reply: Response
        try:
            reply = Json(await _take(self.services, post.agent_id, post))
        except (HTTPException, UltramonError) as error:
            reply = answer(error)
        await reply(scope, receive, send)


def _find_reading(caller: Caller, message: Message) -> ContextUsage | None:
    try:
        post = parse_body(message.get("body", b""))
    except RequestValidationError:
        # The route behind refuses it in the form of every other refusal.
        return None
    if post is None or post.event:
        return None
    is_own = caller.kind != AGENT or post.agent_id == caller.agent_id
    return post if is_own else None


def _take_event(
    services: Services, agent_id: str, post: ContextUsage, emitted_at: float | None
) -> dict[str, Any]:
    posted, now, event = services.posted, services.clock.now(), post.event
    if event == HANDOFF:
        return posted.note_handoff(agent_id, post.last_handoff_path, now)
    if event not in EVENTS:
        allowed = f"one of {', '.join((*EVENTS, HANDOFF))}, or none with a reading"
        raise ConfigurationError("event", event, allowed)
    taken = posted.report_event(agent_id, event, now, emitted_at=emitted_at)
    if event == COMPACTION_COMPLETE and taken["status"] == EVENTS[event]:
        taken.setdefault("last_handoff_path", None)
    return taken


def _emitted_at(given: str | float | None) -> tuple[float | None, list[str]]:
    """Return the time that a poster gave, and warnings about it.

    A time that cannot be parsed counts as none: the reading is worth more than its order.
    """
    if given is None or given == "":
        return None, []
    try:
        at = given if isinstance(given, float) else parse_time(given) or float(given)
        format_time(at)
    except (ValueError, OverflowError):
        shown = str(given)[:40]
        # A time that cannot be read is no reason to lose the reading.
        return None, [f"sm_hook_emitted_at {shown!r} is no time; the post counts as without one"]
    return at, []
