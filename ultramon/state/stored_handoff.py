"""The handoff record as a hook writes it in place of the agent's program.

Standard library only: hooks load it, seldom. Works on a state inside its lock; nothing here reads
or writes a file. The record as a model is `ultramon.monitor.handoff.HandoffRecord`.
"""

from __future__ import annotations

from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED, PENDING
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ultramon.state.record import StateRecord

_BEGUN = (IN_PROGRESS, INTERRUPTED)


def handoff_id(record: StateRecord, suffix: str = "") -> str:
    """Return the id that every record of this epoch has, whoever makes it.

    The start time tells apart agents that shared an agent id one after the other.
    """
    life = f"{record.agent_id}-{record.generation}-{record.epoch}"
    return f"{life}-{round(record.started_at * 1000)}{suffix}"


def divide(tasks: list[dict[str, Any]], items: Iterable[str] = ()) -> dict[str, Any]:
    """Return what of a plan is completed, interrupted and remaining, and the results by name.

    Args:
        tasks: The plan, as a state holds it.
        items: Assigned items; those that are not in the plan remain.
    """
    names: dict[str, str] = {task["name"]: task["status"] for task in tasks}
    return {
        "completed": [name for name, status in names.items() if status == DONE],
        "interrupted": [name for name, status in names.items() if status in _BEGUN],
        "remaining": [
            *(name for name, status in names.items() if status == PENDING),
            *(item for item in items if item not in names),
        ],
        "results": {
            task["name"]: task["result"] for task in tasks if task.get("result") is not None
        },
    }


def write_handoff(
    record: StateRecord,
    *,
    now: float,
    reason: str,
    notes: str | None = None,
    resume_command: str | None = None,
) -> bool:
    """Put the handoff of an agent that leaves none itself into its state.

    What the agent has said in a record of the same epoch, its notes among it, stays.

    Args:
        record: The state.
        now: Epoch seconds.
        reason: One of `ultramon.monitor.handoff.REASONS`.
        notes: What a successor should know, where the agent has left no notes.
        resume_command: How to continue the same session, or None.

    Returns:
        Whether it replaces an earlier record of this epoch.
    """
    before = record.handoff if isinstance(record.handoff, dict) else {}
    own_id = handoff_id(record)
    is_again = before.get("handoffId") == own_id
    said = before if is_again else {}
    texts = (notes, unnamed_tasks(record))
    place: dict[str, Any] = {"cwd": record.cwd, "branch": None, "head": None, "dirtyFiles": []}
    record.handoff = {
        "handoffId": own_id,
        "agentId": record.agent_id,
        "run": record.run,
        "predecessorId": record.predecessor_id,
        "generationCount": 1,
        "epoch": record.epoch,
        "goal": None,
        "constraints": [],
        "decisions": [],
        "rejected": [],
        "openQuestions": [],
        "nextStep": None,
        "filesModified": [],
        "notes": "\n".join(text for text in texts if text) or None,
        "workspace": place if record.cwd else None,
        "resume": {"command": resume_command, "transcript": None} if resume_command else None,
        **said,
        **divide(record.tasks or []),
        "reason": reason,
        "tokens": record.estimated_tokens,
        "createdAt": format_time(now),
    }
    return is_again


def unnamed_tasks(record: StateRecord) -> str | None:
    """Return a sentence about the tasks that a state counts and does not name; None without any."""
    named = record.tasks or []
    done = record.tasks_completed - sum(task["status"] == DONE for task in named)
    count = (record.tasks_total or 0) - len(named)
    if not named or count <= 0:
        return None
    return f"{count:,} further tasks were only counted: {max(0, done):,} of them are done."
