"""The head of a state file, read in a tenth of the time that decoding all of it takes.

For readers of thousands of states. The fields that they need come first and in a fixed order; a
state that `encode_state` would have written differently is decoded whole.
"""

from __future__ import annotations

from ultramon.state.record import FIELDS, SCHEMA, StateRecord, check_sum, decode_state
from ultramon.system.timestamps import parse_minute

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
    "usage_ratio",
    "action",
)
"""The fields read at once, in the order of the file; `schema` and `pending` are known besides."""
_LAST_IN_FRONT = "epoch"

# Odd characters in a text that is wanted mean a full decode; other texts may hold what they like.
# Whole numbers have at most 18 digits, as `MAX_INTEGER` allows.
_WANTED = {
    "str": r'"([ !#-\[\]-~]*)"',
    "time": r'"([-0-9]{10}T[0-9:]{6})([0-5][0-9])(\.[0-9]{3})Z"',
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
# The last member; a state with events that its process could not store is decoded whole, for them.
_NOTHING_PENDING = b',"pending":null'
_USAGE = ',"usageRatio":'
_LEVEL = (
    f"{_USAGE}(?:null|{_WANTED['number']}),"
    f'"thresholdStatus":(?:null|{_PASSED_OVER["str"]}),"action":{_WANTED["str"]},'
)

_heads: dict[int, tuple[re.Pattern[str], re.Pattern[str]]] = {}


def _compile_head(schema: int) -> tuple[re.Pattern[str], re.Pattern[str]]:
    import re

    members = [f'"schema":{schema}']
    for attribute, name, kind in FIELDS[1:]:
        shape = (_WANTED if attribute in HEAD_FIELDS else _PASSED_OVER)[kind.rstrip("?")]
        members.append(f'"{name}":' + (f"(?:null|{shape})" if kind.endswith("?") else shape))
        if attribute == _LAST_IN_FRONT:
            break
    _heads[schema] = re.compile(r"\{" + ",".join(members) + ","), re.compile(_LEVEL)
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
    head, level = _heads.get(SCHEMA) or _compile_head(SCHEMA)
    text = body.decode("ascii", "replace")
    found = head.match(text) if body.endswith(_NOTHING_PENDING) else None
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
        start_minute,
        start_second,
        start_fraction,
        beat_minute,
        beat_second,
        beat_fraction,
        interval,
        lost_after,
        pid,
        record.pid_started_at,
        record.boot_id,
        record.hostname,
        generation,
        epoch,
    ) = found.groups()
    began, beat = parse_minute(start_minute), parse_minute(beat_minute)
    if began is None or beat is None:
        return decode_state(data, path)
    record.schema = SCHEMA
    record.active = active == "true"
    record.started_at = began + int(start_second) + float(start_fraction)
    record.last_heartbeat = beat + int(beat_second) + float(beat_fraction)
    record.heartbeat_interval_seconds = None if interval is None else _number(interval)
    record.lost_after_seconds = None if lost_after is None else _number(lost_after)
    record.pid = None if pid is None else int(pid)
    record.generation = int(generation)
    record.epoch = int(epoch)
    record.pending = None
    # A key of that name can be nested elsewhere: only a single one is the state's own.
    at = text.find(_USAGE, found.end() - 1)
    usage = level.match(text, at) if at == text.rfind(_USAGE) else None
    if usage is not None:
        ratio, record.action = usage.groups()
        record.usage_ratio = None if ratio is None else _number(ratio)
    return record


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
