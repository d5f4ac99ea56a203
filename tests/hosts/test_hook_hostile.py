"""Payloads and transcripts that are broken, huge or meant to harm: exit 0 and nothing worse."""

import json
import os
import random
import time

import pytest
from helpers.hooked_session import HookedSession, tokens_at
from helpers.obstacles import plant
from helpers.transcript_lines import line
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.calls.payload import read_payload
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.last_reading import read_last_reading
from ultramon.hosts.port import HookEvent
from ultramon.hosts.transcripts.tail import MAX_LINES, MAX_TAIL_BYTES

MIB = 1 << 20
CLIENT_TIMEOUT_SECONDS = 10
"""What an installation gives a hook."""
LITTLE_MEMORY = ["sh", "-c", 'ulimit -v 65536 && exec "$@"', "sh"]


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def tree(path):
    """Everything under a directory but our own, with its content."""
    return {
        str(found.relative_to(path)): found.read_bytes() if found.is_file() else None
        for found in path.rglob("*")
        if "hooked" not in found.parts
    }


# --- ids


BAD_IDS = [
    "../x", "..", ".", "/etc/x", "a/b", "a\\b", "~", "a\0b", "a\nb", "\x1b[31m", "-rf", ".hidden",
    "", " ", "a" * 300, "é" * 130, "\u202eabc", "a\u200bb", "e\u0301", "CON", "nul.txt", "a.", "a ",
    "x:stream", "\ud800", "$(id)", "`id`", "%s", "{x}", "../../../../../../tmp/claude-evil",
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
def test_an_id_that_is_no_file_name_is_refused(session, bad):
    """No state, nothing outside the state directory, no cleaning that makes two ids one."""
    before = tree(session.path)
    assert session.call("PostToolUse", session_id=bad, tool_use_id="x").stdout == b""
    assert session.ids() == []
    assert len(session.failures()) == 1
    if bad:
        assert session.call("PostToolUse", bad, tool_use_id="x").stdout == b""
        launched = {"agentId": bad, "resolvedModel": "m", "description": "d"}
        fields = {"tool_name": "Agent", "tool_response": launched}
        assert session.tool(tokens_at(20)).text
        session.call("PostToolUse", **fields)
        assert session.ids() == [session.session_id]
    assert set(tree(session.path)) - set(before) <= {f"transcripts/{session.session_id}.jsonl"}


# --- payloads


def with_value(text):
    """A payload with one more value, spelled so."""
    good = '{"session_id":"session","hook_event_name":"PostToolUse","tool_response":%s}'
    return (good % text).encode()


GOOD = with_value("1")
NOT_UNDERSTOOD = {
    "nothing": b"", "spaces": b"  \n", "an array": b"[1]", "a text": b'"x"', "null": b"null",
    "a number": b"5", "cut": GOOD[:-1], "trailing garbage": GOOD + b"x", "two": GOOD + GOOD,
    "a byte order mark": b"\xef\xbb\xbf" + GOOD, "UTF-16": GOOD.decode().encode("utf-16"),
    "invalid UTF-8": with_value('"').replace(b'"}', b'"\xff\xfe"}'),
    "an encoded surrogate": with_value('"_"').replace(b"_", b"\xed\xa0\x80"),
    "NaN": with_value("NaN"), "infinity": with_value("-Infinity"), "1e999": with_value("1e999"),
    "5,000 digits": with_value("9" * 5000), "100,000 deep": with_value("[" * 100_000),
    "100,000 deep and closed": with_value("[" * 100_000 + "]" * 100_000),
    "objects 100,000 deep": with_value('{"a":' * 100_000), "a raw line end": with_value('"\n"'),
    "a large array": b"[" + b"{}," * 500_000 + b"{}]", "1 MiB of text": b"x" * (MIB + 1),
    "a session that is a number": b'{"session_id":5,"hook_event_name":"Stop"}',
    "an agent that is a list": b'{"session_id":"s","agent_id":[],"hook_event_name":"Stop"}',
    "no session": b'{"hook_event_name":"Stop"}', "an empty object": b"{}",
    "a path of 5,000 characters": json.dumps(
        {"session_id": "s", "transcript_path": "/" + "x" * 5000, "hook_event_name": "Stop"}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("data", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD.keys())
def test_a_payload_that_is_none_is_a_line_in_the_log(session, data):
    """Within little memory; no state, no output."""
    assert session.run(data, before=LITTLE_MEMORY).stdout == b""
    assert session.ids() == []
    assert len(session.failures()) == 1


ODD = {
    "duplicate keys": b'{"session_id":"other","session_id":"session","hook_event_name":"Stop"}',
    "a lone surrogate": with_value('"\\ud83d"'),
    "nesting of 900": with_value("[" * 900 + "]" * 900),
    "4,000 digits": with_value("9" * 4000), "keys of a prototype": with_value('{"__proto__":{}}'),
    "null everywhere": json.dumps(
        {"session_id": "session", "hook_event_name": "PostToolUse"}
        | dict.fromkeys(("transcript_path", "cwd", "agent_id", "agent_type", "tool_use_id",
                         "tool_name", "tool_response", "tool_calls", "prompt", "source"))
    ).encode(),
    "other kinds everywhere": json.dumps(
        {"session_id": "session", "hook_event_name": "PostToolBatch", "tool_calls": {"a": 1},
         "tool_name": 5, "tool_response": [], "prompt": {}, "source": True, "model": 1}
    ).encode(),
}  # fmt: skip


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_an_odd_payload_is_a_payload(session, data):
    """What JSON allows and the client might send is no failure."""
    assert session.run(data, before=LITTLE_MEMORY).stdout == b""
    assert session.ids() == [session.session_id]
    assert session.failures() == []


def test_a_payload_of_100_mb_is_measured_like_any_other(session):
    """A large result is exactly when a window fills: the base fields and the call are known."""
    session.tool(tokens_at(60))
    session.call("PreToolUse", tool_use_id="toolu_large")
    session.reply(tokens_at(30), "toolu_large")
    fields = {"tool_response": "@", "tool_use_id": "toolu_large"}
    small = session.payload("PostToolUse", tool_name="Read", **fields)
    head, tail = json.dumps(small, separators=(",", ":")).split("@")
    process = session.start(before=LITTLE_MEMORY)
    process.stdin.write(head.encode())
    block = b'\\"tool_use_id\\":\\"no\\",' + b"\xc3\xa9" * 500_000
    for _ in range(100):
        process.stdin.write(block)
    out, err = process.communicate(tail.encode())
    assert (process.returncode, err) == (0, b"")
    assert "140,000 of 200,000 tokens" in json.loads(out)["hookSpecificOutput"]["additionalContext"]
    assert (session.record().phase, session.memory()["running"]) == ("working", [])
    assert session.failures() == []


def test_nothing_is_left_out_of_an_id_in_a_large_payload(session):
    """Without the bytes that are none, two ids would be one."""
    data = json.dumps(session.payload("PostToolUse", tool_response="x" * MIB)).encode()
    session.run(data.replace(b'"session"', b'"sess\xffion"'))
    assert session.ids() == []
    session.run(data)
    assert session.ids() == [session.session_id]


def test_an_input_that_never_ends_ends_the_hook(session):
    """Nothing, half a payload, a whole one, or bytes for ever: it does not wait for the client."""
    whole = json.dumps(session.payload("UserPromptSubmit", prompt="x")).encode()
    started = time.monotonic()
    processes = {name: session.start(before=LITTLE_MEMORY) for name in ("none", "half", "whole")}
    processes["half"].stdin.write(whole[:-20])
    processes["whole"].stdin.write(whole)
    with open("/dev/zero", "rb") as zeros:
        processes["zeros"] = session.start(stdin=zeros, before=LITTLE_MEMORY)
    for process in processes.values():
        if process.stdin:
            process.stdin.flush()
    for name, process in processes.items():
        assert process.wait(CLIENT_TIMEOUT_SECONDS) == 0, name
        assert process.stdout.read() + process.stderr.read() == b"", name
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    assert time.monotonic() - started < CLIENT_TIMEOUT_SECONDS
    assert session.ids() == [session.session_id]
    assert len(session.failures()) == 3


@given(
    st.binary(max_size=300) | st.builds(lambda a, b: GOOD[:a] + b, st.integers(0, 90), st.binary())
)
def test_reading_a_payload_raises_value_error_or_nothing(data):
    """Any bytes."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    try:
        payload, tail = read_payload(read)
        assert isinstance(CLAUDE_CODE.dialect.read_event(payload, {}, tail), HookEvent)
    except ValueError:
        pass
    finally:
        os.close(read)


# --- transcripts


def raw_reply(session, usage, *calls):
    """A reply whose input tokens are spelled so."""
    made = line(session.reply_line(123_456, *calls))
    assert made.count(b"123446") == 1
    return made.replace(b"123446", usage.encode())


@pytest.mark.parametrize(
    "spelled",
    ["-1", "-140000", "1.5", "140000.0", '"140000"', "true", "[]", "{}", "NaN", "Infinity", "1e999",
     "1e5", "1000000001", "9" * 4000, "9" * 5000, "0x10", "", "140000,", "\xff"],
    ids=lambda text: ascii(text)[:20],
)  # fmt: skip
def test_a_number_that_is_none_is_passed_over(session, spelled):
    """The last reply that can be read counts."""
    session.tool(tokens_at(50))
    session.write(raw_reply(session, spelled, "toolu_a"))
    assert session.call("PostToolUse", tool_use_id="toolu_a").stdout == b""
    assert session.record().estimated_tokens == tokens_at(50)
    assert session.failures() == []


@pytest.mark.parametrize(
    "entry",
    [{"timestamp": None}, {"timestamp": ...}, {"timestamp": "yesterday"}, {"timestamp": 5},
     {"timestamp": "2026-99-99T99:99:99.999Z"}, {"message": None}, {"message": []},
     {"message": {"usage": None}}, {"message": {"usage": []}}, {"type": "api-request-blob"},
     {"isSidechain": True}, {"type": "assistant", "isSidechain": True, "agentId": "x"}],
    ids=str,
)  # fmt: skip
def test_a_record_without_a_time_or_of_somebody_else_is_no_reading(session, entry):
    """What cannot be placed in time might belong to a window that is gone."""
    session.tool(tokens_at(50))
    made = {k: v for k, v in (session.reply_line(tokens_at(20)) | entry).items() if v is not ...}
    session.write(made)
    assert session.call("PostToolUse", tool_use_id="toolu_a").stdout == b""
    assert session.record().estimated_tokens == tokens_at(50)


@pytest.mark.parametrize(
    "after",
    [b"", b"\n" * 1000, b'{"type":"user","message":{"content":"' + b"x" * MIB + b'"}}\n',
     b'{"type":"user","message":{"content":"\\"usage\\" ' + b"x" * MIB + b'"}}\n',
     b'{"type":"assistant","message":{"usage":{"input_tokens":1999', b'{"usage"}\n' * 1000,
     random.Random(1).randbytes(5 * MIB), b"\0" * MIB, b"\xff\xfe" + b'"usage"\n' * 9,
     b"\n" * (MAX_TAIL_BYTES // 2), b"x" * 65_535 + b"\n", b"x" * 65_536 + b"\n", b"x" * 65_537],
    ids=lambda data: f"{data[:20]!r} {len(data)} bytes",
)  # fmt: skip
def test_what_stands_behind_the_last_reply_does_not_hide_it(session, after):
    """Long lines, cut lines, garbage, and block borders within and beside lines."""
    session.reply(tokens_at(30), "toolu_a")
    session.write(after)
    answer = session.call("PostToolUse", tool_use_id="toolu_a")
    assert "140,000 of 200,000" in answer.text
    assert session.failures() == []


@pytest.mark.parametrize("lines", [MAX_LINES - 1, MAX_LINES])
def test_looking_for_a_reply_ends_after_so_many_lines_that_are_none(session, lines):
    """Each of them has to be taken apart."""
    session.reply(tokens_at(30), "toolu_a")
    session.write(b'{"usage"}\n' * lines)
    answer = session.call("PostToolUse", tool_use_id="toolu_a")
    assert bool(answer.text) == (lines < MAX_LINES)


@pytest.mark.parametrize("where", ["before", "behind"])
def test_a_line_of_20_mb_is_no_matter(session, where):
    """Neither before the reply nor behind it, where a document was read into the conversation."""
    long = b'{"type":"user","message":{"content":"' + b"x" * (20 * MIB) + b'"}}\n'
    session.write(*([long] if where == "before" else []))
    session.reply(tokens_at(30), "toolu_a")
    session.write(*([long] if where == "behind" else []))
    answer = session.call("PostToolUse", tool_use_id="toolu_a")
    assert answer.text
    assert session.failures() == []


def test_a_search_that_gives_up_says_so(session):
    """A window is not called unknown in silence where a reply may stand further back."""
    session.reply(tokens_at(30), "toolu_a")
    session.write(b"x" * MAX_TAIL_BYTES + b"\n")
    assert not session.call("PostToolUse", tool_use_id="toolu_a").text
    assert "no reply in the last 64 MB" in str(session.failures())


HOSTILE_TAILS = {
    "lines that look like replies": b'{"usage"}\n', "empty lines": b"\n",
    "objects with usage": b'{"type":"assistant","message":{"usage":{"input_tokens":1.5}}}\n',
    "one line": b'"usage":1,', "boundaries of others": b'{"a":"compact_boundary"}\n',
}  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE_TAILS.values(), ids=HOSTILE_TAILS.keys())
def test_the_worst_transcript_takes_bounded_time(session, unit):
    """Far less than the client gives a hook."""
    session.write(unit * (20 * MIB // len(unit)))
    started = time.monotonic()
    assert session.call("PostToolUse", tool_use_id="toolu_a").stdout == b""
    assert time.monotonic() - started < CLIENT_TIMEOUT_SECONDS / 2
    assert session.record().measured_at is None


def victim(session):
    """A transcript that is not to be read through a link."""
    path = session.path / "target"
    path.write_bytes(line(session.reply_line(tokens_at(20), "toolu_a")))
    return path


@pytest.mark.parametrize("agent", [None, "sub"])
@pytest.mark.parametrize(
    "kind", ["link", "link in a circle", "pipe", "directory", "socket", "nothing"]
)
def test_a_transcript_that_is_no_file_is_a_line_in_the_log(tmp_path, monkeypatch, kind, agent):
    """It is neither followed nor waited for; the agent is there, without a reading."""
    monkeypatch.chdir(tmp_path)
    session = HookedSession(tmp_path)
    path = session.file_of(agent)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind != "nothing":
        plant(kind, path, victim(session))
    assert session.call("PostToolUse", agent, tool_use_id="toolu_a").stdout == b""
    assert session.record(agent).measured_at is None
    assert len(session.failures()) == 1


@pytest.mark.parametrize(
    "path",
    ["/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "/proc/self/mem", "/proc/self/environ",
     "/", "relative.jsonl", "~/x.jsonl", "a\0b", "\ud800", "x" * 4000, "/x" * 2000],
    ids=lambda path: ascii(path)[:20],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_not_read(session, path):
    """No device is opened, no process asked about itself, no name taken apart."""
    answer = session.call("PostToolUse", transcript_path=path, tool_use_id="toolu_a")
    assert answer.stdout == b""
    assert session.record().measured_at is None
    # Files of the system's own look like empty ones.
    assert len(session.failures()) == (0 if path.startswith("/proc/") else 1)


def test_a_transcript_that_vanishes_leaves_what_was_known(session):
    """The last reading stays, with its time."""
    session.tool(tokens_at(50))
    measured_at = session.record().measured_at
    session.transcript.unlink()
    session.call("PostToolUse", tool_use_id="toolu_a")
    record = session.record()
    assert (record.estimated_tokens, record.measured_at) == (tokens_at(50), measured_at)
    assert len(session.failures()) == 1


WHOLE = line(
    {"type": "assistant", "isSidechain": False, "timestamp": "2026-11-21T20:28:51.642Z",
     "message": {"id": "m", "model": "x", "content": [], "usage": {"input_tokens": 77}}}
)  # fmt: skip


@given(
    st.lists(
        st.sampled_from([WHOLE, WHOLE[:-1], WHOLE[:60], b"\n", b'{"subtype":"compact_boundary"}\n'])
        | st.binary(max_size=80)
    ),
    st.booleans(),
)
def test_reading_a_tail_never_raises_on_any_bytes(tmp_path_factory, pieces, is_subagent):
    """Whatever a transcript holds."""
    path = tmp_path_factory.getbasetemp() / "tail.jsonl"
    path.write_bytes(b"".join(pieces))
    tail = read_last_reading(str(path), is_subagent=is_subagent, call_id="toolu")
    assert tail.report is None or (tail.report.tokens == 77 and not is_subagent)
    if pieces[-1:] == [WHOLE] and b"".join(pieces)[: -len(WHOLE)][-1:] in (b"", b"\n"):
        assert (tail.report is None) == is_subagent
