"""The route of hook scripts: readings and boundaries of agents."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from ultramon.errors import ConfigurationError
from ultramon.server.caller import AGENT
from ultramon.server.http.authorization import HookCaller, Served
from ultramon.server.http.error_responses import refuse
from ultramon.server.http.legacy_bodies import ContextUsage
from ultramon.server.http.responses import problems
from ultramon.server.posted_agents import COMPACTION_COMPLETE, EVENTS
from ultramon.server.services import Services
from ultramon.system import compact_json
from ultramon.system.ids import is_agent_id
from ultramon.system.timestamps import format_time, parse_time

router = APIRouter(tags=["hooks"])

HANDOFF = "handoff"
_BODY = {"content": {"application/json": {"schema": ContextUsage.model_json_schema()}}}


async def posted_body(request: Request) -> ContextUsage | None:
    """Return the parsed body; None for an empty body, and for one that is no JSON object."""
    try:
        values = compact_json.loads(await request.body())
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
    "/hooks/context-usage",
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
def context_usage(
    request: Request,
    services: Served,
    caller: HookCaller,
    post: Annotated[ContextUsage | None, Depends(posted_body)],
) -> Response | dict[str, Any]:
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
            raise refuse(request, problem, claimed=agent_id)
    if not is_agent_id(agent_id):
        return {"status": "unknown_session"}
    problem = f"agent {agent_id} posts too often: 200 at once and 50 in a second are taken"
    services.limit_rate(agent_id, problem)
    return _take(services, agent_id, post)


def _take(services: Services, agent_id: str, post: ContextUsage) -> dict[str, Any]:
    posted, now = services.posted, services.clock.now()
    if post.event == HANDOFF:
        return posted.note_handoff(agent_id, post.last_handoff_path, now)
    if post.event and post.event not in EVENTS:
        allowed = f"one of {', '.join((*EVENTS, HANDOFF))}, or none with a reading"
        raise ConfigurationError("event", post.event, allowed)
    emitted_at, warnings = _emitted_at(post.sm_hook_emitted_at)
    if post.event:
        answer = posted.report_event(agent_id, post.event, now, emitted_at=emitted_at)
        if post.event == COMPACTION_COMPLETE and answer["status"] == EVENTS[post.event]:
            answer.setdefault("last_handoff_path", None)
    else:
        answer = posted.report_usage(
            agent_id,
            now,
            used_percentage=post.used_percentage,
            total_input_tokens=post.total_input_tokens,
            emitted_at=emitted_at,
        )
    return {**answer, "warnings": warnings} if warnings else answer


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
        return None, [f"sm_hook_emitted_at {shown!r} is no time; the post counts as without one"]
    return at, []
