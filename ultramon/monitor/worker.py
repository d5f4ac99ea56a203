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
from ultramon.handoff import ASSIGNMENT, SUPERVISED, HandoffRecord
from ultramon.monitor.async_twins import in_thread
from ultramon.monitor.monitor import create_context_monitor
from ultramon.state.liveness import longest_silence
from ultramon.system.environment import disabled
from ultramon.system.processes import boot_seconds

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from os import PathLike
    from types import TracebackType

    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.context.levels import ThresholdAction
    from ultramon.monitor.monitor import ContextMonitor

    Item = str | PathLike[str]

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
        self._item: str | None = None
        self._is_full = False
        self._is_void = False
        self._looked_at = self._read_at = boot_seconds()
        self._on_interrupt: Any = None

    @property
    def agent_id(self) -> str:
        """The agent."""
        return self.monitor.agent_id

    @property
    def should_hand_over(self) -> bool:
        """Whether to leave the loop now, in the middle of an item if it is a large one.

        Also where another context may have the item by now: see `pending`.
        """
        if self._may_be_put_back(self.monitor.config.heartbeat_interval_seconds):
            return True
        action = self.monitor.get_threshold_action()
        return action.should_return or (self._hand_over_at == "warning" and action.should_prepare)

    def __enter__(self) -> Self:
        if self._backend is not None and threading.current_thread() is threading.main_thread():
            # A terminal interrupts the whole group; the supervisor then asks for the return.
            self._on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with ExitStack() as undo:
            undo.callback(self._restore_interrupts)
            self.monitor.start()
            self._read_journal()
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
            self._may_be_put_back()
            if self._is_void:
                monitor.stop("cancelled")
            elif monitor.pending():
                reason = "threshold_critical" if self._is_full else None
                monitor.hand_off("error" if kind is not None else reason, notes=self.notes)
            monitor.__exit__(kind, error, traceback)
        self._restore_interrupts()

    def _restore_interrupts(self) -> None:
        if self._on_interrupt is not None:
            signal.signal(signal.SIGINT, self._on_interrupt)
            self._on_interrupt = None

    def pending(self) -> Iterator[str]:
        """Yield the items to do, until they are done or it is time to hand over.

        An item is in work while the loop has it, and done when the loop asks for the next. That is
        stored before the next one begins; a store that is slow or refuses is waited for up to
        `store_timeout_seconds`, then the loop continues, and what is done is stored when the store
        takes it. Leaving the loop leaves its item interrupted.

        The loop ends as well where the work was put back, as after a suspension on another machine;
        where the store has not answered for as long as an agent may be silent, so that it may have
        been; and where the next item would reach the critical level or pass the limit, if it takes
        as many tokens as the largest item of this epoch did. The first one always comes.
        """
        if self._loop is None:
            self._loop = self._items()
        return self._loop

    def _items(self) -> Generator[str, None, None]:
        monitor = self.monitor
        before, largest = monitor.get_state(), 0
        for item in monitor.pending():
            if self._may_be_put_back() or self.should_hand_over:
                return
            if largest and not monitor.fits(largest).ok:
                self._is_full = True
                return
            with monitor.task(item):
                # Stored in the beginning too: after a kill the state says which item is half done.
                monitor.update_heartbeat()
                self._item = item
                try:
                    yield item
                finally:
                    self._item = None
            # What is not stored is begun again if this process ends: the next item waits for it.
            monitor.update_heartbeat(patiently=True)
            after = monitor.get_state()
            # The largest item counts, as items vary: one more context costs less than a window
            # that is passed.
            cost = after.estimated_tokens - before.estimated_tokens
            largest = max(largest, cost) if after.epoch == before.epoch else 0
            before = after

    def step(self, name: str, result: Any = None, *, item: Item | None = None) -> Any:
        """Store that a step of the loop's item is done; see `ContextMonitor.step`."""
        return self.monitor.step(name, result, item=self._item if item is None else item)

    step_async = in_thread(step)

    def steps(self, item: Item | None = None) -> dict[str, Any]:
        """Return what was done inside the loop's item before; see `ContextMonitor.steps`."""
        return self.monitor.steps(self._item if item is None else item)

    def track_content(self, text: str, *, source: str | None = None) -> ThresholdAction:
        """Count text that has entered the context; see `ContextMonitor.track_content`."""
        return self.monitor.track_content(text, source=source)

    def report_usage(self, **usage: Any) -> ThresholdAction:
        """Take what the provider counted; see `ContextMonitor.report_usage`."""
        return self.monitor.report_usage(**usage)

    def report_response(self, response: object) -> ThresholdAction:
        """Report the usage in a response; see `ContextMonitor.report_response`."""
        return self.monitor.report_response(response)

    def _may_be_put_back(self, after_seconds: float = 0.0) -> bool:
        """Whether the work was put back, or may have been: another context may have it by now.

        So it is where nothing could end this process: on another machine, after a suspension or a
        cut network.

        Args:
            after_seconds: The journal is read if the last look is so long ago.
        """
        now = boot_seconds()
        if self._backend is None or self._is_void:
            return self._is_void
        if now - self._looked_at >= after_seconds:
            self._looked_at = now
            try:
                self._read_journal()
            except StateError as error:
                _log.info("agent %s cannot see whether it has its work: %s", self.agent_id, error)
        # An agent that is silent for so long is judged lost, and cannot read that it was.
        interval = self.monitor.config.heartbeat_interval_seconds
        longest = longest_silence(self.monitor.config.lost_after_seconds, interval)
        return self._is_void or now - self._read_at > max(interval, longest - interval)

    def _read_journal(self) -> None:
        """Read what the journal says of this agent.

        What it says first holds: no other context has the work of an agent that started in time,
        until its own is closed.

        Raises:
            StateError: The store refused.
        """
        now = boot_seconds()
        if self._backend is not None:
            own = self._backend.committed_events(self._cursor, agent_id=self.agent_id).events
            kinds = [event["type"] for event in own]
            first = next((kind for kind in kinds if kind in ("agent_started", "agent_lost")), None)
            if first == "agent_lost" or "context_closed" in kinds:
                self._is_void = True
                _log.warning("agent %s leaves: its work was put back", self.agent_id)
        self._read_at = now


