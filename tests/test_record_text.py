"""A state as indented JSON is what decoding and encoding it would give, or is left to that."""

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_record import records
from test_record_head import plain_record

from ultramon.errors import StateError
from ultramon.state.observed import ObservedAgent, checked_json
from ultramon.state.record import decode_state, encode_state
from ultramon.state.record_head import decode_head
from ultramon.state.record_text import MARGIN, state_text

OTHERS = {"liveness": "alive", "livenessReason": 'a "b"', "heartbeatAgeSeconds": 1.5}

FORECAST = {
    "tokensPerTurn": 2975,
    "secondsPerTurn": 0.25,
    "rungs": {"warning": {"turns": 43, "seconds": 0.5}, "critical": {"turns": 53, "seconds": 1.0}},
}
TASKS = [
    {"name": "chapter 1: a, b", "status": "done", "result": "out/1.md"},
    {"name": "chapter 2", "status": "pending", "result": None, "id": "7"},
]


def written(record):
    return json.dumps({**record.to_json(), **OTHERS}, indent=2).replace("\n", f"\n{MARGIN}")


def texts_of(data):
    """The text by the short way, None where there is none, and by decoding."""
    return state_text(decode_head(data, "x"), OTHERS), written(decode_state(data, "x"))


def seal(body):
    return b'%s,"crc32":%d}\n' % (body[:-1], zlib.crc32(body))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"label": 'Sp\u00e4her "\\ \n', "cwd": "C:\\audit, {x}", "model": None},
        {"forecast": FORECAST, "tasks": TASKS, "by_source": {"tool:read": 11_896, "a, b": 3}},
        {"forecast": {**FORECAST, "rungs": {}}, "tasks": [], "by_source": {}, "anchor": None},
        {"tasks": [{"name": 'ends with a comma,","', "status": "{x},{y}"}], "seq": -3},
        {"tasks": [{"name": "comma,", "status": "x"}], "exit": {"error": "a,"}},
        {"handoff": {"notes": "\u00e4\n", "workspace": {"dirtyFiles": ["a", "b"]}, "ratio": 1e-9}},
        {"anchor": {"tokens": 1, "calibration": 1.00001, "more": 123_456_789_012}},
        {"usage_ratio": None, "threshold_status": None, "context_limit": None},
    ],
    ids=repr,
)
def test_a_usual_state_is_copied_from_its_text(values):
    """Text with quotes, commas and braces in it is not torn apart at them."""
    copied, decoded = texts_of(encode_state(plain_record(**values), "x"))
    assert copied == decoded


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(records(), st.booleans())
def test_any_state_is_copied_as_it_is_decoded_or_not_at_all(record, known):
    """No kind of value comes out differently."""
    if known:
        record.extra, record.pending = {}, None
    copied, decoded = texts_of(encode_state(record, "x"))
    assert copied in (None, decoded)


@pytest.mark.parametrize(
    ("stored", "instead"),
    [
        (b'"graceSeconds":30.0', b'"graceSeconds":30.00'),
        (b'"graceSeconds":30.0', b'"graceSeconds":3e1'),
        (b'"phase":"in_tool"', b'"phase":"in\\u005ftool"'),
        (b'"phase":"in_tool"', b'"phase":"in\\/tool"'),
        (b'"hostname":"worker-7"', b'"hostname":"worker\x7f"'),
        (b'"calibration":1.0427', b'"calibration":1.04270'),
        (b'"seq":17', b'"seq": 17'),
        (b'"startedAt":"2023-11-14T22:13:20.250Z"', b'"startedAt":"2023-11-14T23:13:20.25+01:00"'),
        (b'"schema":1,', b'"schema":1,"future":[1],'),
    ],
    ids=repr,
)
def test_a_state_that_another_program_wrote_is_shown_as_ours(stored, instead):
    """Its own spelling of a value is not copied."""
    body = json.dumps(plain_record().to_json(), separators=(",", ":")).encode()
    assert stored in body
    copied, decoded = texts_of(seal(body.replace(stored, instead)))
    assert copied in (None, decoded)


@pytest.mark.parametrize(
    ("stored", "instead"),
    [
        (b'"seq":17', b'"seq":"17"'),
        (b'"seq":17', b'"seq":null'),
        (b'"epochStartedAt":"2023-11-14T', b'"epochStartedAt":"2023-11-31T'),
        (b'"forecast":null', b'"forecast":{"rungs":{"warning":7}}'),
        (b'"ladder":{', b'"ladder":{,'),
        (b'"ladder":{', b'"ladder":{"a":{"b":1},}, {'),
        (b'"exit":{"error":"ValueError"}', b'"exit":{"error":1e999,"x":{}}'),
        (b'"usageRatio":0.7115', b'"usageRatio":NaN'),
    ],
    ids=repr,
)
def test_a_state_without_sense_is_not_shown(stored, instead):
    """A right checksum does not make a copy of what cannot be decoded, or has no meaning."""
    record = plain_record(forecast=None)
    body = json.dumps(record.to_json(), separators=(",", ":")).encode()
    assert stored in body
    data = seal(body.replace(stored, instead))
    try:
        assert state_text(decode_head(data, "x"), OTHERS) is None
        record = decode_state(data, "x")
    except StateError:
        return
    assert not isinstance(checked_json(ObservedAgent(record, None)), dict)
