"""JSON lines of any origin are read with bounded memory and without an exception."""

import io
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.transcripts.jsonl import Recent, bounded_lines, text_of
from ultramon.hosts.transcripts.records import Window
from ultramon.system.timestamps import parse_time

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda m: timezone(timedelta(minutes=m))) | st.just(UTC)


@given(st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29), timezones=ZONES))
def test_times_agree_with_datetime(moment):
    """Every time a datetime can write is read as the same second since 1970."""
    assert parse_time(moment.isoformat()) == pytest.approx(moment.timestamp(), abs=2e-5)


def test_a_recorded_time_is_read():
    """The form the hosts write, with milliseconds and Z."""
    assert parse_time("2026-11-21T20:28:51.642Z") == 1795292931.642


@pytest.mark.parametrize(
    "value",
    [
        None,
        1795292931,
        "",
        "2026-11-21",
        "2026-11-21T20:28:51",
        "2026-11-21T20:28:51.Z",
        "2026-11-21T20:28:51.642",
        "2026-11-21T20:28:51.642Zulu",
        "2026-11-21T20:28:51+1:00Z",
        "2026-11-21T20:28:51+24:00",
        "2026-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T24:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:61Z",
        "2026-01-01T+1:-1:00Z",
        "٢٠٢٦-11-21T20:28:51Z",
        "2026/11/21T20:28:51Z",
    ],
)
def test_what_is_no_time_is_none(value):
    """A time is read whole or not at all."""
    assert parse_time(value) is None


def test_a_leap_second_is_the_second_after_it():
    """Second 60 exists, rarely, and must not lose a reading."""
    assert parse_time("2016-12-31T23:59:60Z") == parse_time("2017-01-01T00:00:00Z")


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"") + b"\n")))
def test_lines_within_the_bound_are_the_lines_of_the_file(lines):
    """The bound changes nothing for files that keep to it."""
    assert list(bounded_lines(io.BytesIO(b"".join(lines)), 64)) == lines


@given(st.integers(11, 3_000_000), st.booleans())
def test_of_a_longer_line_only_the_bound_is_kept(length, ended):
    """The rest of an overlong line is dropped and the next line is whole."""
    data = b"x" * length + b"\n{}\n" if ended else b"x" * length
    first, *rest = bounded_lines(io.BytesIO(data), 10)
    assert first == b"x" * 11
    assert rest == ([b"{}\n"] if ended else [])


def test_recent_ids_are_forgotten_oldest_first():
    """A file with endless ids cannot fill memory."""
    recent = Recent()
    for number in range(5000):
        recent.add(f"id-{number}", str(number))
    recent.add("x" * 1000, "too long to be an id")
    recent.add(["not an id"], "")
    assert recent.get("id-4999") == "4999"
    assert recent.get("id-0") is None
    assert sum(f"id-{number}" in recent for number in range(5000)) == 4096
    assert "x" * 1000 not in recent
    assert recent.get(["not an id"]) is None
    recent.add("id", "y" * 1_000_000)
    assert recent.get("id") == "y" * 256


def test_texts_are_joined_in_order_and_only_from_named_keys():
    """Base64 under other keys never passes for text."""
    value = [
        "one",
        {"content": [{"type": "text", "text": "two"}, {"source": {"data": "aGk="}}]},
        {"text": "three", "content": "four"},
        5,
    ]
    assert text_of(value, ("text", "content")) == "one\ntwo\nthree\nfour"
    assert text_of({"a": ["x"], "b": {"c": "y"}}, None) == "x\ny"


def test_records_are_compared_and_shown_by_their_fields():
    """Two readings of one line are equal, and a failing comparison says what differs."""
    assert Window(5, 1.5) == Window(5, 1.5)
    assert Window(5, 1.5) != Window(6, 1.5)
    assert Window(5, 1.5) != (5, 1.5)
    assert len({Window(5, 1.5), Window(5, 1.5)}) == 1
    assert repr(Window(5, 1.5)) == "Window(tokens=5, at=1.5)"
