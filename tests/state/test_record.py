"""State records: every field comes back, and no damaged byte goes unnoticed."""

import json
import random
import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ultramon.context.ladder import DEFAULT_LADDER
from ultramon.errors import StateCorruptError, StateSchemaError, StateWriteError
from ultramon.state import events, models
from ultramon.state.events import parse_event
from ultramon.state.models import AgentState
from ultramon.state.record import (
    FIELD_NAMES,
    FIELDS,
    MAX_INTEGER,
    MAX_STATE_BYTES,
    SCHEMA,
    StateRecord,
    decode_state,
    encode_state,
)
from ultramon.testing.samples import make_event

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tables = st.dictionaries(st.text(st.characters(), max_size=8), json_values, max_size=3)
KINDS = {
    "int": st.integers(-MAX_INTEGER, MAX_INTEGER),
    "str": st.text(st.characters(), max_size=30),
    "bool": st.booleans(),
    "number": st.floats(-1e17, 1e17) | st.integers(-(10**12), 10**12),
    # Stored to the millisecond.
    "time": st.integers(-(10**13), 10**14).map(lambda milliseconds: milliseconds / 1000),
    "dict": tables,
    "list": st.lists(tables, max_size=3),
}
TASK = {"name": st.text(max_size=8), "status": st.text(max_size=8)}
# What readers rely on in lists and tables, beyond their kind.
MEANINGS = {
    "by_source": st.dictionaries(st.text(max_size=8), st.integers(), max_size=3),
    "tasks": st.lists(st.builds(dict.__or__, tables, st.fixed_dictionaries(TASK)), max_size=3),
    "pending": st.lists(st.builds(lambda more: make_event("a", "t") | more, tables), max_size=2),
}


def kinds():
    """The kind of every field, as the record module has it."""
    return {attribute: kind for attribute, _, kind in FIELDS}


@st.composite
def records(draw):
    """Any record at all, unknown fields included."""
    values = {}
    for attribute, kind in kinds().items():
        strategy = MEANINGS.get(attribute, KINDS[kind.rstrip("?")])
        values[attribute] = draw(st.none() | strategy if kind.endswith("?") else strategy)
    del values["schema"]
    unknown = draw(tables)
    known = {*FIELD_NAMES.values(), "crc32"}
    extra = {name: value for name, value in unknown.items() if name not in known}
    return StateRecord(values.pop("agent_id"), extra=extra, **values)


def real_record():
    """A record as a working agent would have it."""
    return StateRecord(
        "scout-1",
        run="audit",
        session_id="0f" * 16,
        parent_id="boss",
        label="Späher \N{TELESCOPE}",
        host="sdk",
        model="claude-sonnet-4-5",
        cwd="/srv/audit",
        active=True,
        phase="in_tool",
        exit={"error": "ValueError"},
        started_at=1_700_000_000.25,
        last_heartbeat=1_700_000_015.5,
        last_activity=1_700_000_014.125,
        heartbeat_interval_seconds=15.0,
        grace_seconds=30.0,
        pid=4242,
        pid_started_at="123456",
        boot_id="b" * 32,
        hostname="worker-7",
        generation=2,
        epoch=3,
        epoch_started_at=1_700_000_001.0,
        seq=17,
        measured_at=1_700_000_014.0,
        cumulative_chars=48_000,
        estimated_tokens=142_300,
        tokens_source="anchored",
        anchor={
            "tokens": 130_000,
            "isReport": True,
            "replyTokens": 0,
            "exactTokens": 300,
            "calibration": 1.0427,
        },
        by_source={"tool:read": 12_000, "reply": 300},
        context_limit=200_000,
        context_window=200_000,
        limit_source="model",
        limit_candidates=[
            {"name": "window", "source": "model", "tokens": 200_000, "verdict": "binding"}
        ],
        usage_ratio=0.7115,
        threshold_status="warning",
        action="prepare_handoff",
        ladder=DEFAULT_LADDER.to_json(),
        ladder_status="ok",
        announced={"epoch": 3, "rungs": {"warning": 1}},
        forecast={
            "tokensPerTurn": 5100.5,
            "secondsPerTurn": 31.25,
            "rungs": {"critical": {"turns": 5, "seconds": 156.3}},
        },
        current_task="a.py",
        tasks_completed=1,
        tasks_total=3,
        tasks=[{"name": "a.py", "status": "in_progress", "result": None}],
        extra={"fromTheFuture": {"kept": [1, None]}},
    )


def refused(data):
    """Decoding that must end in the one exception for damage."""
    with pytest.raises(StateCorruptError) as caught:
        decode_state(data, "scout-1.json")
    assert type(caught.value) is StateCorruptError
    assert str(caught.value).startswith("scout-1.json: ")
    return caught.value.reason


def with_checksum(body):
    """Any JSON object in the frame of a state file."""
    body = body.encode() if isinstance(body, str) else body
    return b'%s,"crc32":%d}\n' % (body[:-1], zlib.crc32(body))


