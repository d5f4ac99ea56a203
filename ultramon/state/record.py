"""The state of one agent: the only place that knows the names and kinds of its fields.

A state file is one JSON object. Its last member is `crc32`, the checksum of everything before it.
"""

from __future__ import annotations

from _operator import itemgetter  # as `operator.itemgetter`, without that module
from binascii import crc32

from ultramon.errors import StateCorruptError, StateSchemaError, StateWriteError
from ultramon.state.event_keys import is_event
from ultramon.system import compact_json
from ultramon.system.files import MAX_FILE_BYTES
from ultramon.system.ids import random_hex
from ultramon.system.timestamps import format_time, parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Number = float
    Time = float

SCHEMA = 1
MAX_STATE_BYTES = 1 << 20
MAX_INTEGER = 10**18 - 1
"""The largest number in a state; a database holds no more than nine times as much."""

_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "number": (int, float),
    "dict": (dict,),
    "list": (list,),
}
_EMPTY: dict[str, Any] = {"int": 0, "str": "", "bool": False, "number": 0.0, "time": 0.0}


class StateRecord:
    """One agent's state, with times as epoch seconds. See `docs/state-file.md` for each field.

    A record of `ultramon.state.record_head` decodes most fields at the first use of one of them,
    which raises as `decode_state` does.
    """

    # The fields in the order of the file, with their kinds there.
    schema: int
    agent_id: str
    run: str
    session_id: str
    parent_id: str | None
    predecessor_id: str | None
    label: str | None
    host: str
    model: str | None
    cwd: str | None
    active: bool
    phase: str
    outcome: str | None
    exit: dict[str, Any] | None
    started_at: Time
    last_heartbeat: Time
    last_activity: Time
    heartbeat_interval_seconds: Number | None
    lost_after_seconds: Number | None
    grace_seconds: Number
    pid: int | None
    pid_started_at: str | None
    boot_id: str
    hostname: str
    start_id: str | None
    generation: int
    epoch: int
    epoch_started_at: Time
    seq: int
    measured_at: Time | None
    cumulative_chars: int
    estimated_tokens: int
    tokens_source: str
    anchor: dict[str, Any] | None
    by_source: dict[str, int] | None
    context_limit: int | None
    context_window: int | None
    reserved_output_tokens: int
    limit_source: str
    limit_suspect: bool
    limit_candidates: list[dict[str, Any]] | None
    usage_ratio: Number | None
    threshold_status: str | None
    action: str
    ladder: dict[str, Any]
    ladder_status: str
    announced: dict[str, Any]
    forecast: dict[str, Any] | None
    current_task: str | None
    tasks_completed: int
    tasks_total: int | None
    tasks: list[dict[str, Any]] | None
    continues_handoff_id: str | None
    handoff: dict[str, Any] | None
    pending: list[dict[str, Any]] | None

    __slots__ = (*__annotations__, "_body", "_path", "extra")

    def __init__(self, agent_id: str, **values: Any) -> None:
        for attribute, _, kind in FIELDS:
            empty = {} if kind == "dict" else _EMPTY.get(kind)
            setattr(self, attribute, values.pop(attribute, empty))
        self.agent_id = agent_id
        self.schema = SCHEMA
        self._body, self._path = b"", ""
        self.extra: dict[str, Any] = values.pop("extra", {})
        if values:
            raise TypeError(f"a state has no field {sorted(values)}")

    # For a type checker a __getattr__ would make every misspelt name valid.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name not in FIELD_NAMES and name != "extra":
                raise AttributeError(f"a state has no field {name!r}")
            self.decode()
            return object.__getattribute__(self, name)

    @classmethod
    def undecoded(cls, body: bytes, path: str) -> StateRecord:
        """Return a record without fields yet; ``body`` is the result of `check_sum`."""
        record = cls.__new__(cls)
        record._body = body
        record._path = path
        return record

    @property
    def undecoded_body(self) -> bytes:
        """The result of `check_sum` of a record that is not decoded yet, else nothing."""
        return self._body

    def decode(self) -> None:
        """Decode the remaining fields.

        Raises:
            StateCorruptError: As `decode_state`.
        """
        if not self._body:
            return
        for attribute, value in _decoded(self._body, self._path).items():
            try:
                object.__getattribute__(self, attribute)
            except AttributeError:  # a field that is set may be newer than the file
                setattr(self, attribute, value)
        self._body = b""

    def peek(self) -> dict[str, Any]:
        """Return the fields of a record that is not decoded yet, by attribute; it stays as it is.

        Raises:
            StateCorruptError: As `decode_state`.
        """
        return _decoded(self._body, self._path)

    def event(
        self, kind: str, *, at: float, n: int, source: str = "", **details: Any
    ) -> dict[str, Any]:
        """Make an event about this agent.

        Args:
            kind: Its type.
            at: Epoch seconds.
            n: Its number among events of its type in this epoch; equal ones are stored once.
            source: The one that noticed it; empty = the agent itself.
            **details: Further members.
        """
        return {
            "eventId": random_hex(16),
            "type": kind,
            "agentId": self.agent_id,
            "sessionId": self.session_id,
            "run": self.run,
            "generation": self.generation,
            "epoch": self.epoch,
            "source": source or f"agent:{self.agent_id}",
            "occurredAt": format_time(at),
            "n": n,
            **details,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the state with the names and values of the state file, without `crc32`."""
        shown: dict[str, Any] = {}
        for attribute, name, kind in FIELDS:
            value = getattr(self, attribute)
            if kind.startswith("time") and value is not None:
                value = format_time(value)
            shown[name] = value
        shown.update(self.extra)
        return shown


def member_name(attribute: str) -> str:
    """Return the name in a state file of a field, or of what a host keeps: in camel case."""
    first, *rest = attribute.replace("-", "_").split("_")
    return first + "".join([word.capitalize() for word in rest])


def _field(attribute: str, annotation: str) -> tuple[str, str, str]:
    kind, is_optional, _ = annotation.partition(" | ")
    kind = kind.partition("[")[0].lower() + ("?" if is_optional else "")
    return attribute, member_name(attribute), kind


FIELDS = tuple(_field(*item) for item in StateRecord.__annotations__.items())
"""Attribute, name and kind in the file of each field, in the file's order; ``?`` = may be null."""
FIELD_NAMES = {attribute: name for attribute, name, _ in FIELDS}
_DECODED = tuple(
    (attribute, name, kind.rstrip("?"), kind.endswith("?")) for attribute, name, kind in FIELDS[1:]
)
_ATTRIBUTES = tuple(attribute for attribute, _, _, _ in _DECODED)
_NAMES = tuple(name for _, name, _, _ in _DECODED)
_TIMES = tuple((attribute, name, may) for attribute, name, kind, may in _DECODED if kind == "time")
_NUMBERS = tuple(
    (attribute, name, kind) for attribute, name, kind, _ in _DECODED if kind in ("int", "number")
)
_KNOWN = frozenset(_NAMES)
_pick_known = itemgetter(*_NAMES)
_pick_numbers = itemgetter(*(attribute for attribute, _, _ in _NUMBERS))
# Fields that may be null make far more combinations than a fleet has.
_MAX_KINDS = 1024
_right_kinds: set[tuple[type, ...]] = set()


def encode_state(record: StateRecord, path: str) -> bytes:
    """Return the bytes of a state file.

    Raises:
        StateWriteError: The state is larger than a reader accepts, or holds a value without a
            JSON form.
    """
    try:
        body = compact_json.dumps(record.to_json()).encode("ascii")
    except (TypeError, ValueError) as error:
        raise StateWriteError(path, f"the state has no JSON form: {error}") from error
    data = b'%s,"crc32":%d}\n' % (body[:-1], crc32(body))
    if len(data) > MAX_STATE_BYTES:
        raise StateWriteError(
            path,
            f"the state would have {len(data):,} bytes, at most {MAX_STATE_BYTES:,} are read back",
            "plan fewer or shorter items per agent, or shorter notes",
        )
    return data


def check_sum(data: bytes, path: str) -> bytes:
    """Return the JSON object in the bytes of a state file, without its checksum and last brace.

    Raises:
        StateCorruptError: Torn or changed.
    """
    body, mark, tail = data.rpartition(b',"crc32":')
    tail = tail.rstrip(b"\n")
    digits = tail[:-1]
    # A 32-bit number has ten digits; int() refuses thousands of them with an error of its own.
    if not mark or not tail.endswith(b"}") or not digits.isdigit() or len(digits) > 10:
        raise StateCorruptError(path, "not a complete state: the checksum is missing")
    if int(digits) != crc32(b"}", crc32(body)):
        raise StateCorruptError(path, "the checksum does not match")
    return body


def decode_state(data: bytes, path: str) -> StateRecord:
    """Rebuild a state from the bytes of its file.

    Of a newer schema (`StateRecord.schema`) the known fields are read.

    Raises:
        StateCorruptError: Torn, changed, or a field of another kind.
        StateSchemaError: A newer schema whose fields differ so much that it cannot be read.
    """
    record = StateRecord.undecoded(b"", path)
    for attribute, value in _decoded(check_sum(data, path), path).items():
        setattr(record, attribute, value)
    return record


def _decoded(body: bytes, path: str) -> dict[str, Any]:
    """Return all fields, by attribute."""
    try:
        value = compact_json.loads(body + b"}")
    except ValueError as error:
        raise StateCorruptError(path, str(error)) from None
    if not isinstance(value, dict):
        raise StateCorruptError(path, "not a JSON object")
    schema = value.pop("schema", None)
    if type(schema) is not int or schema < 1:
        raise StateCorruptError(path, f"schema {schema!r} is not a schema number")
    try:
        values = _known_fields(value, path)
    except StateCorruptError as error:
        if schema <= SCHEMA:
            raise
        # Corrupt files are set aside; the state of a newer ultramon must not be.
        raise StateSchemaError(
            path, f"schema {schema} was written by a newer ultramon: {error.reason}", "upgrade"
        ) from None
    values["schema"] = schema
    return values


def _known_fields(value: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the known fields of a decoded state, by attribute, and the others as ``extra``."""
    try:
        given = _pick_known(value)
        has_others = len(value) > len(given)
    except KeyError:
        given = tuple(map(value.get, _NAMES))
        has_others = True
    kinds = tuple(map(type, given))
    # The states of a fleet have few combinations of kinds.
    if kinds not in _right_kinds:
        _check_kinds(kinds, path)
    values = dict(zip(_ATTRIBUTES, given, strict=True))
    for attribute, name, is_optional in _TIMES:
        text = values[attribute]
        if text is None and is_optional:
            continue
        values[attribute] = parse_time(text)
        if values[attribute] is None:
            raise StateCorruptError(path, f"{name} {text!r} is not a time")
    problem = _problem_of(values)
    if problem is not None:
        raise StateCorruptError(path, problem)
    others = value if has_others else ()
    values["extra"] = {name: value[name] for name in others if name not in _KNOWN}
    return values


def _check_kinds(kinds: tuple[type, ...], path: str) -> None:
    for given, (_, name, kind, optional) in zip(kinds, _DECODED, strict=True):
        is_missing = optional and given is type(None)
        # By type: for isinstance a bool would be an int.
        if not is_missing and kind != "time" and given not in _TYPES[kind]:
            raise StateCorruptError(path, f"{name} is not of kind {kind}")
    if len(_right_kinds) >= _MAX_KINDS:
        _right_kinds.clear()
    _right_kinds.add(kinds)


def _problem_of(values: dict[str, Any]) -> str | None:
    """Return what makes no sense in the values of a state, None where nothing is found.

    Another program may have written them under a right checksum; every reader of a state relies on
    these.
    """
    for value, (_, name, kind) in zip(_pick_numbers(values), _NUMBERS, strict=True):
        # Compared this way round, so that a NaN is refused too.
        if value is not None and not -MAX_INTEGER <= value <= MAX_INTEGER:
            if kind == "int":
                return f"{name} {value!r:.40} has more than 18 digits"
            return f"{name} {value!r:.40} is no number that an agent can have"
    if not all(type(count) is int for count in (values["by_source"] or {}).values()):
        return "bySource holds what is no number of tokens"
    for task in values["tasks"] or ():
        if not (
            isinstance(task, dict)
            and isinstance(task.get("name"), str)
            and isinstance(task.get("status"), str)
        ):
            return "tasks holds what is no task"
    if not all(map(is_event, values["pending"] or ())):
        return "pending holds what is no event"
    return None


def refuse_newer(stored: StateRecord, path: str) -> None:
    """Check that this version may replace a stored state.

    Raises:
        StateSchemaError: A newer ultramon wrote it.
    """
    if stored.schema > SCHEMA:
        raise StateSchemaError(
            path,
            f"schema {stored.schema} was written by a newer ultramon, this one knows {SCHEMA}",
            "nothing was written; upgrade ultramon, or choose another agent id",
        )


def encode_request(request: dict[str, Any], path: str) -> bytes:
    """Return the bytes of a request.

    Raises:
        StateWriteError: It has no JSON form, or is larger than a reader accepts.
    """
    try:
        data = compact_json.dumps(request).encode("ascii")
    except (TypeError, ValueError) as error:
        raise StateWriteError(path, f"the request has no JSON form: {error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise StateWriteError(path, f"the request has {len(data):,} bytes, that is too many")
    return data


SDK_HOST = "sdk"
SETTING_SOURCES = "settingSources"
"""Field of an agent of the SDK: by setting, the variable or file that it came from."""
TOLD = "told"
"""Field of an agent of the SDK: the highest rung, with its epoch, of which it read a reminder."""
RETURNED_NO_TEXT = "returnedNoText"
"""Field of what a host keeps of a subagent that ended: whether its launcher got no text of it."""
WAITS_FOR = "waitsFor"
"""Field of what a host keeps of a waiting agent; missing = it waits for its next task."""
PERMISSION = "permission"
ANSWER = "answer"
"""What an agent waits for, where a person has to allow a tool or to answer a question."""
_SHORT_ID_CHARS = 8
MACHINE_ID_CHARS = 13
"""Of the id of a machine that mirrors its agents, `m` and hexadecimal digits: it stands in place of
their `hostname`, and with a hyphen before their ids."""


def host_memory(record: StateRecord) -> dict[str, Any]:
    """Return what only the host of an agent keeps in its state; empty without any."""
    memory = record.extra.get(member_name(record.host))
    return memory if isinstance(memory, dict) else {}


def short_id(record: StateRecord) -> str:
    """Return an id for people: only the beginning of a host's session id, which is generated.

    Of a mirrored agent the part behind its machine, which all agents of that begin with.
    """
    session_id, own = record.session_id, record.agent_id
    machine = record.hostname
    if len(machine) == MACHINE_ID_CHARS and own.startswith(f"{machine}-") and not record.boot_id:
        session_id, own = (name[MACHINE_ID_CHARS + 1 :] for name in (session_id, own))
    if record.host == SDK_HOST or not (session_id and own.startswith(session_id)):
        return own
    return session_id[:_SHORT_ID_CHARS] + own[len(session_id) :]
