"""Takes the plan that an agent keeps by a tool which replaces it as a whole.

Standard library only; loaded by the calls that change a plan, which are rare.
"""

from __future__ import annotations

from ultramon.state.plan import DONE, IN_PROGRESS, PENDING
from ultramon.state.stored_plan import LISTED, ReportedTask, TaskReport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATUSES = {"pending": PENDING, "in_progress": IN_PROGRESS, "completed": DONE}
_CANCELLED = "cancelled"


def read_report(
    payload: dict[str, Any], list_name: str, text_name: str, subagent_id: str | None
) -> TaskReport | None:
    """Return the plan in the input of such a tool; None where it can not be read.

    A step is known by its place in the plan of its agent: not every host gives it an id. One that
    was cancelled is left out.

    Args:
        payload: Of the call of the tool.
        list_name: The member with the steps.
        text_name: The member of a step that says what is to be done.
        subagent_id: The subagent that keeps the plan; None = the session.
    """
    asked = payload.get("tool_input")
    steps = asked.get(list_name) if isinstance(asked, dict) else None
    if not isinstance(steps, list):
        return None
    steps = [step for step in steps if not _is_cancelled(step)]
    prefix = "" if subagent_id is None else f"{subagent_id[-12:]}-"
    tasks = [
        ReportedTask(
            f"{prefix}{number}", step[text_name], _STATUSES.get(str(step.get("status")), PENDING)
        )
        for number, step in enumerate(steps, 1)
        if isinstance(step, dict) and isinstance(step.get(text_name), str)
    ]
    # A plan of which nothing can be read is another format, and no empty plan.
    return TaskReport(LISTED, tasks, is_shared=False) if tasks or not steps else None


def _is_cancelled(step: object) -> bool:
    return isinstance(step, dict) and step.get("status") == _CANCELLED
