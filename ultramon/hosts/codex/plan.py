"""Takes the plan that a Codex agent keeps with ``update_plan`` from its payloads.

Standard library only; loaded by the calls that change a plan, which are rare.
"""

from __future__ import annotations

from ultramon.hosts.task_list import TaskReport, listed_steps
from ultramon.state.plan import DONE, IN_PROGRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STATUSES = {"in_progress": IN_PROGRESS, "completed": DONE}


def read_report(payload: dict[str, Any], subagent_id: str | None) -> TaskReport | None:
    """Return the plan that a PostToolUse of ``update_plan`` replaces the last one with."""
    asked = payload.get("tool_input")
    steps = asked.get("plan") if isinstance(asked, dict) else None
    return listed_steps(steps, "step", _STATUSES, subagent_id)
