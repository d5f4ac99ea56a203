"""The steps inside the items of one agent: stored as they are done, read once from the journal."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ultramon.errors import AgentWorkError
from ultramon.state.item_steps import STEP_COMPLETED, ItemSteps
from ultramon.state.plan import name_of

if TYPE_CHECKING:
    from os import PathLike

    from ultramon.monitor.lifecycle import Lifecycle
    from ultramon.state.plan import Plan


class WorkSteps:
    """The steps that an agent knows of; thread-safe.

    Args:
        lifecycle: Of the agent.
        plan: Its work; the lock of the lifecycle's state guards it.
    """

    def __init__(self, lifecycle: Lifecycle, plan: Plan) -> None:
        self._lifecycle = lifecycle
        self._plan = plan
        self._known = ItemSteps()
        self._is_read = False
        self._lock = threading.Lock()

    def store(self, step: str, result: Any, item: str | PathLike[str] | None) -> Any:
        """Store a step; see `ContextMonitor.step`."""
        name = self._name_of(item)
        with self._lock:
            self._read()
            as_read = self._known.checked(name, step, result)
            self._lifecycle.writer.append(STEP_COMPLETED, item=name, step=step, result=as_read)
            # Known to this process whether stored or not: it is done.
            self._known.put(name, step, as_read)
            return self._known.of(name)[step]

    def of(self, item: str | PathLike[str] | None) -> dict[str, Any]:
        """Return the steps of an item; see `ContextMonitor.steps`."""
        name = self._name_of(item)
        with self._lock:
            self._read()
            return self._known.of(name)

    def _name_of(self, item: str | PathLike[str] | None) -> str:
        if item is not None:
            return name_of(item)
        with self._lifecycle.state.lock:
            current = self._plan.current
        if current is None:
            raise AgentWorkError(self._lifecycle.agent_id, "no_item")
        return current

    def _read(self) -> None:
        """Read what is stored, unless that was done."""
        writer = self._lifecycle.writer
        if self._is_read or writer.muted:
            return
        agent_id = self._lifecycle.agent_id
        events: list[dict[str, Any]] = []

        def read() -> None:
            events[:] = writer.backend.committed_events(None, agent_id=agent_id).events

        self._is_read = writer.patiently(read, "the steps before it are not known")
        for event in events if self._is_read else ():
            self._known.read(event)