def changed(**fields):
    """The bytes of the real state with fields replaced (None = left out)."""
    value = {**real_record().to_json(), **fields}
    return with_checksum(
        json.dumps({name: given for name, given in value.items() if given is not ...})
    )


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(records())
def test_any_record_comes_back_as_it_was(record):
    """Every field of every kind survives the bytes, unknown fields too."""
    again = decode_state(encode_state(record, "x"), "x")
    assert again.to_json() == record.to_json()
    for attribute, kind in kinds().items():
        came, went = getattr(again, attribute), getattr(record, attribute)
        assert came == (pytest.approx(went) if kind.startswith("time") else went)
    assert again.extra == record.extra


def test_a_state_is_one_json_object_that_ends_in_its_checksum():
    """Other languages read it as JSON; the last member sums up all bytes before it."""
    data = encode_state(real_record(), "x")
    value = json.loads(data)
    assert list(value)[-1] == "crc32"
    assert list(value)[: len(FIELD_NAMES)] == list(FIELD_NAMES.values())
    body = data[: data.rindex(b',"crc32"')] + b"}"
    assert value["crc32"] == zlib.crc32(body)
    assert data.isascii()
    assert data.endswith(b"}\n")


def test_every_truncation_is_seen():
    """A state cut at any byte is corrupt; only its final newline may be missing."""
    data = encode_state(real_record(), "x")
    for length in range(len(data) - 1):
        refused(data[:length])
    assert decode_state(data[:-1], "x").agent_id == "scout-1"


def test_every_bit_flip_is_seen():
    """Two thousand random bits, each of them flipped alone, are all noticed."""
    data = encode_state(real_record(), "x")
    chosen = random.Random(20261121)
    for _ in range(2_000):
        position, bit = chosen.randrange(len(data)), chosen.randrange(8)
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        refused(bytes(flipped))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"\0" * 100,
        b"{}",
        b"null",
        with_checksum("[1]"),
        with_checksum('{"schema":1}'),
        b'{"schema":1,"crc32":' + b"9" * 5000 + b"}",
        b'{"schema":1,"crc32":-1}',
        b'{"schema":1,"crc32":}',
        with_checksum(b'{"a":"\xff"}'),
        with_checksum("{nonsense}"),
        b"\xef\xbb\xbf" + encode_state(real_record(), "x"),
        encode_state(real_record(), "x") * 2,
        encode_state(real_record(), "x") + b"x",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_what_is_no_state_is_corrupt(data):
    """Empty, zeroed, other JSON, two states in a row: one kind of exception."""
    refused(data)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("agentId", None, "agentId is not of kind str"),
        ("agentId", 7, "agentId is not of kind str"),
        ("run", ..., "run is not of kind str"),
        ("active", 1, "active is not of kind bool"),
        ("pid", True, "pid is not of kind int"),
        ("pid", "4242", "pid is not of kind int"),
        ("epoch", 1.0, "epoch is not of kind int"),
        ("usageRatio", False, "usageRatio is not of kind number"),
        ("ladder", [], "ladder is not of kind dict"),
        ("tasks", {}, "tasks is not of kind list"),
        ("startedAt", 1_700_000_000, "startedAt 1700000000 is not a time"),
        ("startedAt", "2026-02-30T00:00:00Z", "startedAt '2026-02-30T00:00:00Z' is not a time"),
        ("schema", 0, "schema 0 is not a schema number"),
        ("schema", "1", "schema '1' is not a schema number"),
        ("schema", True, "schema True is not a schema number"),
        ("schema", ..., "schema None is not a schema number"),
    ],
)
def test_a_field_of_another_kind_is_corrupt(field, value, reason):
    """The checksum only says that it was not changed; the kinds are checked as well."""
    assert refused(changed(**{field: value})) == reason


def test_a_field_that_may_be_unknown_may_be_left_out():
    """Every nullable field is optional for other writers."""
    names = {FIELD_NAMES[name]: ... for name, kind in kinds().items() if kind.endswith("?")}
    record = decode_state(changed(**names), "x")
    assert record.model is None
    assert record.anchor is None


def test_a_newer_schema_is_read_as_far_as_it_is_known():
    """Its number tells the caller that it may not be written back."""
    record = decode_state(changed(schema=7, newThing=1), "x")
    assert (record.schema, record.agent_id) == (7, "scout-1")
    assert record.extra["newThing"] == 1


def test_a_newer_schema_that_cannot_be_read_is_not_called_corrupt():
    """What is called corrupt is set aside, which must not happen to a newer program's state."""
    with pytest.raises(StateSchemaError, match="newer ultramon: run is not of kind str"):
        decode_state(changed(schema=7, run={"name": "audit"}), "x")


