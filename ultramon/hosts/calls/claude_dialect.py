"""What hooks of several hosts share: Claude Code's words for events, members and answers.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.calls.payload import call_id_at_end, checked_text, text_in
from ultramon.hosts.port import HookEvent, ReturnedSubagent
from ultramon.hosts.transcripts.jsonl import text_or_none
from ultramon.state.record import ANSWER, PERMISSION
from ultramon.system import compact_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.hosts.transcripts.jsonl import JsonObject

KINDS = {
    "SessionStart": port.SESSION_STARTED,
    "UserPromptSubmit": port.PROMPT,
    "PreToolUse": port.TOOL_STARTED,
    "PostToolUse": port.TOOL_ENDED,
    "SubagentStart": port.SUBAGENT_STARTED,
    "SubagentStop": port.SUBAGENT_ENDED,
    "PreCompact": port.COMPACTING,
    "PostCompact": port.COMPACTED,
    "Stop": port.WAITING,
}
"""The events that all these hosts have."""
# Notifications that ask a person for something; old versions have no types, and notify only then.
_QUESTIONS = ("", "permission_prompt", "idle_prompt", "elicitation_dialog", "agent_needs_input")
_WAITS_FOR = {
    "permission_prompt": PERMISSION,
    "elicitation_dialog": ANSWER,
    "agent_needs_input": ANSWER,
}
_TASK_NEWS = "<task-notification>"


def event_of(payload: JsonObject, kinds: Mapping[str, str], tail: bytes = b"") -> HookEvent:
    """Return the members of a payload that mean the same at every event.

    Args:
        payload: As for `Dialect.read_event`.
        kinds: The constants of the port by the host's names of events.
        tail: As for `Dialect.read_event`.

    Raises:
        ValueError: A member that names something is no text, or too long for a name.
    """
    name = checked_text(payload, "hook_event_name") or ""
    event = HookEvent(kinds.get(name, ""), name, checked_text(payload, "session_id") or "")
    event.subagent_id = checked_text(payload, "agent_id")
    event.subagent_type = checked_text(payload, "agent_type") or ""
    event.transcript_path = checked_text(payload, "transcript_path")
    event.cwd = checked_text(payload, "cwd")
    event.call_id = checked_text(payload, "tool_use_id") or call_id_at_end(tail)
    event.model = text_or_none(payload.get("model"))
    if event.kind == port.SESSION_STARTED:
        event.source = text_in(payload, "source")
    elif event.kind == port.SESSION_ENDED:
        event.reason = text_in(payload, "reason")
    elif event.kind == port.COMPACTING:
        event.is_automatic = text_in(payload, "trigger") == "auto"
    return event


def read_prompt(event: HookEvent, prompt: str) -> None:
    """Tell a person's prompt from the host's own texts, see `is_host_text`."""
    from ultramon.hosts.transcripts.prompts import is_host_text

    if not is_host_text(prompt):
        event.prompt = prompt
    elif results := returned_by_news(prompt):
        event.returned = ReturnedSubagent(*results[0], False)


def returned_by_news(prompt: str) -> list[tuple[str, bool]]:
    """Return which background tasks have ended by a prompt of the host, and whether with a text.

    Empty for a prompt that is no such news.
    """
    if not prompt.startswith(_TASK_NEWS):
        return []
    return [
        (name, bool(_element(news, "result")))
        for news in prompt.split(_TASK_NEWS)
        if (name := _element(news, "task-id"))
    ]


def _element(text: str, name: str) -> str:
    return text.partition(f"<{name}>")[2].partition(f"</{name}>")[0].strip()


def read_notification(event: HookEvent, payload: JsonObject) -> None:
    """Tell what a notification asks a person for; one that asks for nothing is no event."""
    kind = text_in(payload, "notification_type")
    if kind not in _QUESTIONS:
        event.kind = ""
    is_old = not kind and "permission" in text_in(payload, "message")
    event.waits_for = PERMISSION if is_old else _WAITS_FOR.get(kind, "")


def write_context(event: HookEvent, text: str) -> bytes:
    """Return what to print so that the host puts a text into the agent's conversation.

    Codex drops the whole answer for one member that it does not know.
    """
    answer = {"hookEventName": event.name, "additionalContext": text}
    return compact_json.dumps({"hookSpecificOutput": answer}).encode("ascii")


def write_end(event: HookEvent, reason: str) -> bytes:
    """Return what to print so that the host ends the agent's turn; see `Dialect.write_end`."""
    return compact_json.dumps({"continue": False, "stopReason": reason}).encode("ascii")


def write_user_note(event: HookEvent, text: str) -> bytes:
    """Return what to print so that the host shows the user a text."""
    return compact_json.dumps({"systemMessage": text}).encode("ascii")
