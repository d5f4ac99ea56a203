"""The steps of a stored agent inside the item that it works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.errors import AgentWorkError
from ultramon.state.item_steps import STEP_COMPLETED, ItemSteps
from ultramon.state.stored_plan import StoredPlan
from ultramon.stored_work.changes import change_state
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

    ItemOf = Callable[[str | None], str | None]


def _same(task: str | None) -> str | None:
    return task


def store_step(
    backend: Backend,
    agent_id: str,
    now: float,
    step: str,
    result: Any = None,
    *,
    item_of: ItemOf = _same,
) -> str:
    """Store that a step is done inside the task in progress; return the item it belongs to.

    It is in the journal when this returns.

    Args:
        backend: The store.
        agent_id: The agent.
        now: Epoch seconds.
        step: A name for it; one that was stored before is replaced.
        result: A value of JSON; all steps of an item take at most 64 KiB.
        item_of: Returns the item that the task in progress is about; called with None where there
            is none. Default: the task itself.

    Raises:
        AgentNotFoundError: It has no state.
        AgentWorkError: No task is in progress, it has ended, or its state belongs to a running
            program.
        ConfigurationError: A name or result that is not allowed.
        StateError: The state could not be read, locked or written, or the journal refused.
    """
    with change_state(backend, agent_id, now) as record:
        item = item_in_work(record, item_of)
        known = stored_steps(backend, agent_id)
        as_read = known.checked(item, step, result)
        number = int(random_hex(6), 16)
        event = record.event(STEP_COMPLETED, at=now, n=number, item=item, step=step, result=as_read)
        backend.append_events([event])
    return item


def item_in_work(record: StateRecord, item_of: ItemOf = _same) -> str:
    """Return the item that an agent works on.

    Raises:
        AgentWorkError: There is none.
    """
    item = item_of(StoredPlan(record).current_name)
    if item is None:
        raise AgentWorkError(record.agent_id, "no_item")
    return item


def stored_steps(backend: Backend, agent_id: str) -> ItemSteps:
    """Return the steps that an agent has stored, and those that it was assigned.

    Raises:
        StateError: The store refused.
    """
    steps = ItemSteps()
    for event in backend.committed_events(None, agent_id=agent_id).events:
        steps.read(event)
    return steps


def assigned_items(backend: Backend, agent_id: str) -> list[str]:
    """Return the items that an agent was assigned, each once, in order; empty without any.

    Raises:
        StateError: The store refused.
    """
    items: dict[str, None] = {}
    for event in backend.committed_events(None, agent_id=agent_id).events:
        if event["type"] == "agent_assigned":
            handoff = event.get("handoff") or {}
            left = (*handoff.get("interrupted", ()), *handoff.get("remaining", ()))
            items |= dict.fromkeys((*(event.get("items") or ()), *left))
    return list(items)
