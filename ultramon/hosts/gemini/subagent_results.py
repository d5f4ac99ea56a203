"""What the end of an ``invoke_agent`` call says about its subagent.

Standard library only; loaded by these calls, which are rare.
"""

from __future__ import annotations

from ultramon.hosts.port import LaunchedSubagent, ReturnedSubagent
from ultramon.hosts.transcripts.jsonl import text_of, text_or_none
from ultramon.hosts.transcripts.records import OVERFLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.gemini.subagent_files import SubagentFile
    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.jsonl import JsonObject

_OVERFLOW_MARK = "exceeds the maximum number of tokens"
_ERROR_MARK = "failed. Error: "
_GOAL = "GOAL"


def read_result(event: HookEvent, payload: JsonObject, found: list[SubagentFile]) -> None:
    """Note which subagent has come back with a call, and how.

    Args:
        event: The call's event; changed in place.
        payload: Its payload.
        found: The subagents that the session's last reply has started.
    """
    asked, response = payload.get("tool_input"), payload.get("tool_response")
    asked = asked if isinstance(asked, dict) else {}
    task = text_or_none(asked.get("prompt"))
    own = [one for one in found if task is not None and task in one.task]
    if len(found) == 1:
        own = found
    if len(own) != 1:
        return  # two with the same task: each ends with its session
    error = _error_of(response if isinstance(response, dict) else {})
    name = own[0].subagent_id
    event.launched = LaunchedSubagent(name, None, task or text_or_none(asked.get("agent_name")))
    event.returned = ReturnedSubagent(name, own[0].has_result, not error, error)


def _error_of(response: JsonObject) -> str:
    """Return why a subagent failed, empty when it did not."""
    shown = response.get("returnDisplay")
    shown = shown if isinstance(shown, dict) else {}
    reason = text_or_none(shown.get("terminateReason"))
    if reason is not None:
        return "" if reason == _GOAL else reason.replace("_", " ").lower()
    _, failed, error = text_of(response.get("llmContent"), ("text",)).partition(_ERROR_MARK)
    if not failed:
        return ""
    return OVERFLOW if _OVERFLOW_MARK in error else error
