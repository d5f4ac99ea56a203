"""The hooks of Claude Code as requests instead of processes: the same work, the same answers.

The server reads the session's transcript, so it runs where the client does. A failure is a line in
the failure log, as with the process, and the client is answered all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Header, HTTPException, Request, Response
from starlette.background import BackgroundTask

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError
from ultramon.hosts import failure_log
from ultramon.hosts.claude_code import NAME, last_request
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.setup.http_hooks import OFF_HEADER, OFF_VARIABLE, PATH
from ultramon.hosts.handling import HookCall
from ultramon.hosts.hook_program import decode_payload, stands_down
from ultramon.hosts.installed_choices import choices_path
from ultramon.hosts.session_environment import kept_environment
from ultramon.hosts.store import HookStore
from ultramon.server.caller import AGENT
from ultramon.server.http.authorization import HookCaller, Served
from ultramon.server.http.error_responses import refuse
from ultramon.server.http.responses import problems
from ultramon.system.environment import is_on

if TYPE_CHECKING:
    from ultramon.hosts.port import HookEvent
    from ultramon.server.services import Services

router = APIRouter(tags=["hooks"])

_TOO_OFTEN = "this session calls too often: 200 calls at once and 50 in a second are taken"
_BODY = {
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "description": "What the client hands to a hook: hook_event_name, session_id, …",
            }
        }
    }
}


async def posted_bytes(request: Request) -> bytes:
    """Return the body as it came; the request filter has bounded it."""
    return await request.body()


@router.post(
    PATH,
    response_model=None,
    status_code=200,
    responses={
        200: {"description": "What the client takes into the conversation, as a hook prints it."},
        204: {"description": "There is nothing to tell."},
        **problems(body=True),
    },
    openapi_extra={"requestBody": _BODY},
)
def claude_code(
    request: Request,
    services: Served,
    caller: HookCaller,
    body: Annotated[bytes, Depends(posted_bytes)],
    off: Annotated[str, Header(alias=OFF_HEADER)] = "",
) -> Response:
    """Take a hook call of the client.

    With the hook secret or the admin token. An empty body is a question whether the caller may
    call at all. A session whose start no hook process reported is not measured: ultramon is off
    for it, or it keeps its states elsewhere. One of a relay is not either: the relay's own hooks
    report it.
    """
    if caller.kind == AGENT:
        raise refuse(request, "hooks of a client prove the hook secret")
    if not body or is_on(OFF_VARIABLE, {OFF_VARIABLE: off}):
        return _nothing()
    event = _read_event(services, body)
    services.limit_rate(event.session_id, _TOO_OFTEN)
    return _answered(services, event)


def _read_event(services: Services, body: bytes) -> HookEvent:
    """Translate a request.

    Raises:
        HTTPException: 422, it is no payload of a hook.
    """
    try:
        return CLAUDE_CODE.read_event(decode_payload(body), {})
    except ValueError as error:
        _fail(services, "", "", error)
        raise HTTPException(422, "the body is no payload of a hook") from error


def _answered(services: Services, event: HookEvent) -> Response:
    directory, now = services.state_directory, services.clock.now()
    agent_id = event.session_id
    try:
        environ = _session_environment(directory, agent_id)
        path = choices_path(directory, NAME)
        # A relay's own hooks were the first of its session, and left its name there.
        if environ is None or stands_down(environ, path):
            return _nothing()
        store = HookStore(CLAUDE_CODE, directory, path, environ, event=event.name, now=now)
        call = HookCall(event, store, is_request=True)
        agent_id = call.agent_id
        answer = call.answer()
        last_request.note(directory, now)
    except Exception as error:  # noqa: BLE001 - as the process: the client must go on
        _fail(services, event.name, agent_id, error)
        return _nothing()
    # A notice counts as delivered only when the answer has left.
    after = BackgroundTask(call.acknowledge)
    if not answer.startswith(b"{"):
        # The client takes nothing but JSON from a request; only a note for a compaction is none.
        return Response(status_code=204, background=after)
    return Response(answer, 200, None, "application/json", after)


def _session_environment(directory: str, session_id: str) -> dict[str, str] | None:
    """Return the environment of a session; None when none of its processes has called a hook."""
    try:
        record = StateDirectory(directory).read(session_id)
    except AgentNotFoundError:
        return None
    return kept_environment(record.extra.get(CLAUDE_CODE.memory_field))


def _nothing() -> Response:
    # With any body, even an empty object, the client writes a line into the session's transcript.
    return Response(status_code=204)


def _fail(services: Services, event: str, agent_id: str, error: Exception) -> None:
    problem = f"{type(error).__name__}: {error}"
    now = services.clock.now()
    failure_log.record(services.state_directory, NAME, event, agent_id, problem, now=now)
