"""The task tools of Claude Code: what their results say about the host's task list.

Standard library only; loaded by the calls of these tools alone. The host keeps one list for a
session and its subagents, with ids that none of them shares. A subagent in the background has no
task tools.
"""

from __future__ import annotations

from ultramon.state.plan import DONE, IN_PROGRESS, PENDING
from ultramon.state.stored_plan import CHANGED, CREATED, DELETED, LISTED, ReportedTask, TaskReport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.transcripts.jsonl import JsonObject

_STATUSES = {
    "pending": PENDING,
    "in_progress": IN_PROGRESS,
    "completed": DONE,
    "deleted": DELETED,
}
_MAX_ID_CHARS = 64


def read_report(payload: JsonObject) -> TaskReport | None:
    """Return what a PostToolUse of a task tool reports; None where it changed or said nothing."""
    asked, response = payload.get("tool_input"), payload.get("tool_response")
    if not isinstance(response, dict):
        return None
    name = payload.get("tool_name")
    if name == "TaskList":
        return _listed(response.get("tasks"))
    if name == "TaskCreate":
        task = _task(response.get("task"))
        return None if task is None else TaskReport(CREATED, [task])
    task = _changed(asked if isinstance(asked, dict) else {}, response)
    return None if task is None else TaskReport(CHANGED, [task])


def _listed(tasks: object) -> TaskReport | None:
    if not isinstance(tasks, list):
        return None
    read = [task for task in map(_task, tasks) if task is not None]
    # A list of which nothing can be read is another format, and no empty list.
    return TaskReport(LISTED, read) if read or not tasks else None


def _task(value: object) -> ReportedTask | None:
    if not isinstance(value, dict):
        return None
    task_id = _id(value.get("id"))
    if not task_id:
        return None
    status = _status(value.get("status")) or PENDING
    return ReportedTask(task_id, _text(value.get("subject")), status)


def _changed(asked: JsonObject, response: JsonObject) -> ReportedTask | None:
    task_id = _id(response.get("taskId"))
    if response.get("success") is not True or not task_id:
        return None
    change = response.get("statusChange")
    change = change if isinstance(change, dict) else {"to": asked.get("status")}
    return ReportedTask(
        task_id, _text(asked.get("subject")), _status(change.get("to")), _status(change.get("from"))
    )


def _id(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_ID_CHARS else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _status(value: object) -> str | None:
    return _STATUSES.get(value) if isinstance(value, str) else None
