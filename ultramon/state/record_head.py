"""The head of a state file, read in a tenth of the time that decoding all of it takes.

For those who look at thousands of states again and again. The fields of which they need most stand
in front and in fixed order; what does not look exactly as `encode_state` writes it, is decoded.
"""

from __future__ import annotations

from ultramon.state.record import FIELDS, SCHEMA, StateRecord, check_sum, decode_state
from ultramon.system.timestamps import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

HEAD_FIELDS = (
    "agent_id",
    "run",
    "session_id",
    "predecessor_id",
    "active",
    "phase",
    "outcome",
    "started_at",
    "last_heartbeat",
    "heartbeat_interval_seconds",
    "lost_after_seconds",
    "pid",
    "pid_started_at",
    "boot_id",
    "hostname",
    "generation",
    "epoch",
)
"""What is read at once; `schema` and `pending` are known besides. In the order of the file."""

# Odd characters in a text that is wanted mean a full decode; other texts may hold what they like.
_WANTED = {
    "str": r'"([ !#-\[\]-~]*)"',
    "time": r'"([-0-9]{10}T[0-9:.]{12}Z)"',
    "bool": r"(true|false)",
    "int": r"([1-9][0-9]{0,17}|0)",
    "number": r"((?:[1-9][0-9]{0,17}|0)(?:\.[0-9]{1,17})?)",
}
_PASSED_OVER = {
    "str": r'"[^"\\]*(?:\\.[^"\\]*)*"',
    "time": r'"[-0-9]{10}T[0-9:.]{12}Z"',
    "number": r"[0-9.]+",
    "dict": r'\{[^{}"\\]*(?:"[^"\\]*"[^{}"\\]*)*\}',
}
_NOTHING_PENDING = b',"pending":null'

_heads: dict[int, re.Pattern[str]] = {}


def _compile_head(schema: int) -> re.Pattern[str]:
    import re

    members = [f'"schema":{schema}']
    for attribute, name, kind in FIELDS[1:]:
        shape = (_WANTED if attribute in HEAD_FIELDS else _PASSED_OVER)[kind.rstrip("?")]
        members.append(f'"{name}":' + (f"(?:null|{shape})" if kind.endswith("?") else shape))
        if attribute == HEAD_FIELDS[-1]:
            break
    _heads[schema] = re.compile(r"\{" + ",".join(members) + ",")
    return _heads[schema]


def decode_head(data: bytes, path: str) -> StateRecord:
    """Rebuild a state as `decode_state` does, most of its fields not before they are used.

    The first use of an attribute beyond `HEAD_FIELDS` may raise `StateCorruptError`: then something
    behind the head is no state, though it bears a right checksum.

    Raises:
        StateCorruptError: As `decode_state`, as far as the head goes.
        StateSchemaError: As `decode_state`.
    """
    body = check_sum(data, path)
    head = _heads.get(SCHEMA) or _compile_head(SCHEMA)
    found = head.match(body.decode("ascii", "replace")) if body.endswith(_NOTHING_PENDING) else None
    if found is None:
        return decode_state(data, path)
    record = StateRecord.undecoded(body, path)
    (
        record.agent_id,
        record.run,
        record.session_id,
        record.predecessor_id,
        active,
        record.phase,
        record.outcome,
        started_at,
        last_heartbeat,
        interval,
        lost_after,
        pid,
        record.pid_started_at,
        record.boot_id,
        record.hostname,
        generation,
        epoch,
    ) = found.groups()
    began, beat = parse_time(started_at), parse_time(last_heartbeat)
    if began is None or beat is None:
        return decode_state(data, path)
    record.schema = SCHEMA
    record.active = active == "true"
    record.started_at = began
    record.last_heartbeat = beat
    record.heartbeat_interval_seconds = None if interval is None else _number(interval)
    record.lost_after_seconds = None if lost_after is None else _number(lost_after)
    record.pid = None if pid is None else int(pid)
    record.generation = int(generation)
    record.epoch = int(epoch)
    record.pending = None
    return record


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