def test_a_state_too_large_to_be_read_back_is_not_written():
    """The limit holds on both sides, and the error says what to do."""
    record = real_record()
    record.label = "x" * MAX_STATE_BYTES
    with pytest.raises(StateWriteError, match="at most 1,048,576 are read back; plan fewer"):
        encode_state(record, "x")


@pytest.mark.parametrize(
    "values",
    [
        {"usage_ratio": float("nan")},
        {"usage_ratio": float("inf")},
        {"started_at": float("nan")},
        {"started_at": 1e300},
        {"measured_at": 1_700_000_000_000.0},
        {"exit": {"error": ValueError("x")}},
    ],
    ids=repr,
)
def test_a_state_without_a_json_form_is_a_refused_write(values):
    """A bad value never leaves as a stranger's exception, and never as an unreadable file."""
    with pytest.raises(StateWriteError, match="no JSON form"):
        encode_state(StateRecord("a", **values), "x")


def test_a_record_has_only_the_fields_of_the_contract():
    """A misspelt field is an error of the programmer, not an unknown field."""
    with pytest.raises(TypeError, match="no field \\['runs'\\]"):
        StateRecord("a", runs="audit")
    assert StateRecord("a").schema == SCHEMA
    assert StateRecord("a").ladder is not StateRecord("b").ladder


def test_the_writers_bytes_are_a_valid_state_of_the_model():
    """What the core writes without pydantic is what pydantic reads, field by field."""
    data = encode_state(real_record(), "x")
    state = AgentState.model_validate_json(data)
    assert state == AgentState.from_record(decode_state(data, "x")).model_copy(
        update={"crc32": json.loads(data)["crc32"]}
    )
    assert state.started_at == datetime.fromtimestamp(1_700_000_000.25, UTC)
    assert state.anchor is not None
    assert state.anchor.calibration == 1.0427
    written = json.loads(state.model_dump_json(by_alias=True))
    assert list(written) == list(json.loads(data))


EVENT = {
    "eventId": "e" * 32, "agentId": "scout-1", "sessionId": "s", "run": "audit", "generation": 2,
    "epoch": 3, "source": "agent:scout-1", "occurredAt": "2026-11-21T20:28:51.642Z", "n": 1,
}  # fmt: skip
LEVEL = {
    "level": "warning", "previousLevel": None, "action": "prepare_handoff", "usageRatio": 0.71,
    "tokens": 142_000, "contextLimit": 200_000, "tokensSource": "reported",
}  # fmt: skip
EVENTS = [
    ("context_threshold_reached", events.ThresholdEvent, LEVEL),
    ("context_relaxed", events.ThresholdEvent, {**LEVEL, "previousLevel": "critical"}),
    ("context_epoch_started", events.EpochEvent,
     {"reason": "fall", "tokensBefore": 9, "tokensAfter": None}),
    ("handoff_ready", events.HandoffEvent, {"handoff": {"agentId": "scout-1"}}),
    ("agent_started", events.AgentEvent, {}),
    ("agent_lost", events.AgentEvent, {"outcome": "lost", "reason": "process 7 is gone"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "model", "details"), EVENTS, ids=lambda part: str(part)[:40])
def test_an_event_is_read_as_its_own_kind_and_comes_back(kind, model, details):
    """Journal row → model → JSON → model, with camelCase names outside."""
    event = parse_event({**EVENT, **details, "type": kind})
    assert type(event) is model
    again = parse_event(json.loads(event.model_dump_json(by_alias=True)))
    assert again == event
    with pytest.raises(ValueError, match="frozen"):
        event.epoch = 4


@given(st.builds(models.TaskState, name=st.text(), status=st.text(), result=st.none() | st.text()))
def test_a_task_comes_back(task):
    """Model → JSON → model."""
    assert TypeAdapter(models.TaskState).validate_json(task.model_dump_json(by_alias=True)) == task


NONSENSE = {
    "a generation of 20 digits": ({"generation": 10**19}, "generation 10000000000000000000 has"),
    "a number beyond all": ({"graceSeconds": 1e300}, "graceSeconds 1e\\+300 is no number"),
    "a text for tokens": ({"bySource": {"s": "many"}}, "bySource holds what is no number"),
    "a text for a task": ({"tasks": ["x"]}, "tasks holds what is no task"),
    "a task without a status": ({"tasks": [{"name": "x"}]}, "tasks holds what is no task"),
    "an event without a type": ({"pending": [{"run": "r"}]}, "pending holds what is no event"),
}


@pytest.mark.parametrize(("change", "problem"), NONSENSE.values(), ids=NONSENSE.keys())
def test_a_state_without_meaning_is_corrupt(change, problem):
    """A right checksum over senseless values is refused in one place, for every reader."""
    body = json.dumps({**real_record().to_json(), **change}).encode()
    data = b'%s,"crc32":%d}' % (body[:-1], zlib.crc32(body))
    with pytest.raises(StateCorruptError, match=f"^x: {problem}"):
        decode_state(data, "x")
