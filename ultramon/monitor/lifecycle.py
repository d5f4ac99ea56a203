"""The lifecycle of one agent: its start, its end, its saves and its signals."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from ultramon import signals
from ultramon.backends.claims import give_back
from ultramon.backends.registry import registry_of
from ultramon.context.levels import UNKNOWN_LIMIT
from ultramon.errors import (
    AgentAlreadyRunningError,
    HandoffTakenError,
    StateError,
)
from ultramon.monitor.background import background_saver_for
from ultramon.monitor.late_models import load_models_soon
from ultramon.monitor.live_state import LiveState
from ultramon.monitor.state_writer import StateWriter
from ultramon.routing import PARENT, SELF, register
from ultramon.state.record import SDK_HOST, SETTING_SOURCES
from ultramon.state.usage_percent import whole_percent
from ultramon.system.processes import process_started_at, working_directory
from ultramon.system.settings import ARGUMENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend
    from ultramon.context.ladder import Ladder
    from ultramon.context.levels import ThresholdAction
    from ultramon.context.monitor_gauge import MonitorGauge
    from ultramon.handoff import HandoffRecord
    from ultramon.state.plan import Plan
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.monitor")

FRESH_FROM_RATIO = 0.70
"""From here on, or from the first rung if that is lower, each whole percent is saved at once."""
FRESH_SECONDS = 1.0
"""Between two such saves: a save costs far more than a report."""
_NEVER = float("inf")
TASK_SAVE_SECONDS = 0.1
"""Task changes within this time are saved together."""


class Lifecycle:
    """Starts and stops one agent, saves its changes and emits its signals.

    Args:
        gauge: Its readings; the record and the configuration are the agent's.
        plan: Its work.
        backend: None stores and emits nothing (``ULTRAMON_DISABLED``).
        clock: Gives the times.
        predecessor: The handoff to continue.
        takeover: Take the agent even from an owner that provably lives.
        resumes: Continue the window of an ended agent of the same id.
        notify: ``self`` or ``parent``: the recipient of notices about the agent.
        notify_ladder: When to notify; None = the agent's own ladder.

    Attributes:
        state: The agent's state as it is now; its lock guards gauge, plan, writer and this.
        record: That of the state.
        writer: Stores the snapshots and the events.
    """

    def __init__(
        self,
        gauge: MonitorGauge,
        plan: Plan,
        *,
        backend: Backend | None,
        clock: Clock,
        predecessor: HandoffRecord | None = None,
        takeover: bool = False,
        resumes: bool = False,
        notify: str | None = None,
        notify_ladder: Ladder | None = None,
    ) -> None:
        self.state = LiveState(gauge, plan, clock)
        self.state.resumes = resumes
        self.record = record = gauge.record
        config = gauge.config
        self.agent_id = record.agent_id
        self.predecessor = predecessor
        self.clock = clock
        self._gauge = gauge
        self._plan = plan
        self._notify = {SELF: self.agent_id, PARENT: record.parent_id}.get(notify or "")
        self._notify_ladder = notify_ladder
        self._has_warned_of_limit = False
        self._percent: int | None = None
        self._fresh_at = -FRESH_SECONDS
        self._fresh_tokens = _NEVER
        self._stale_tokens = 0.0
        self._fresh_limit: int | None = None
        self.raises = config.on_error == "raise"
        self.saver = background_saver_for(clock)
        self.writer = StateWriter(self.state, backend, self.saver, takeover=takeover)
        self.backend = self.writer.backend
        record.host = SDK_HOST
        record.phase = "working"
        record.started_at = clock.now()
        record.heartbeat_interval_seconds = config.heartbeat_interval_seconds
        record.lost_after_seconds = config.lost_after_seconds
        record.grace_seconds = config.grace_seconds
        sources = {name: one for name, one in config.sources.items() if one != ARGUMENT}
        if sources:
            record.extra[SETTING_SOURCES] = sources
        # Looked up once: a system call under the lock lets go of the interpreter, and an event
        # loop that waits for the lock then stalls for tens of milliseconds (measured: 30).
        record.cwd = working_directory()
        record.pid = os.getpid()
        record.pid_started_at = process_started_at(record.pid)
        record.boot_id, record.hostname = self.writer.machine.boot_id, self.writer.machine.hostname

    @property
    def phase(self) -> str:
        """``created``, ``active`` or ``ended``."""
        return self.state.lifecycle_machine.phase

    def require(self, verb: str) -> None:
        """Make sure that a verb of the monitor is allowed now.

        Raises:
            LifecycleError: It is not.
        """
        self.state.lifecycle_machine.require(verb)

    def start(self) -> None:
        """Claim the handoff, take the agent, register its notices; see `ContextMonitor.start`."""
        self.require("start")
        if any(signal.receivers for signal in signals.FRIENDLY_NAMES.values()):
            # The events' models load here: the first crossing of a receiver would wait for
            # pydantic longer than for its save.
            import ultramon.state.events  # noqa: F401
        before = self.predecessor
        if before is not None:
            # A record from elsewhere may name an item twice, which `Plan.add` refuses.
            self._plan.add(dict.fromkeys((*before.interrupted, *before.remaining)))
        try:
            # The claim comes first: two successors are worse than a start that fails.
            if before is not None and self.backend is not None:
                before.claim(self.agent_id, self.backend, clock=self.clock)
            with self.state.lock:
                self.record.active = True
                event = self.writer.event("agent_started")
            self.writer.start()
        except BaseException as error:
            self.record.active = False
            if isinstance(error, AgentAlreadyRunningError):
                self._give_handoff_back()
            if isinstance(error, HandoffTakenError):
                self._store_refusal(str(error))
            raise
        self.state.lifecycle_machine.begin()
        if self._notify is not None and self.record.generation:
            self._register_notices(self._notify)
        self._emit([event], stored=self.writer.is_stored)
        load_models_soon()

    def _give_handoff_back(self) -> None:
        """Free the handoff for a successor of another id, instead of holding it until it ages."""
        if self.predecessor is None:
            return
        handoff_id, source = self.predecessor.handoff_id, f"agent:{self.agent_id}"
        now = self.clock.now()
        try:
            give_back(self.backend, handoff_id, self.agent_id, source=source, now=now)
        except StateError as error:
            _log.info("agent %s: its claim is released later: %s", self.agent_id, error)

    def _store_refusal(self, reason: str) -> None:
        """Store why the agent did not start, so that the end of its process is no loss."""
        now = self.clock.now()
        event = self.record.event(
            "agent_refused",
            at=now,
            n=round(now * 1000),
            outcome="cancelled",
            reason=reason,
        )
        try:
            self.backend.append_events([event])
        except StateError as error:
            _log.warning("agent %s is not noted as refused: %s", self.agent_id, error)

    def _register_notices(self, notify: str) -> None:
        """Register the recipient, unless an earlier start did: a second time would re-arm."""
        ladder, backend = self._notify_ladder, self.backend
        stored = None if ladder is None else ladder.to_json()
        try:
            for known in registry_of(backend).registrations(self.agent_id):
                if known.notify_id == notify and stored in (None, known.ladder):
                    return
            register(self.agent_id, notify, None, ladder, backend=backend, clock=self.clock)
        except StateError as error:
            if self.raises:
                raise
            self.saver.warn("agent %s is not registered: %s", self.agent_id, error)

    def leave_if_taken(self) -> bool:
        """Stop working on the agent, without storing an end, where another owner has it."""
        if not self.writer.is_taken():
            return False
        with self.state.lock:
            self.record.active = False
            self.writer.release()
        return True

    def stop(self, outcome: str) -> bool:
        """End the agent and store its end; see `ContextMonitor.stop`."""
        return self._end(outcome, self.writer.end)

    def stop_here(self, outcome: str) -> bool:
        """End the agent in this thread, where other threads end other agents at the same time."""
        return self._end(outcome, self.writer.end_here)

    def _end(self, outcome: str, store: Callable[[], bool]) -> bool:
        self.require("stop")
        with self.state.lock:
            if not self.record.active:
                return self.writer.is_stored
            self.state.lifecycle_machine.finish(outcome)
            self.record.active, self.record.outcome = False, outcome
            self.record.last_heartbeat = self.clock.now()
            event = self.writer.event("agent_stopped", outcome=outcome)
        stored = False
        try:
            stored = store()
        finally:
            self._emit([event], stored=stored)
        return stored

    def read(self, step: Callable[[], object], *, is_first: bool = False) -> ThresholdAction:
        """Change the gauge, then save and emit the epoch or the level that this leads to.

        Args:
            step: Changes the gauge.
            is_first: Whether the step belongs to the first reading of the epoch.
        """
        gauge, writer, record = self._gauge, self.writer, self.record
        with self.state.lock:
            before = gauge.level
            is_first = is_first or record.measured_at is None
            step()
            events = [writer.event(kind, **details) for kind, details in gauge.decide()]
            is_new = gauge.level not in (before, before or gauge.ladder.base)
            action = gauge.changed_action() if is_new else gauge.action
            warns = record.context_limit is None and not self._has_warned_of_limit
            self._has_warned_of_limit |= warns
        if warns:
            model = record.model or "not named"
            _log.warning("agent %s, model %s: %s", self.agent_id, model, UNKNOWN_LIMIT)
        if not record.active:
            return action
        delay = self._fresh_percent()
        if events:
            self.announce(events)
        else:
            is_first = is_first and record.measured_at is not None
            writer.changed(0.0 if is_first else delay)
        return action

    def note_growth(self) -> None:
        """Note that text was counted and that no level may have to change."""
        is_fresh = self._gauge.tokens >= self._fresh_tokens
        self.writer.changed(self._fresh_percent() if is_fresh else None)

    def _fresh_percent(self) -> float | None:
        """Return the delay after which a new whole percent is saved; None where none is shown.

        A program that reads the status from outside, as `ultramon check` does, sees what is stored.
        """
        gauge, limit = self._gauge, self.record.context_limit
        # Most reports change no percent that is shown, and cost one comparison here.
        if limit == self._fresh_limit and self._stale_tokens <= gauge.tokens < self._fresh_tokens:
            return None
        ratio, self._fresh_limit = gauge.usage_ratio, limit
        if limit is None or ratio is None:
            self._fresh_limit, self._fresh_tokens = None, _NEVER
            return None
        rounds = gauge.ladder.round_percent
        percent = whole_percent(ratio, rounds=rounds)
        least = min(FRESH_FROM_RATIO, gauge.first_ratio)
        half = 0.5 if rounds else 0.0
        self._fresh_tokens = max(least, (percent + 1 - half) / 100) * limit
        self._stale_tokens = 0.0 if ratio < least else (percent - half) / 100 * limit
        if ratio < least or percent == self._percent:
            self._percent = None if ratio < least else percent
            return None
        self._percent = percent
        now = self.clock.monotonic()
        if self._fresh_at > now:
            return None  # the save that is due then takes this percent too
        delay = max(0.0, self._fresh_at + FRESH_SECONDS - now)
        # A new percent is saved no later than any other change.
        delay = min(delay, gauge.config.save_interval_seconds)
        self._fresh_at = now + delay
        return delay

    # The save comes first, so that a receiver that reads the store finds what it is notified of.
    def announce(self, events: list[dict[str, Any]], *, patiently: bool = False) -> bool:
        """Save now, then emit the events; return whether they are stored.

        Args:
            events: As the writer made them.
            patiently: As for `StateWriter.commit`.
        """
        stored = self.writer.commit(patiently=patiently)
        self._emit(events, stored=stored)
        return stored

    def _emit(self, events: list[dict[str, Any]], *, stored: bool) -> None:
        if self.writer.muted:
            return
        for event in events:
            signal = getattr(signals, event["type"])
            if signal.receivers:
                from ultramon.state.events import parse_event

                signals.emit(signal, self.agent_id, parse_event({**event, "stored": stored}))
