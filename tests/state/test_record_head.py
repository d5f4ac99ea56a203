"""A glance at a state shows what decoding it shows, and the rest of it when it is used."""

from __future__ import annotations

import copy
import json
import logging
import zlib
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, make_record, start
from hypothesis import given, settings
from hypothesis import strategies as st
from test_record import kinds, real_record, records

from ultramon import Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateCorruptError, StateSchemaError
from ultramon.state.record import FIELDS, StateRecord, decode_state, encode_state
from ultramon.state.record_head import HEAD_FIELDS, decode_head
from ultramon.testing.clock import FakeClock
from ultramon.testing.samples import make_event

REAL = encode_state(real_record(), "x")


def undecoded(record):
    """The fields that were not needed so far."""
    slots = [attribute for attribute, _, _ in FIELDS] + ["extra"]
    return {slot for slot in slots if not _is_set(record, slot)}


def _is_set(record, slot):
    try:
        object.__getattribute__(record, slot)
    except AttributeError:
        return False
    return True


def plain_record(**values):
    """A record as `encode_state` writes most of them: no unknown fields."""
    record = real_record()
    record.extra = {}
    for attribute, value in values.items():
        setattr(record, attribute, value)
    return record


def glanced(**values):
    return decode_head(encode_state(plain_record(**values), "x"), "x")


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(records(), st.booleans())
def test_any_record_is_glanced_as_it_is_decoded(record, known):
    """Each attribute alone and the bytes are the same by both ways, exact to the type."""
    if known:
        record.extra, record.pending = {}, None
    data = encode_state(record, "x")
    decoded = decode_state(data, "x")
    for attribute in (*kinds(), "extra"):
        came, expected = getattr(decode_head(data, "x"), attribute), getattr(decoded, attribute)
        assert (came, type(came)) == (expected, type(expected))
    assert encode_state(decode_head(data, "x"), "x") == data


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"label": 'Sp\u00e4her "\\ \n', "cwd": "C:\\audit", "model": None},
        {"active": False, "outcome": "failed", "exit": {"error": "{ValueError}"}},
        {"heartbeat_interval_seconds": 15, "lost_after_seconds": 0.5, "grace_seconds": 0},
        {"pid": None, "pid_started_at": None, "heartbeat_interval_seconds": None},
    ],
    ids=repr,
)
def test_a_glance_decodes_only_the_head(values):
    """Whatever a state of ultramon holds, the fields behind the head wait until they are used."""
    record = glanced(**values)
    assert undecoded(record) == {*kinds(), "extra"} - {*HEAD_FIELDS, "schema", "pending"}
    for attribute in HEAD_FIELDS:
        assert getattr(record, attribute) == getattr(plain_record(**values), attribute)
    assert len(undecoded(record)) > 30
    assert record.label == plain_record(**values).label
    assert undecoded(record) == set()
    assert encode_state(record, "x") == encode_state(plain_record(**values), "x")


@pytest.mark.parametrize(
    "values",
    [
        {"anchor": {"tokens": 1, "usageRatio": 0.9}},
        {"forecast": {"at": 0, "usageRatio": 0.9, "thresholdStatus": "x", "action": "y", "z": 1}},
        {"usage_ratio": 1e-09},
        {"action": 'a "b"'},
        {"usage_ratio": None, "threshold_status": 'a "b"'},
    ],
    ids=repr,
)
def test_an_unusual_level_waits_for_the_rest(values):
    """What cannot be distinguished at a glance is decoded on use, and is right then."""
    record = glanced(**values)
    for attribute in ("usage_ratio", "action", *values):
        assert getattr(record, attribute) == getattr(plain_record(**values), attribute)


@pytest.mark.parametrize(
    "values",
    [
        {"extra": {"fromTheFuture": 1}},
        {"pending": [make_event("a") | {"eventId": "e"}]},
        {"phase": 'in "tool"'},
        {"exit": {"error": 'a "b"'}},
    ],
    ids=repr,
)
def test_what_does_not_look_as_usual_is_decoded_at_once(values):
    """Unknown fields, waiting events and odd strings cost time, nothing else."""
    record = glanced(**values)
    assert undecoded(record) == set()
    assert record.to_json() == plain_record(**values).to_json()


def test_what_was_set_before_is_kept():
    """Who changes a glanced record and stores it loses neither the change nor the rest."""
    record = glanced()
    record.label, record.epoch = "changed", 9
    again = decode_state(encode_state(record, "x"), "x")
    assert again.to_json() == {**plain_record().to_json(), "label": "changed", "epoch": 9}


def test_a_copy_of_a_glanced_record_is_whole():
    """Copies carry what is not decoded yet."""
    for copied in (copy.copy(glanced()), copy.deepcopy(glanced())):
        assert copied.to_json() == plain_record().to_json()


def test_a_record_has_no_other_attributes():
    """A misspelt name is an error of the programmer, decoded or not."""
    for record in (glanced(), plain_record()):
        with pytest.raises(AttributeError, match="no field 'agentId'"):
            _ = record.agentId


