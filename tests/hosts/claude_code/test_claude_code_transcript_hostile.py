"""Nothing a Claude Code transcript may hold raises, and nothing wrong in it passes silently."""

import io
import json

import pytest
from helpers.transcript_lines import line, prompt, reply
from helpers.transcript_records import of
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.claude_code.reader import (
    identify,
    looks_like_transcript,
    read_transcript,
)
from ultramon.hosts.transcripts import jsonl
from ultramon.hosts.transcripts.records import Broken, Content, Record, Report


def read_texts(lines):
    """The texts in the given lines."""
    return [record.text for record in of(Content, read_transcript(lines))]


@pytest.mark.parametrize("value", [-1, True, 1_000_000_001, 10**40, 1.5, "12", [12], {"n": 12}])
@pytest.mark.parametrize(
    "name",
    [
        "input_tokens",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "output_tokens",
    ],
)
def test_impossible_numbers_break_the_line_and_nothing_else(name, value):
    """A wrong number is reported, never read as zero or cut to fit."""
    bad = reply("msg_1", {"input_tokens": 10, "output_tokens": 5, name: value})
    records = list(read_transcript([line(bad), line(reply("msg_2"))]))
    assert [r.message_id for r in of(Report, records)] == ["msg_2"]
    (broken,) = of(Broken, records)
    assert broken.line_number == 1
    assert name in broken.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"type":"user"', ""),
        (b'{"type":"user","message":"' + b"\xff" + b'"}', "not UTF-8"),
        (b'{"n":NaN}', "NaN"),
        (b'{"n":-Infinity}', "Infinity"),
        (b'{"n":1e999}', "too large"),
        (b'{"n":' + b"9" * 5000 + b"}", ""),
        (b"[" * 100_000, "deep"),
        (b'{"a":' * 100_000, "deep"),
        (b"[1,2]", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b"\x00\x01", "not JSON"),
        (b'{"type":"user"}{"type":"user"}', "follows"),
        (b'{"type":"user","message":5}', "message"),
        (b'{"type":"assistant"}', "message"),
        (b'{"type":"attachment","attachment":[]}', "attachment"),
        (b'{"type":"mode","mode":"norm', ""),
    ],
)
def test_a_broken_line_is_reported_and_passed_over(text, reason):
    """The lines around it are read; its place, length and fault are known."""
    good = line(prompt("hello"))
    records = list(read_transcript([good, text + b"\n", good]))
    assert [type(record) for record in records] == [Content, Broken, Content]
    broken = records[1]
    assert (broken.line_number, broken.line_bytes) == (2, len(text) + 1)
    assert broken.reason
    assert reason in broken.reason


def test_a_half_written_last_line_takes_nothing_with_it():
    """The client is still writing it: what stands before it is read, and it alone is broken."""
    text = line(prompt("hello"))
    records = list(read_transcript([text, text[:30]]))
    assert [type(record) for record in records] == [Content, Broken]
    assert records[1].line_number == 2


def test_a_whole_last_line_needs_no_line_end():
    """Complete JSON at the end of the file is read at once."""
    assert read_texts([line(prompt("hello")).rstrip()]) == ["hello"]


def test_empty_files_and_blank_lines_are_nothing():
    """No records, no complaint."""
    assert list(read_transcript([])) == []
    assert list(read_transcript([b"\n", b" \t\r\n", b""])) == []


def test_a_long_line_is_read_whole():
    """A megabyte of tool output is an ordinary line."""
    assert read_texts([line(prompt("x" * 1_000_000))]) == ["x" * 1_000_000]


def test_a_line_over_the_limit_is_reported_unread():
    """Above the limit a line is passed over and the next one is read."""
    long = b"{" + b" " * jsonl.MAX_LINE_BYTES + b"}\n"
    file = io.BytesIO(long + line(prompt("after")))
    broken, after = read_transcript(jsonl.bounded_lines(file))
    assert (broken.line_number, broken.line_bytes) == (1, jsonl.MAX_LINE_BYTES + 1)
    assert "longer than" in broken.reason
    assert after.text == "after"


@given(st.lists(st.binary()), st.booleans() | st.none())
def test_no_bytes_raise(lines, sidechain):
    """Whatever the file holds, reading it gives records."""
    assert all(isinstance(r, Record) for r in read_transcript(lines, sidechain=sidechain))
    assert identify(lines) is None
    assert looks_like_transcript(b"\n".join(lines)) in (True, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.data())
def test_no_shape_of_a_message_raises(data):
    """Every field of a line may hold any JSON."""
    entry = data.draw(
        st.sampled_from(
            [
                reply(content=[{"type": "tool_use", "id": "t", "name": "X", "input": {}}]),
                prompt([{"type": "tool_result", "tool_use_id": "t", "content": "x"}]),
                {"type": "attachment", "attachment": {"content": "x"}},
                {"type": "system", "subtype": "compact_boundary", "compactMetadata": {}},
            ]
        )
    )
    target = entry
    while data.draw(st.booleans()):
        inner = [value for value in target.values() if isinstance(value, dict)]
        if not inner:
            break
        target = data.draw(st.sampled_from(inner))
    mutated = json.loads(json.dumps(entry))
    if target:
        key = data.draw(st.sampled_from(sorted(target)))
        target[key], kept = data.draw(JSON), target[key]
        mutated = json.loads(json.dumps(entry))
        target[key] = kept
    text = line(mutated)
    assert all(isinstance(record, Record) for record in read_transcript([text, text]))
    assert identify([text]) is None or identify([text]).session_id
