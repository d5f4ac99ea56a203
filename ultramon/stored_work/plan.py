"""The steps of an agent through its stored plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.errors import AgentWorkError
from ultramon.state.stored_plan import MAX_NAME_CHARS, StoredPlan
from ultramon.stored_work.changes import change_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

MAX_RESULT_CHARS = 1000


def change_plan(
    backend: Backend, agent_id: str, now: float, step: Callable[[StoredPlan], object]
) -> StateRecord:
    """Take one step and return the state with the plan as it is stored then.

    Args:
        backend: The store.
        agent_id: The agent.
        now: Epoch seconds.
        step: Changes the plan; raises an error to leave it as it was.

    Raises:
        AgentNotFoundError: It has no state.
        AgentWorkError: The step, or any step of this agent, is not possible; or the plan is full.
        StateError: The state could not be read, locked or written.
    """
    with change_state(backend, agent_id, now) as record:
        plan = StoredPlan(record)
        step(plan)
        # Before it is stored: a state that is too large could not be read back.
        if not plan.fits:
            raise AgentWorkError(agent_id, "full")
        plan.save()
    return record


def add_tasks(plan: StoredPlan, names: Iterable[str]) -> int:
    """Add tasks and return how many are new; one that is there already is not added again."""
    known = {task["name"] for task in plan.tasks}
    checked = dict.fromkeys(_checked(plan, name) for name in names)
    new = [name for name in checked if name not in known]
    for name in new:
        plan.add(name)
    return len(new)


def start_task(plan: StoredPlan, name: str) -> str:
    """Begin a task, added if it is not in the plan yet; return its name."""
    checked = _checked(plan, name)
    task = _find(plan, checked) or plan.add(checked)
    plan.set_status(task, "in_progress")
    return checked


def finish_task(plan: StoredPlan, name: str | None, result: str | None) -> str:
    """Mark a task as done, and return its name.

    Args:
        plan: The plan.
        name: The task; None = the current one.
        result: A reference to its result, cut after 1,000 characters; None = unchanged.
    """
    chosen = plan.current_name if name is None else _checked(plan, name)
    if chosen is None:
        raise AgentWorkError(plan.agent_id, "none_begun")
    task = _find(plan, chosen)
    if task is None:
        raise AgentWorkError(plan.agent_id, "no_task", chosen)
    plan.set_status(task, "done")
    if result is not None:
        task["result"] = result[:MAX_RESULT_CHARS]
    return chosen


def _checked(plan: StoredPlan, name: str) -> str:
    name = " ".join(name.split())
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise AgentWorkError(plan.agent_id, "name", name)
    return name


def _find(plan: StoredPlan, name: str) -> dict[str, Any] | None:
    task = next((task for task in plan.tasks if task["name"] == name), None)
    # The host's own list decides about its tasks, and its next report would undo a change here.
    if task is not None and task.get("id") is not None:
        raise AgentWorkError(plan.agent_id, "clients_task", name, task["id"])
    return task
