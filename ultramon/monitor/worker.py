"""`worker`: the agent's side of `Fleet.supervise`, in a loop over its items."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from ultramon.backends.opening import open_backend
from ultramon.errors import ConfigurationError, StateError
from ultramon.monitor.handoff import ASSIGNMENT, SUPERVISED, HandoffRecord
from ultramon.monitor.monitor import create_context_monitor
from ultramon.system.environment import disabled

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from os import PathLike
    from types import TracebackType

    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.context.levels import ThresholdAction
    from ultramon.monitor.monitor import ContextMonitor

_log = logging.getLogger("ultramon.monitor")


class Worker:
    """Works through its items, and hands over what its context cannot hold.

    Made by `worker`. A context manager: the agent starts with the block. Leaving it with items left
    hands off, with `notes`; an exception does too, and passes on.

    Attributes:
        monitor: The agent's monitor, for everything that is not here.
        handoff: What the context before it left; None for the first.
        notes: What the next context should know, free text; stored with the handoff.
    """

    def __init__(
        self,
        monitor: ContextMonitor,
        handoff: HandoffRecord | None,
        *,
        backend: Backend | None = None,
        cursor: str | None = None,
        hand_over_at: str = "warning",
    ) -> None:
        self.monitor = monitor
        self.handoff = handoff
        self.notes: str | None = None
        self._backend = backend
        self._cursor = cursor
        self._hand_over_at = hand_over_at
        self._loop: Generator[str, None, None] | None = None
        self._is_void = False
        self._on_interrupt: Any = None

    @property
    def agent_id(self) -> str:
        """The agent."""
        return self.monitor.agent_id

    @property
    def should_hand_over(self) -> bool:
        """Whether to leave the loop now, in the middle of an item if it is a large one."""
        if self._is_void:
            return True
        action = self.monitor.get_threshold_action()
        return action.should_return or (self._hand_over_at == "warning" and action.should_prepare)

    def __enter__(self) -> Self:
        if self._backend is not None and threading.current_thread() is threading.main_thread():
            # A terminal interrupts the whole group; the supervisor then asks for the return.
            self._on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with ExitStack() as undo:
            undo.callback(self._heed_interrupts)
            self.monitor.start()
            # What the journal says first holds: nobody else has the work of an agent that started.
            self._is_void = self._is_too_late()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        monitor = self.monitor
        if self._loop is not None:
            self._loop.close()  # an item that the loop was left in may be half done
        if monitor.is_active:
            if self._is_void:
                monitor.stop("cancelled")
            elif monitor.pending():
                monitor.hand_off("error" if kind is not None else None, notes=self.notes)
            monitor.__exit__(kind, error, traceback)
        self._heed_interrupts()

    def _heed_interrupts(self) -> None:
        if self._on_interrupt is not None:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._on_interrupt = None

    def pending(self) -> Iterator[str]:
        """Yield the items to do, until they are done or it is time to hand over.

        An item is in work while the loop has it, and done when the loop asks for the next; that is
        stored before the next one begins. Leaving the loop leaves its item interrupted.
        """
        if self._loop is None:
            self._loop = self._items()
        return self._loop

    def _items(self) -> Generator[str, None, None]:
        for item in self.monitor.pending():
            if self.should_hand_over:
                return
            with self.monitor.task(item):
                # Stored in the beginning too: a kill then tells which item is half done.
                self.monitor.update_heartbeat()
                yield item
            self.monitor.update_heartbeat()

    def track_content(self, text: str, *, source: str | None = None) -> ThresholdAction:
        """Count text that has entered the context; see `ContextMonitor.track_content`."""
        return self.monitor.track_content(text, source=source)

    def report_usage(self, **usage: Any) -> ThresholdAction:
        """Take what the provider counted; see `ContextMonitor.report_usage`."""
        return self.monitor.report_usage(**usage)

    def report_response(self, response: object) -> ThresholdAction:
        """Report the usage in a response; see `ContextMonitor.report_response`."""
        return self.monitor.report_response(response)

    def _is_too_late(self) -> bool:
        """Whether the journal says that the work was put back before this agent began."""
        if self._backend is None:
            return False
        cursor = self._cursor
        while (page := self._backend.events(cursor)).events:
            cursor = page.cursor
            for event in page.events:
                if event["agentId"] != self.agent_id:
                    continue
                if event["type"] == "agent_started":
                    return False
                if event["type"] == "agent_lost":
                    _log.warning("agent %s began too late: its work was put back", self.agent_id)
                    return True
        return False


def worker(
    config: ContextConfig | None = None,
    *,
    items: Iterable[str | PathLike[str]] = (),
    goal: str | None = None,
    hand_over_at: str = "warning",
) -> Worker:
    """Make the agent of a process that `Fleet.supervise` started, with the work assigned to it.

    Elsewhere it is an agent of its own that works through `items`. In a supervised process a
    Ctrl-C is ignored inside the block: the supervisor asks the agent to hand off.

    Args:
        config: Limits, thresholds, intervals; None = from environment, file and defaults.
        items: The work of an agent that nobody supervises; of a supervised one ignored.
        goal: What the agent is for; goes into its handoff.
        hand_over_at: ``warning`` or ``critical``: the level at which the loop ends between two
            items.

    Raises:
        ConfigurationError: There is no such level, or a configured value is out of range.
        StateError: The assignment cannot be read.
    """
    if hand_over_at not in ("warning", "critical"):
        raise ConfigurationError("hand_over_at", hand_over_at, "warning or critical")
    agent_id, cursor = os.environ.get("ULTRAMON_AGENT_ID"), os.environ.get(ASSIGNMENT) or None
    backend: Backend | None = None
    handoff = None
    if os.environ.get(SUPERVISED) and not disabled():
        backend = open_backend()
        assigned = backend.events(cursor, 1).events
        if not assigned or (assigned[0]["type"], assigned[0]["agentId"]) != (
            "agent_assigned",
            agent_id,
        ):
            raise StateError(backend.url, f"no work is assigned to agent {agent_id}")
        items = assigned[0].get("items") or ()
        if assigned[0].get("handoff"):
            handoff = HandoffRecord.model_validate(assigned[0]["handoff"])
    monitor = create_context_monitor(config=config, goal=goal, continues=handoff, backend=backend)
    # Before the start, so that no state of the agent is stored without its plan.
    monitor.plan(items)
    return Worker(monitor, handoff, backend=backend, cursor=cursor, hand_over_at=hand_over_at)
