"""The columns of a state that the database itself compares, sorts and judges by."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from ultramon.backends.postgres.schema.text_columns import to_column
from ultramon.context.ladder import FORCE_RETURN, PREPARE_HANDOFF
from ultramon.state.history_ring import FULL_BYTES, LAST_MS, POINT_BYTES, encode_point
from ultramon.state.liveness import STALE_AFTER_INTERVALS, lost_after
from ultramon.state.record import StateRecord, short_id
from ultramon.system import compact_json

HISTORY = "history"
"""The column of readings: a row to write has its one new reading, if any; a stored row has all."""
_INFINITY = "Infinity"
_URGENCIES = {FORCE_RETURN: 2, PREPARE_HANDOFF: 1}


def row_of(record: StateRecord, document: bytes, skew_seconds: float) -> dict[str, Any]:
    """Return the row of a state in `ultramon.agents`, as JSON values by column.

    Args:
        record: The state.
        document: The bytes of its file.
        skew_seconds: How far the server's clock is ahead of the one that the state goes by.
    """
    interval, shown_id = record.heartbeat_interval_seconds, short_id(record)
    return {
        "agent_id": record.agent_id,
        "generation": record.generation,
        "seq": record.seq,
        "schema_version": record.schema,
        "run": to_column(record.run),
        "active": record.active,
        "urgency": _URGENCIES.get(record.action, 0),
        "waiting": record.phase == "waiting",
        "usage_ratio": _number(record.usage_ratio),
        "skew_seconds": skew_seconds,
        "started_at": record.started_at,
        "last_heartbeat": record.last_heartbeat,
        "stale_after_seconds": _number(interval and STALE_AFTER_INTERVALS * interval),
        "lost_after_seconds": _lost_after(record),
        "machine": machine_of(record.hostname, record.boot_id),
        "process": None if record.pid is None else process_of(record.pid, record.pid_started_at),
        "label": to_column(record.label),
        "shown_id": None if shown_id == record.agent_id else shown_id,
        "host": to_column(record.host),
        "model": to_column(record.model),
        "has_parent": record.parent_id is not None,
        "epoch": record.epoch,
        "level": to_column(record.threshold_status),
        **_reading(record, skew_seconds),
        "document": document.decode("ascii"),
        HISTORY: f"\\x{encode_point(record).hex()}",
    }


def _reading(record: StateRecord, skew_seconds: float) -> dict[str, Any]:
    """Return the newest reading of a window, by the server's clock; None where it has none."""
    at = record.measured_at
    if at is None or not encode_point(record):
        return {"measured_at": None, "used_tokens": None, "limit_tokens": None}
    return {
        # No later than the year 9999, like the points of a history: a day is made of it.
        "measured_at": min(max(at + skew_seconds, 0.0), LAST_MS / 1000),
        "used_tokens": record.estimated_tokens,
        "limit_tokens": record.context_limit,
    }


def machine_of(hostname: str, boot_id: str) -> int:
    """Return a number for a machine as `ultramon.state.liveness` knows it, of eight bytes."""
    machine = compact_json.dumps([hostname, boot_id]).encode("ascii")
    # Signed, as PostgreSQL has no unsigned integers.
    return int.from_bytes(blake2b(machine, digest_size=8).digest(), "big", signed=True)


def process_of(pid: int, started_at: str | None) -> str:
    """Return a process of a machine as text."""
    return compact_json.dumps([pid, started_at])


def _number(value: float | None) -> float | str | None:
    """Return a number as a column takes it: one that is too large is infinite, which is text."""
    try:
        number = None if value is None else float(value)
    except OverflowError:
        return _INFINITY
    return _INFINITY if number == float("inf") else number


def _lost_after(record: StateRecord) -> float | str | None:
    try:
        return _number(lost_after(record))
    except OverflowError:
        return _INFINITY


COLUMNS = tuple(row_of(StateRecord("any"), b"", 0.0))
"""The columns of a row, beginning with the id."""


def assignments(stored: str, given: str) -> str:
    """Return what an update sets, from the names of the stored row and of the given one.

    A reading is added to the history unless it is the last one there. A full history is thinned by
    its writer, after the write that filled it.
    """
    old, new = f"{stored}.{HISTORY}", f"{given}.{HISTORY}"
    is_known = is_known_reading(stored, given)
    values = {name: f"{given}.{name}" for name in COLUMNS[1:]}
    values[HISTORY] = (
        f"CASE WHEN {is_known} OR octet_length({old}) >= {FULL_BYTES}"
        f" THEN {old} ELSE coalesce({old}, '') || {new} END"
    )
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def is_known_reading(stored: str, given: str) -> str:
    """Return the condition under which a given row brings no new reading; not true for a new one.

    Args:
        stored: The name of the stored row.
        given: The name of the given one.
    """
    old, new = f"{stored}.{HISTORY}", f"{given}.{HISTORY}"
    last = f"substring({old} FROM octet_length({old}) - {POINT_BYTES - 1})"
    return f"coalesce({new}, '') IN ('', {last})"


READING = "agent_id, host, model, epoch, level, used_tokens, limit_tokens"
"""The columns of a reading that a row of an agent has, beside its time `measured_at`."""
MIRRORED_READING = (
    f"at, {READING}, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_usd"
)
"""The columns of a reading that a machine sends."""
