"""The columns of a state that the database itself compares, sorts and judges by."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ultramon.backends.postgres.schema.text_columns import to_column
from ultramon.context.ladder import FORCE_RETURN, PREPARE_HANDOFF
from ultramon.state.liveness import STALE_AFTER_INTERVALS, lost_after
from ultramon.state.record import short_id
from ultramon.system import compact_json

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord

COLUMNS = (
    "generation",
    "seq",
    "schema_version",
    "run",
    "active",
    "urgency",
    "waiting",
    "usage_ratio",
    "skew_seconds",
    "started_at",
    "last_heartbeat",
    "stale_after_seconds",
    "lost_after_seconds",
    "machine",
    "process",
    "label",
    "shown_id",
    "document",
)
"""The columns of `ultramon.agents` after the id, in the order of `values_of`."""

INFINITY = float("inf")
_URGENCIES = {FORCE_RETURN: 2, PREPARE_HANDOFF: 1}


def values_of(record: StateRecord, document: bytes, skew_seconds: float) -> tuple[Any, ...]:
    """Return the values of a row.

    Args:
        record: The state.
        document: The bytes of its file.
        skew_seconds: How far the server's clock is ahead of the one that the state goes by.
    """
    interval, shown_id = record.heartbeat_interval_seconds, short_id(record)
    return (
        record.generation,
        record.seq,
        record.schema,
        to_column(record.run),
        record.active,
        _URGENCIES.get(record.action, 0),
        record.phase == "waiting",
        _number(record.usage_ratio),
        skew_seconds,
        record.started_at,
        record.last_heartbeat,
        _number(None if interval is None else STALE_AFTER_INTERVALS * interval),
        _lost_after(record),
        machine_of(record.hostname, record.boot_id),
        None if record.pid is None else process_of(record.pid, record.pid_started_at),
        None if record.label is None else to_column(record.label),
        None if shown_id == record.agent_id else shown_id,
        document.decode("ascii"),
    )


def machine_of(hostname: str, boot_id: str) -> int:
    """Return a number for a host as `ultramon.state.liveness` knows it, in eight signed bytes."""
    host = compact_json.dumps([hostname, boot_id]).encode("ascii")
    return int.from_bytes(blake2b(host, digest_size=8).digest(), "big", signed=True)


def process_of(pid: int, started_at: str | None) -> str:
    """Return a process of a host as text."""
    return compact_json.dumps([pid, started_at])


def _number(value: float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:
        return INFINITY


def _lost_after(record: StateRecord) -> float:
    try:
        return float(lost_after(record))
    except OverflowError:
        return INFINITY
