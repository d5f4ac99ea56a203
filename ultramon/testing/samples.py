"""States and events as an agent would write them, for tests of backends and of readers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ultramon.context.ladder import DEFAULT_LADDER
from ultramon.state.record import StateRecord
from ultramon.system.processes import process_started_at, this_machine
from ultramon.testing.clock import START

if TYPE_CHECKING:
    from ultramon.system.processes import MachineIdentity


def make_record(
    agent_id: str,
    generation: int = 1,
    *,
    at: float = START,
    machine: MachineIdentity | None = None,
    **fields: Any,
) -> StateRecord:
    """Return a valid state of an active agent that this process owns.

    Args:
        agent_id: The agent.
        generation: Of its owner.
        at: Start, heartbeat and activity, epoch seconds.
        machine: Where the owner runs; None = here. Its process cannot be looked up elsewhere.
        fields: Attributes of a `StateRecord`, to be other than the defaults here. ``schema`` too.
    """
    machine = machine or this_machine()
    schema = fields.pop("schema", None)  # no argument of `StateRecord`
    values: dict[str, Any] = {
        "run": "default",
        "session_id": "session-1",
        "host": "sdk",
        "active": True,
        "phase": "working",
        "started_at": at,
        "last_heartbeat": at,
        "last_activity": at,
        "heartbeat_interval_seconds": 15.0,
        "grace_seconds": 30.0,
        # Of this process, as liveness compares pid and start with what runs on the machine.
        "pid": os.getpid(),
        "pid_started_at": process_started_at(os.getpid()),
        "boot_id": machine.boot_id,
        "hostname": machine.hostname,
        "generation": generation,
        "epoch": 1,
        "epoch_started_at": at,
        "tokens_source": "estimated",
        "context_limit": 200_000,
        "context_window": 200_000,
        "limit_source": "default",
        "usage_ratio": 0.0,
        "threshold_status": "normal",
        "action": "none",
        "ladder": DEFAULT_LADDER.to_json(),
        "ladder_status": "ok",
        "announced": {"epoch": 1, "rungs": {}},
        **fields,
    }
    record = StateRecord(agent_id, **values)
    if schema is not None:
        record.schema = schema
    return record


def make_event(
    agent_id: str, kind: str = "agent_stale", *, at: float = START, **fields: Any
) -> dict[str, Any]:
    """Return an event as the log has it.

    Args:
        agent_id: The agent it is about.
        kind: Its ``type``.
        at: When it happened, epoch seconds.
        fields: Members to be other than the defaults here, under their JSON names.
    """
    record = StateRecord(agent_id, run="default", session_id="session-1", generation=1, epoch=1)
    return {**record.event(kind, at=at, n=0), **fields}