def test_torn_and_changed_states_are_seen_at_once():
    """No prefix of a state is glanced at, nor one with a changed byte at its very end."""
    for length in range(len(REAL) - 1):
        with pytest.raises(StateCorruptError):
            decode_head(REAL[:length], "x")
    with pytest.raises(StateCorruptError, match="checksum does not match"):
        decode_head(REAL.replace(b'"pending":null', b'"pending":nulL'), "x")


def with_member(record, name, text):
    """The bytes of a state with a right checksum and any JSON at all in the place of one value."""
    body = encode_state(record, "x").rpartition(b',"crc32":')[0] + b"}"
    own = json.dumps(record.to_json()[name], separators=(",", ":"))
    changed = body.replace(f'"{name}":{own}'.encode(), f'"{name}":{text}'.encode(), 1)
    assert changed != body
    return b'%s,"crc32":%d}\n' % (changed[:-1], zlib.crc32(changed))


def broken_behind_the_head(agent_id=AGENT, **values):
    """The bytes of a state whose `tasksCompleted` is no number."""
    return with_member(make_record(agent_id, **values), "tasksCompleted", '"four"')


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("agentId", "7"),
        ("agentId", '"\\q"'),
        ("agentId", '"\n"'),
        ("run", "null"),
        ("active", "1"),
        ("startedAt", '"2026-02-30T00:00:00.000Z"'),
        ("lastHeartbeat", '"2026-02-28T00:00:00.00:Z"'),
        ("heartbeatIntervalSeconds", "015"),
        ("heartbeatIntervalSeconds", "1.5.5"),
        ("heartbeatIntervalSeconds", "1e999"),
        ("pid", "true"),
        ("pid", '"4242"'),
        ("generation", "1.0"),
        ("generation", "02"),
        ("epoch", "1" * 5000),
        ("generation", "1" * 19),
        ("schema", "0"),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_a_head_of_another_kind_is_refused_as_ever(name, text):
    """What a glance shows is of the right kind, or the state is corrupt."""
    data = with_member(plain_record(), name, text)
    with pytest.raises(StateCorruptError) as expected:
        decode_state(data, "x")
    with pytest.raises(StateCorruptError) as caught:
        decode_head(data, "x")
    assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("run", '"\\u00e9"', "\u00e9"),
        ("run", '"\u00e9"', "\u00e9"),
        ("startedAt", '"2026-02-28T00:00:00Z"', 1_772_236_800.0),
        ("heartbeatIntervalSeconds", "1e1", 10.0),
        ("pid", " 7", 7),
        ("pid", "-7", -7),
        ("generation", "1" * 18, int("1" * 18)),
    ],
)
def test_other_ways_to_write_the_same_are_understood(name, text, value):
    """A head that another writer wrote is decoded, not misread."""
    record = decode_head(with_member(plain_record(), name, text), "x")
    attribute = {written: attribute for attribute, written, _ in FIELDS}[name]
    assert getattr(record, attribute) == value


def test_a_newer_schema_is_decoded_at_once():
    """Its head may mean something else."""
    assert undecoded(decode_head(with_member(plain_record(), "schema", "2"), "x")) == set()
    newer = plain_record()
    newer.schema = 2
    with pytest.raises(StateSchemaError):
        decode_head(with_member(newer, "run", "7"), "x")


def test_what_is_wrong_behind_the_head_is_said_when_it_is_used():
    """The head is there; each use of the rest says the same, and no field is made up."""
    record = decode_head(broken_behind_the_head(), "x.json")
    assert (record.agent_id, record.active) == (AGENT, True)
    for attribute in ("tasks_completed", "label", "extra"):
        with pytest.raises(StateCorruptError, match=r"x\.json: tasksCompleted is not of kind int"):
            getattr(record, attribute)


def test_a_fleet_sees_others_beside_a_state_that_is_broken_behind_its_head(tmp_path, caplog):
    """It is said, its agent is judged by its head, handlers and lists see everybody else."""
    backend = LocalBackend(str(tmp_path))
    for agent_id in ("bad", "good"):
        start(backend, agent_id, run="audit")
    Path(backend.directory.file("bad")).write_bytes(broken_behind_the_head("bad", run="audit"))
    fleet = Fleet("audit", backend=backend, clock=FakeClock())
    with caplog.at_level(logging.WARNING, "ultramon"):
        fleet.poll()
        assert [state.agent_id for state in fleet.get_states()] == ["good"]
    (said,) = caplog.messages
    assert said.startswith("agent bad cannot be read: ")
    assert said.endswith("bad.json: tasksCompleted is not of kind int")
    bad, good = backend.list_agents()
    assert (bad.record, good.problem) == (None, None)
    assert isinstance(bad.problem, StateCorruptError)
    fleet.close()


def test_an_empty_record_has_nothing_to_decode():
    """Records that were made, not read, decode nothing."""
    record = StateRecord("a")
    record.decode()
    assert record.to_json() == StateRecord("a").to_json()
