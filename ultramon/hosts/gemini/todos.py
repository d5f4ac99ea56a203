"""Takes the list that a Gemini agent keeps with ``write_todos`` from its payloads.

Standard library only; loaded by the calls that change a list, which are rare.
"""

from __future__ import annotations

from ultramon.hosts.task_list import TaskReport, listed_steps
from ultramon.state.plan import DONE, IN_PROGRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATUSES = {"in_progress": IN_PROGRESS, "completed": DONE}
_CANCELLED = "cancelled"


def read_report(payload: dict[str, Any], subagent_id: str | None) -> TaskReport | None:
    """Return the list that an AfterTool of ``write_todos`` replaces the last one with."""
    asked = payload.get("tool_input")
    todos = asked.get("todos") if isinstance(asked, dict) else None
    if isinstance(todos, list):
        todos = [one for one in todos if not _is_cancelled(one)]
    return listed_steps(todos, "description", _STATUSES, subagent_id)


def _is_cancelled(todo: object) -> bool:
    return isinstance(todo, dict) and todo.get("status") == _CANCELLED
