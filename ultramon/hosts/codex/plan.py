"""Takes the plan that a Codex agent keeps with ``update_plan`` from its payloads.

Standard library only; loaded by the calls that change a plan, which are rare.
"""

from __future__ import annotations

from ultramon.hosts.task_list import LISTED, TaskReport
from ultramon.state.plan import DONE, IN_PROGRESS, PENDING
from ultramon.state.stored_plan import ReportedTask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATUSES = {"pending": PENDING, "in_progress": IN_PROGRESS, "completed": DONE}


def read_report(payload: dict[str, Any], subagent_id: str | None) -> TaskReport | None:
    """Return the plan that a PostToolUse of ``update_plan`` replaces the last one with.

    Steps have no ids: one is known by its place in the plan of its agent.
    """
    asked = payload.get("tool_input")
    steps = asked.get("plan") if isinstance(asked, dict) else None
    if not isinstance(steps, list):
        return None
    prefix = "" if subagent_id is None else f"{subagent_id[-12:]}-"
    tasks = [
        ReportedTask(
            f"{prefix}{number}", step["step"], _STATUSES.get(str(step.get("status")), PENDING)
        )
        for number, step in enumerate(steps, 1)
        if isinstance(step, dict) and isinstance(step.get("step"), str)
    ]
    # A plan of which nothing can be read is another format, and no empty plan.
    return TaskReport(LISTED, tasks, is_shared=False) if tasks or not steps else None