def worker(
    config: ContextConfig | None = None,
    *,
    items: Iterable[str | PathLike[str]] | None = None,
    goal: str | None = None,
    hand_over_at: str = "warning",
) -> Worker:
    """Make the agent of a process that `Fleet.supervise` started, with the work assigned to it.

    Elsewhere it is an agent of its own that works through `items`. In a supervised process a
    Ctrl-C is ignored inside the block: the supervisor asks the agent to hand off.

    Args:
        config: Limits, thresholds, intervals; None = from environment, file and defaults.
        items: The work of an agent without a supervisor; of a supervised one ignored. None
            (default) = none: a warning then says that a job's environment is missing.
        goal: What the agent is for; goes into its handoff.
        hand_over_at: ``warning`` or ``critical``: the level at which the loop ends between two
            items; it ends before where the next item would reach the critical one.

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
        # The first event of all behind the cursor may be another one, which appeared there later.
        own = backend.committed_events(cursor, agent_id=agent_id).events if agent_id else []
        assigned = [event for event in own if event["type"] == "agent_assigned"]
        if not assigned:
            raise StateError(backend.url, f"no work is assigned to agent {agent_id}")
        items = assigned[0].get("items") or ()
        if assigned[0].get("handoff"):
            handoff = HandoffRecord.model_validate(assigned[0]["handoff"])
    elif items is None and not disabled():
        _log.warning(
            "worker() has no job and no items, so nothing is to be done: pass env=job.env to the "
            "process that supervise starts, or items= to worker()"
        )
    monitor = create_context_monitor(config=config, goal=goal, continues=handoff, backend=backend)
    # Before the start, so that no state of the agent is stored without its plan.
    monitor.plan(items or ())
    return Worker(monitor, handoff, backend=backend, cursor=cursor, hand_over_at=hand_over_at)
