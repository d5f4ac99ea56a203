"""Agents whose readings others post: a percentage, tokens and the poster's time, or an event.

Standard library only. The process that takes the posts owns these agents and writes their states;
there is one at a time. Times of posts are compared with each other, never with a clock here: a
state says when a reading arrived, and its memory when the poster took it.
"""

from __future__ import annotations

import logging
import threading
from math import ceil
from typing import NamedTuple

from ultramon.backends.registry import registry_of
from ultramon.backends.toolkit import find_record, load_permitted
from ultramon.context.gauge import Gauge, GaugeMemory
from ultramon.context.shared_levels import shared_ladder
from ultramon.context.tracker import ContextTracker
from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.notices.levels import decide
from ultramon.state.liveness import OUTCOMES
from ultramon.state.record import StateRecord
from ultramon.state.stored_fields import StoredFields
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ultramon.backends.base import Backend
    from ultramon.notices.registration import StoredRegistration
    from ultramon.server.earlier_log import Reading

HOST = "posted"
MEMORY = "posted"
"""Field of a state file with what only this host needs."""

COMPACTION = "compaction"
COMPACTION_COMPLETE = "compaction_complete"
EVENTS = {
    COMPACTION: "compaction_logged",
    COMPACTION_COMPLETE: "compaction_complete_logged",
    "context_reset": "flags_reset",
}
"""The boundaries that can be posted, with the status that answers each."""
HANDOFF_PATH = "handoffPath"
"""Name in that field of the path of the handoff document that the poster wrote last."""
TAKEN_AT = "takenAt"
"""Name in that field of when the last reading was taken, by the poster's clock where it said so."""
MAX_PATH_CHARS = 4096
_LOCKS = 4_096  # with 64, eight posts in a hundred waited for the file of another agent
# So that the error of a float makes no token more or less.
_SAME = 1e-9
_log = logging.getLogger("ultramon.server")


class PostedMemory(StoredFields, GaugeMemory):
    """What the gauge of a posted agent keeps, in its state under `MEMORY`."""


class PostedReading(NamedTuple):
    """A reading as it is posted."""

    used_percentage: float
    """0 and more."""
    total_input_tokens: int | None
    """What is in the window; None = unknown."""
    emitted_at: float | None
    """When the poster took it, epoch seconds by its own clock; None = it does not say."""


