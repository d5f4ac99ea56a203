"""A state as one line of JSON says what decoding and encoding it would say, or cannot be shown."""

import json
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_record import records
from test_record_head import plain_record

from ultramon.errors import StateError
from ultramon.state.liveness import Liveness
from ultramon.state.observed import ObservedAgent, Unreadable, checked_json, checked_line
from ultramon.state.record import decode_state, encode_state
from ultramon.state.record_head import decode_head

LIVENESS = Liveness("alive", 'a "b" \x7f', 1.0, 2.5)

FORECAST = {
    "tokensPerTurn": 2975,
    "secondsPerTurn": 0.25,
    "rungs": {"warning": {"turns": 43, "seconds": 0.5}, "critical": {"turns": 53, "seconds": 1.0}},
}
TASKS = [
    {"name": "chapter 1: a, b", "status": "done", "result": "out/1.md"},
    {"name": "chapter 2", "status": "pending", "result": None, "id": "7"},
]


def line_and_json(data):
    """The state as a line of the list, and what decoding it says."""
    line = checked_line(ObservedAgent(decode_head(data, "x"), LIVENESS))
    assert line.isascii()
    assert line.decode().isprintable()
    return json.loads(line), checked_json(ObservedAgent(decode_state(data, "x"), LIVENESS))


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
    """Whatever is in its texts; and it is not decoded for the line to be kept."""
    data = encode_state(plain_record(**values), "x")
    line, decoded = line_and_json(data)
    assert (line, list(line)) == (decoded, list(decoded))
    one = ObservedAgent(decode_head(data, "x"), LIVENESS)
    assert checked_line(one).startswith(one.record.undecoded_body)


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(records(), st.booleans())
def test_any_state_says_the_same_in_a_line(record, known):
    """No kind of value comes out differently."""
    if known:
        record.extra, record.pending = {}, None
    line, decoded = line_and_json(encode_state(record, "x"))
    assert line == decoded


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
        (b'"seq":17', b'"seq":\r\n\t17'),
        (b'"hostname":"worker-7"', '"hostname":"\u00e4"'.encode()),
        (b'"schema":1,', b'"schema":1,"future":[1],'),
    ],
    ids=repr,
)
def test_a_state_that_another_program_wrote_is_one_line_too(stored, instead):
    """Its own spelling of a value says the same, and does nothing to a terminal."""
    body = json.dumps(plain_record().to_json(), separators=(",", ":")).encode()
    assert stored in body
    line, decoded = line_and_json(seal(body.replace(stored, instead)))
    assert line == decoded


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
    try:
        one = ObservedAgent(decode_head(seal(body.replace(stored, instead)), "x"), LIVENESS)
    except StateError:
        return
    assert isinstance(checked_line(one), Unreadable)
    assert isinstance(checked_json(one), Unreadable)
