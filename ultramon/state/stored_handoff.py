"""Makes handoff records, as plain values: for the agent's program, a hook, a fleet.

Standard library only: hooks load it, seldom. Works on a state inside its lock; nothing here reads
or writes a file. The record as a model is `ultramon.handoff.HandoffRecord`.
"""

from __future__ import annotations

from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED, PENDING
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ultramon.state.record import StateRecord

_BEGUN = (IN_PROGRESS, INTERRUPTED)
_REASONS = {"force_return": "threshold_critical", "prepare_handoff": "threshold_warning"}


def handoff_id(record: StateRecord, suffix: str = "") -> str:
    """Return the id that every record of this epoch has, whichever process makes it.

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


def make_handoff(
    record: StateRecord,
    tasks: list[dict[str, Any]],
    items: Iterable[str] = (),
    *,
    now: float,
    reason: str = "lost",
    suffix: str = "",
    left: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make the handoff record of an agent in one epoch, as states and events hold it.

    The agent itself, late or twice, a hook in its place, and a fleet that makes the record of a
    vanished agent give it the same id, so that one successor wins with either record.

    Args:
        record: The agent's last state.
        tasks: The plan as it was last saved, or the part of it that matters.
        items: The assigned items; those that are not in the plan remain.
        now: Epoch seconds.
        reason: One of `ultramon.handoff.REASONS`.
        suffix: Ends the id of a second record for the same epoch.
        left: What the agent says, by its JSON names.
    """
    place: dict[str, Any] = {"cwd": record.cwd, "branch": None, "head": None, "dirtyFiles": []}
    return {
        "generationCount": 1,
        "goal": None,
        "constraints": [],
        "decisions": [],
        "rejected": [],
        "openQuestions": [],
        "nextStep": None,
        "filesModified": [],
        "workspace": place if record.cwd else None,
        "resume": None,
        "notes": unnamed_tasks(record),
        **(left or {}),
        # Behind what the agent says, which cannot change whose record this is.
        "handoffId": handoff_id(record, suffix),
        "agentId": record.agent_id,
        "run": record.run,
        "predecessorId": record.predecessor_id,
        "epoch": record.epoch,
        "reason": reason,
        **divide(tasks, items),
        "tokens": record.estimated_tokens,
        "createdAt": format_time(now),
    }


def handoff_reason(action: str) -> str:
    """Return the reason for a handoff at the level that has an action."""
    return _REASONS.get(action, "task_complete")


def write_handoff(
    record: StateRecord, *, now: float, reason: str, notes: str | None = None
) -> dict[str, Any]:
    """Put the handoff of an agent that leaves none itself into its state.

    What the agent has said in a record of the same epoch, its notes among it, stays.

    Args:
        record: The state.
        now: Epoch seconds.
        reason: One of `ultramon.handoff.REASONS`.
        notes: What a successor should know, where the agent has left no notes.

    Returns:
        As `put_handoff`.
    """
    before = record.handoff if isinstance(record.handoff, dict) else {}
    # What the agent left itself in this epoch keeps its words.
    said = before if before.get("handoffId") == handoff_id(record) else {}
    left = {"notes": with_unnamed_tasks(notes, record), **said}
    handoff = make_handoff(record, record.tasks or [], now=now, reason=reason, left=left)
    return put_handoff(record, handoff, now)


def put_handoff(record: StateRecord, handoff: dict[str, Any], now: float) -> dict[str, Any]:
    """Put a handoff into the state of its agent, and return the event that announces it.

    The first one of an epoch has the number 0, as one that a fleet rebuilds: it is stored once.
    """
    before = record.handoff if isinstance(record.handoff, dict) else {}
    is_first = before.get("handoffId") != handoff["handoffId"]
    record.handoff = handoff
    # The first has the key of one that is rebuilt; a later one needs a key of its own.
    number = 0 if is_first else round(now * 1000)
    return record.event("handoff_ready", at=now, n=number, handoff=handoff)


def with_unnamed_tasks(notes: str | None, record: StateRecord) -> str | None:
    """Return notes with a sentence about the tasks that the state does not name; None = neither."""
    return "\n".join(text for text in (notes, unnamed_tasks(record)) if text) or None


def unnamed_tasks(record: StateRecord) -> str | None:
    """Return a sentence about the tasks that a state counts and does not name; None without any."""
    named = record.tasks or []
    done = record.tasks_completed - sum(task["status"] == DONE for task in named)
    count = (record.tasks_total or 0) - len(named)
    if not named or count <= 0:
        return None
    return f"{count:,} further tasks were only counted: {max(0, done):,} of them are done."