class PostedAgents:
    """Writes posts into the states of agents. Thread-safe; agents do not wait for each other.

    Args:
        backend: Where the agents and their registrations are.

    Raises:
        ConfigurationError: The table ``[levels]`` is not allowed.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._ladder = shared_ladder()
        self._registry = registry_of(backend)
        # Each post waits for the disk: under one lock a thousand agents would wait for each other.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]

    def _lock(self, agent_id: str) -> threading.Lock:
        """Return the lock that every change of an agent holds."""
        return self._locks[hash(agent_id) % _LOCKS]

    def start(
        self,
        agent_id: str,
        now: float,
        *,
        run: str = "default",
        session_id: str | None = None,
        parent_id: str | None = None,
        label: str | None = None,
    ) -> None:
        """Make an agent known, or continue one under the next generation.

        Raises:
            InvalidAgentIdError: It is no agent id.
            AgentAlreadyRunningError: A process that measures itself has the id.
            StateError: The store refused.
        """

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            record = stored if stored is not None and stored.host == HOST else None
            if record is None:
                record = self._new(agent_id, now, 1 if stored is None else stored.epoch + 1)
            record.run, record.session_id = run, session_id or agent_id
            record.parent_id, record.label = parent_id, label
            record.active, record.outcome, record.exit = True, None, None
            record.generation = generation
            record.seq += 1
            record.last_heartbeat = record.last_activity = now
            gauge = self._gauge(record, now)
            gauge.event("agent_started")
            return record, [*(record.pending or ()), *gauge.events]

        with self._lock(agent_id):
            # The process that takes the posts now owns the agents of the one before.
            record = find_record(self._backend, agent_id)
            owned = record is not None and record.host == HOST
            self._backend.start_agent(
                agent_id, build, takeover=owned, now=now, machine=this_machine()
            )

    def finish(self, agent_id: str, outcome: str, now: float) -> bool:
        """End an agent, finally; what is posted about it later is not taken.

        Args:
            agent_id: The agent.
            outcome: One of `OUTCOMES`.
            now: Epoch seconds.

        Returns:
            False when it had ended before: then nothing changes.

        Raises:
            AgentNotFoundError: There is no such agent.
            ConfigurationError: There is no such outcome, or the agent measures itself and has to
                end itself.
            StateError: The store refused.
        """
        if outcome not in OUTCOMES:
            raise ConfigurationError("outcome", outcome, f"one of {', '.join(OUTCOMES)}")
        with self._lock(agent_id):
            record = load_permitted(self._backend, agent_id, None)
            if record.host != HOST:
                allowed = "an agent whose readings are posted; this one ends itself"
                raise ConfigurationError("agent_id", agent_id, allowed)
            if not record.active:
                return False
            record.active, record.outcome = False, outcome
            gauge = self._gauge(record, now)
            gauge.event("agent_stopped", outcome=outcome)
            self._save(gauge, now)
        return True

    def _new(self, agent_id: str, now: float, epoch: int) -> StateRecord:
        machine = this_machine()
        record = StateRecord(
            agent_id,
            host=HOST,
            phase="working",
            started_at=now,
            epoch=epoch,
            epoch_started_at=now,
            grace_seconds=30.0,
            boot_id=machine.boot_id,
            hostname=machine.hostname,
            tokens_source="estimated",
            limit_source="unknown",
            action="none",
            by_source={},
            announced={"epoch": epoch, "rungs": {}},
        )
        self._gauge(record, now).resolve_limit()
        return record

    def _gauge(self, record: StateRecord, now: float) -> Gauge:
        """Return the gauge of a posted agent."""
        memory = PostedMemory.of(record.extra.setdefault(MEMORY, {}))
        return Gauge(
            record,
            self._ladder,
            ContextTracker(),
            lambda: now,
            memory=memory,
            # The poster says when a window ends; a fall of its numbers alone does not.
            falls_begin_epochs=False,
        )

    def report_usage(
        self,
        agent_id: str,
        now: float,
        *,
        used_percentage: float | None,
        total_input_tokens: int | None = None,
        emitted_at: float | None = None,
    ) -> dict[str, Any]:
        """Take a reading.

        Args:
            agent_id: The agent.
            now: Epoch seconds, for a post without a time of its own.
            used_percentage: 0 and more; None = the poster knows none, and nothing changes.
            total_input_tokens: What is in the window; None = unknown.
            emitted_at: When the poster took it, epoch seconds by its own clock. At or before its
                last reading or boundary the post is stale.

        Returns:
            ``status``: ``ok``, ``not_registered`` (taken, no one is notified), ``stale_sample``,
            ``unknown_session``, ``stopped`` for one that has ended, or ``measured_elsewhere`` for
            one that others measure; with the first two also ``used_percentage``.

        Raises:
            ConfigurationError: A number that no window could have.
            StateError: The store refused.
        """
        _check("used_percentage", used_percentage, 10_000)
        _check("total_input_tokens", total_input_tokens, 1_000_000_000)

        def take(gauge: Gauge) -> dict[str, Any]:
            memory = gauge.record.extra[MEMORY]
            # Compared by the poster's clock alone: no clock here can be compared with it.
            if _is_stale(memory, emitted_at):
                return {"status": "stale_sample"}
            registered = self._registry.registrations(agent_id)
            if used_percentage is not None:
                reading = PostedReading(used_percentage, total_input_tokens, emitted_at)
                if _is_another(memory, reading) or self._is_due(gauge.record, registered):
                    _take_reading(gauge, reading, now)
                    self._save(gauge, now)
            status = "ok" if registered else "not_registered"
            return {"status": status, "used_percentage": used_percentage}

        return self._post(agent_id, now, take)

    def report_event(
        self, agent_id: str, event: str, now: float, *, emitted_at: float | None = None
    ) -> dict[str, Any]:
        """Take a boundary: ``compaction``, ``compaction_complete`` or ``context_reset``.

        Returns:
            ``status``: ``compaction_logged``, ``compaction_complete_logged`` (with
            ``last_handoff_path``, where one was noted), ``flags_reset``, or one of those of
            `report_usage`.

        Raises:
            ConfigurationError: There is no such event.
            StateError: The store refused.
        """
        if event not in EVENTS:
            raise ConfigurationError("event", event, f"one of {', '.join(EVENTS)}")

        def take(gauge: Gauge) -> dict[str, Any]:
            memory = gauge.record.extra[MEMORY]
            # What was read before a boundary is not compared with what comes after it.
            for name in ("usedPercentage", "totalInputTokens", "sampledAt", TAKEN_AT, "compacting"):
                memory.pop(name, None)
            answer: dict[str, Any] = {"status": EVENTS[event]}
            if event == COMPACTION_COMPLETE:
                gauge.record.measured_at = None
                gauge.resolve_limit()
                if HANDOFF_PATH in memory:
                    answer["last_handoff_path"] = memory[HANDOFF_PATH]
            else:
                if emitted_at is not None:
                    # Boundaries may arrive in another order than they happened.
                    memory["boundaryAt"] = max(emitted_at, memory.get("boundaryAt", 0.0))
                if event == COMPACTION:
                    memory["compacting"] = True
                gauge.begin_epoch("compaction" if event == COMPACTION else "clear", None, now)
            self._save(gauge, now)
            return answer

        return self._post(agent_id, now, take)

    def note_handoff(self, agent_id: str, path: str | None, now: float) -> dict[str, Any]:
        """Note where an agent keeps its handoff document, for a successor.

        Nothing here opens that file: it lies where the poster is, which may be another machine.

        Args:
            agent_id: The agent.
            path: Absolute, at most 4,096 characters; None = there is none any more.
            now: Epoch seconds.

        Returns:
            ``status``: ``handoff_noted``, or one of those of `report_usage`.

        Raises:
            ConfigurationError: It is no such path.
            StateError: The store refused.
        """
        if path is not None and not _is_path(path):
            allowed = f"an absolute path of at most {MAX_PATH_CHARS:,} printable characters"
            raise ConfigurationError("last_handoff_path", path[:80], allowed)

        def take(gauge: Gauge) -> dict[str, Any]:
            memory = gauge.record.extra[MEMORY]
            if memory.get(HANDOFF_PATH) != path:
                memory[HANDOFF_PATH] = path
                self._save(gauge, now)
            return {"status": "handoff_noted"}

        return self._post(agent_id, now, take)

    def _is_due(self, record: StateRecord, registered: list[StoredRegistration]) -> bool:
        """Return whether a recipient has not been notified of a reading that is known already."""
        for one in registered:
            last = self._registry.announcement(record.agent_id, one.notify_id)
            return one.is_enforced and decide(one.ladder, record, last) is not None
        return False

    def _post(
        self, agent_id: str, now: float, take: Callable[[Gauge], dict[str, Any]]
    ) -> dict[str, Any]:
        """Take a post about an agent, or answer why it is not taken."""
        with self._lock(agent_id):
            record = find_record(self._backend, agent_id)
            if record is None:
                return {"status": "unknown_session"}
            if record.host != HOST:
                return {"status": "measured_elsewhere"}
            if not record.active:
                return {"status": "stopped"}
            return take(self._gauge(record, now))

    def retake(self, agent_id: str, readings: Iterable[Reading]) -> int:
        """Take readings that a log holds and the state of their agent may lack, in their order.

        Returns:
            How many it lacked. None is taken by a later agent of the id, or one that has ended.

        Raises:
            StateError: The store refused.
        """
        with self._lock(agent_id):
            try:
                record = find_record(self._backend, agent_id)
            except StateCorruptError as error:
                _log.warning("readings of agent %s are lost: %s", agent_id, error)
                return 0
            if record is None or not record.active:
                return 0
            known, last = (record.started_at, record.generation), record.seq
            newer = [
                one
                for one in readings
                if (one.started_at, one.generation) == known and one.seq > last
            ]
            for one in newer:
                gauge = self._gauge(record, one.at)
                posted = one.used_percentage, one.total_input_tokens, one.emitted_at
                _take_reading(gauge, PostedReading(*posted), one.at)
                _count_post(record, one.at)
                record.pending = [*(record.pending or ()), *gauge.events] or None
            if newer:
                self._store(record, record.pending or [])
            return len(newer)

    def _save(self, gauge: Gauge, now: float) -> None:
        record = gauge.record
        _count_post(record, now)
        self._store(record, [*(record.pending or ()), *gauge.events])

    def _store(self, record: StateRecord, events: list[dict[str, Any]]) -> None:
        self._backend.record(record, events, durable=True)


def _count_post(record: StateRecord, now: float) -> None:
    """Note in a state that a post about its agent was taken."""
    record.seq += 1
    record.last_heartbeat = record.last_activity = now


def _is_stale(memory: dict[str, Any], emitted_at: float | None) -> bool:
    """Return whether a reading is not newer than the last reading or boundary of its poster."""
    return emitted_at is not None and emitted_at <= max(
        memory.get("boundaryAt", 0.0), memory.get("sampledAt", 0.0)
    )


def _is_another(memory: dict[str, Any], reading: PostedReading) -> bool:
    """Return whether a reading says more than the last one."""
    # With a time of its own a reading is always another one; without it only other numbers are.
    return reading != (memory.get("usedPercentage"), memory.get("totalInputTokens"), None)


def _take_reading(gauge: Gauge, reading: PostedReading, now: float) -> None:
    """Take a reading that a window could have and that is not stale."""
    memory, emitted_at = gauge.record.extra[MEMORY], reading.emitted_at
    memory["usedPercentage"] = reading.used_percentage
    memory["totalInputTokens"] = reading.total_input_tokens
    if emitted_at is not None:
        memory["sampledAt"] = emitted_at
    memory[TAKEN_AT] = format_time(now if emitted_at is None else emitted_at)
    memory.pop("compacting", None)
    _measure(gauge, reading.used_percentage, reading.total_input_tokens)


def _is_path(text: str) -> bool:
    """Return whether a text can be the whole path of a file, on this system or another."""
    is_absolute = text.startswith("/") or text[1:3] in (":\\", ":/")
    return is_absolute and len(text) <= MAX_PATH_CHARS and text.isprintable()


def _check(name: str, value: float | None, most: float) -> None:
    """Refuse a number that no window could have."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigurationError(name, value, f"a number from 0 to {most:,}")


def _measure(gauge: Gauge, percentage: float, tokens: int | None) -> None:
    """Take a percentage as it was posted: it is known better than the window it is of."""
    memory = gauge.memory
    window = memory.window_tokens
    if percentage and tokens:
        window = int(tokens * 100 / percentage + _SAME) or None
    elif window is not None:
        tokens = ceil(percentage * window / 100 - _SAME)
    if memory.window_tokens != window:
        memory.window_tokens = window
        # An older reading must not be measured against a window that came with a newer one.
        gauge.record.measured_at = None
        gauge.resolve_limit()
    if window is None or tokens is None or not gauge.take(tokens):
        gauge.take_share(percentage / 100)
