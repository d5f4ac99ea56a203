"""How a supervised run stops early, and how agents that do not return are ended."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.errors import AgentNotFoundError, ConfigurationError, StateError
from ultramon.fleet.supervise.children import TERMINATE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ultramon.fleet.supervise.children import Children
    from ultramon.fleet.supervise.options import SupervisorOptions
    from ultramon.fleet.supervise.pool import WorkerContext
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.fleet")


class Stopping:
    """Asks agents to return, and ends the processes of those that do not.

    Args:
        request_return: Asks an agent to return, with its grace period in seconds.
        children: Their processes.
        clock: For the deadline and grace periods.
        options: ``enforce``, ``grace_seconds`` and ``deadline_seconds`` of them.

    Attributes:
        reason: Why the run stops early; None = it does not.
        enforced: The agents that were ended because they did not return.

    Raises:
        ConfigurationError: The grace period is negative.
    """

    def __init__(
        self,
        request_return: Callable[[str, float], object],
        children: Children,
        clock: Clock,
        options: SupervisorOptions,
    ) -> None:
        grace_seconds = options.get("grace_seconds", 30.0)
        deadline_seconds = options.get("deadline_seconds")
        if not grace_seconds >= 0:
            raise ConfigurationError("grace_seconds", grace_seconds, ">= 0")
        self.reason: str | None = None
        self.enforced: set[str] = set()
        self._ask = request_return
        self._children = children
        self._clock = clock
        self._enforce = options.get("enforce", False)
        self._grace_seconds = grace_seconds
        self._deadline = None if deadline_seconds is None else clock.monotonic() + deadline_seconds
        self._began_at = 0.0
        self._interrupts = 0
        self._requested: set[str] = set()
        self._due_since: dict[tuple[str, bool], float] = {}

    @property
    def is_past_grace(self) -> bool:
        """Whether the run stops, and no agent has time left to hand off."""
        return self._has_stopped_for(self._grace_seconds)

    @property
    def is_late(self) -> bool:
        """Whether the run stops, and every process should have ended by now."""
        return self._has_stopped_for(self._grace_seconds + 2 * TERMINATE_SECONDS)

    def _has_stopped_for(self, seconds: float) -> bool:
        return self.reason is not None and self._clock.monotonic() > self._began_at + seconds

    @property
    def is_interrupted(self) -> bool:
        """Whether there was a Ctrl-C."""
        return self._interrupts > 0

    @property
    def is_past_deadline(self) -> bool:
        """Whether the time is up."""
        return self._deadline is not None and self._clock.monotonic() >= self._deadline

    def begin(self, reason: str) -> bool:
        """Have all agents return; return whether that was not begun before."""
        if self.reason is not None:
            return False
        self.reason = reason
        self._began_at = self._clock.monotonic()
        return True

    def interrupt(self) -> None:
        """Count an interrupt: from the second one on there is no grace."""
        self._interrupts += 1
        if self._interrupts > 1:
            self._grace_seconds = 0.0
            # Processes of an earlier orchestrator are waited for as long as children.
            self._began_at = self._clock.monotonic()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Count Ctrl-C instead of being cut off by it, e.g. between a fork and its record.

        From the second one on it does again what it did before.
        """
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        ):
            yield
            return

        def count(*_: object) -> None:
            self.interrupt()
            if self._interrupts > 1:
                signal.signal(signal.SIGINT, before)

        before = signal.signal(signal.SIGINT, count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def end_overdue(self, contexts: Iterable[WorkerContext]) -> None:
        """Ask for the return that is wanted, and end the processes that are overdue.

        Args:
            contexts: Those whose processes the supervisor may end.
        """
        now = self._clock.monotonic()
        for context in contexts:
            if self.reason is not None or context.is_detached:
                self._request_return(context)
            due_at = self._due_at(context, now)
            if due_at is not None and now >= due_at:
                if self.reason is None and self._is_enforced(context):
                    self.enforced.add(context.agent_id)
                self._children.terminate(context.agent_id, now)

    def _due_at(self, context: WorkerContext, now: float) -> float | None:
        """Return when the process of a context is to be ended, None for never."""
        if context.is_detached or self._children.has_left_others(context.agent_id):
            return now  # another context has its work, or will have it
        if self.reason is not None:
            return self._began_at + self._grace_seconds
        if context.end is not None or self._is_enforced(context):
            # An agent that ended in time has as long again until its process exits.
            key = (context.agent_id, context.end is not None)
            return self._due_since.setdefault(key, now) + self._grace_seconds
        self._due_since.pop((context.agent_id, False), None)
        return None

    def _is_enforced(self, context: WorkerContext) -> bool:
        """Whether an agent that should return may be ended for not doing so."""
        if not (self._enforce and context.is_asked) or context.end is not None:
            return False
        return not (context.is_detached or self._children.has_left_others(context.agent_id))

    def _request_return(self, context: WorkerContext) -> None:
        if context.agent_id in self._requested or not context.generation:
            return
        try:
            self._ask(context.agent_id, self._grace_seconds)
        except (AgentNotFoundError, StateError) as error:
            _log.info("agent %s is not asked to return yet: %s", context.agent_id, error)
        else:
            self._requested.add(context.agent_id)
