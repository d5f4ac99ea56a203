"""The state of one agent as it is now: what its monitor changes, and its writer stores."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ultramon.errors import AgentAlreadyRunningError, FencedError, UltramonError
from ultramon.monitor.late_models import load_models
from ultramon.monitor.lifecycle_machine import CREATED, LifecycleMachine

if TYPE_CHECKING:
    from ultramon.context.config import ContextConfig
    from ultramon.context.monitor_gauge import MonitorGauge
    from ultramon.state.plan import Plan
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.monitor")


class LiveState:
    """Takes the snapshots of one agent, and continues what an earlier owner of it stored.

    Args:
        gauge: Its readings; the record and the configuration are the agent's.
        plan: Its work.
        clock: Gives the times.

    Attributes:
        record: As it is now; its generation is the number of this owner, 0 until it is stored.
        config: Of the agent.
        lifecycle_machine: Says where the agent is between its start and its end.
        lock: Guards gauge, plan and everything here.
        resumes: Whether the window of an ended agent of the same id is continued.
        is_fenced: Whether another process owns the agent.
    """

    def __init__(self, gauge: MonitorGauge, plan: Plan, clock: Clock) -> None:
        self.record: StateRecord = gauge.record
        self.config: ContextConfig = gauge.config
        self.clock = clock
        self.lifecycle_machine = LifecycleMachine(self.record.agent_id)
        self.lock = threading.RLock()
        self.is_fenced = False
        self.resumes = False
        self._gauge = gauge
        self._plan = plan

    def snapshot(self, after: StateRecord | None = None) -> StateRecord:
        """Return the state as it is now, whether stored or not.

        Args:
            after: The stored state to follow first: that of a vanished owner is continued, that
                of an ended agent is the one before.
        """
        with self.lock:
            if after is not None:
                self._continue(after)
            record, plan = self.record, self._plan
            if record.outcome is None:
                record.last_heartbeat = self.clock.now()
            record.current_task = plan.current
            record.tasks_completed = plan.completed_count
            record.tasks_total = plan.total_count
            record.tasks = plan.to_json()
            return self._gauge.snapshot()

    def _continue(self, stored: StateRecord) -> None:
        gauge, record = self._gauge, self.record
        is_same_run = stored.run == record.run
        if is_same_run:
            record.handoff = record.handoff or stored.handoff
        if self.lifecycle_machine.phase != CREATED:
            # The start could not be stored until now; what this owner has counted since is newer.
            gauge.move_to_epoch(max(record.epoch, stored.epoch + 1))
        elif is_same_run and self._continues(stored) and _is_sound(stored):
            gauge.restore(stored)
            self._plan.restore(stored.tasks, stored.tasks_completed, stored.tasks_total)
            record.started_at = stored.started_at
        else:
            gauge.begin_after(stored)

    def _continues(self, stored: StateRecord) -> bool:
        # What was handed over is a successor's: an agent that comes back after that begins anew.
        return stored.active or (self.resumes and stored.outcome != "returned")

    def fence(self, error: UltramonError) -> None:
        """Ask the agent to return: another owner has it, as this refusal of a save says."""
        self.is_fenced = True
        with self.lock:
            self._gauge.fence(
                f"Agent belongs to {_owner_of(error)} - nothing more is stored here, "
                "initiating return"
            )
        # A conversation that waits may be continued by any process.
        _log.log(
            logging.INFO if self.record.phase == "waiting" else logging.WARNING,
            "agent %s was taken over by another process (%s); this one writes nothing more",
            self.record.agent_id,
            error,
        )

    def request_return(self, *, asked: bool) -> bool:
        """Ask the agent to return, or no longer; return whether that is new to one that runs."""
        with self.lock:
            return self.record.active and self._gauge.request_return(asked)


def _is_sound(stored: StateRecord) -> bool:
    """Whether a state has a meaning for this version, and not only a valid checksum."""
    load_models()
    from pydantic import ValidationError

    from ultramon.state.models import AgentState

    try:
        AgentState.from_record(stored)
    except ValidationError as error:
        _log.warning("agent %s begins anew, its state has no meaning: %s", stored.agent_id, error)
        return False
    return True


def _owner_of(refusal: UltramonError) -> str:
    if isinstance(refusal, FencedError):
        return f"another process (generation {refusal.current_generation})"
    if isinstance(refusal, AgentAlreadyRunningError):
        return f"process {refusal.pid} on {refusal.hostname}"
    return "another process"
