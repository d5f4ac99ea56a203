"""Summaries of transcripts agree with a replay, and an index of them is only ever a short cut."""

import json
import os
import sqlite3
import subprocess
import sys

import pytest
from helpers.planted_transcripts import Machine, boundary, read_file, used
from helpers.program import CAPTURES
from helpers.recordings import timeline
from helpers.transcript_lines import line, prompt, reply

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.port import Host, Transcripts
from ultramon.recordings import database as database_module
from ultramon.recordings import index as index_module
from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable

RECORDED = sorted(CAPTURES.glob("*/*.jsonl"))
SESSION = CAPTURES / "claude-code-2.1.330" / "transcript_r3_main.jsonl"
ROLLOUT = CAPTURES / "codex-0.169.0" / "rollout_compact.jsonl"


@pytest.fixture
def kept(tmp_path):
    """Where an index is kept."""
    return str(tmp_path / "cache" / "transcripts.sqlite3")


def summaries(*paths, index=None):
    """What the transcripts among some files add up to, and which files had to be read."""
    read = []
    with TranscriptIndex(index) as opened:
        found = list(opened.summarize(map(str, paths), read.append))
    assert opened.problem is None
    return [one.summary for one in found if isinstance(one, Summarized)], len(read)


def summary(path):
    """What one transcript adds up to, read as a whole."""
    (one,), _ = summaries(path)
    return one


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_summary_says_what_a_replay_says(path):
    """Replies, peak, compactions, refusals and what filled the window are the same."""
    short, full = summary(path), timeline(path)
    assert short.reports == full.reports
    assert (short.peak_tokens or 0) == (full.peak_tokens if full.reports else 0)
    assert short.compactions == full.compaction_count
    assert short.overflows == full.overflow_count
    assert short.broken_lines == full.broken_lines
    assert full.by_source == {
        name: round(tokens) for name, tokens in short.tokens_by_source.items() if round(tokens)
    }


def test_what_compactions_threw_away_is_what_the_reports_lost():
    """From 196,014 tokens and a reply of 60 to 9,014, then from 9,054 to 9,516: nothing."""
    found = summary(SESSION)
    before = [196_014, 9_014]
    assert found.compactions == 2
    assert before[0] - 9_014 <= found.discarded_tokens <= before[0] + 100 - 9_014
    assert found.unmeasured_compactions == 0


def test_a_compaction_without_a_reply_behind_it_is_not_measured(tmp_path):
    """How much is left is known only from the next request."""
    path = tmp_path / "s.jsonl"
    boundary = {"type": "system", "subtype": "compact_boundary", "sessionId": "s"}
    path.write_bytes(line(reply(usage={"input_tokens": 90_000})) + line(boundary))
    found = summary(path)
    assert (found.compactions, found.unmeasured_compactions) == (1, 1)
    assert (found.discarded_tokens, found.last_tokens) == (0, None)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_file_that_grows_is_read_on(path, tmp_path, kept):
    """Cut anywhere, in the middle of a line too, the rest adds up to the same facts."""
    data = path.read_bytes()
    growing = tmp_path / path.name
    for number in range(1, 8):
        growing.write_bytes(data[: len(data) * number // 8])
        summaries(growing, index=kept)
    growing.write_bytes(data)
    (found,), read = summaries(growing, index=kept)
    assert found.to_json() == summary(growing).to_json()
    assert read == 1
    assert summaries(growing, index=kept) == ([found], 0)


def test_only_what_was_added_is_read(tmp_path, kept, monkeypatch):
    """The lines before are not decoded again."""
    growing = tmp_path / "s.jsonl"
    growing.write_bytes(SESSION.read_bytes())
    summaries(growing, index=kept)
    with growing.open("ab") as file:
        later = "2026-12-01T00:00:00Z"
        file.write(line(reply("msg_new", {"input_tokens": 50_000}, timestamp=later)))
    monkeypatch.setattr(index_module, "_read_whole", None)
    (found,), _ = summaries(growing, index=kept)
    assert (found.reports, found.last_tokens) == (6, 50_000)


def test_a_half_written_last_line_waits_for_its_end(tmp_path, kept):
    """The client may be writing at this moment: no broken line is counted."""
    path, last = tmp_path / "s.jsonl", line(reply("m2", {"input_tokens": 7_000}))
    path.write_bytes(line(reply("m1", {"input_tokens": 5_000})) + last[:-20])
    (found,), _ = summaries(path, index=kept)
    assert (found.reports, found.broken_lines) == (1, 0)
    with path.open("ab") as file:
        file.write(last[-20:])
    (found,), _ = summaries(path, index=kept)
    assert (found.reports, found.broken_lines) == (2, 0)


def test_a_file_that_was_replaced_is_read_anew(tmp_path, kept):
    """A longer file under the same name and number is no continuation unless it begins alike."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(line(reply("m1", {"input_tokens": 5_000})))
    summaries(path, index=kept)
    replies = [line(reply(f"other_{number}", {"input_tokens": 100})) for number in range(3)]
    with path.open("r+b") as file:
        file.write(b"".join(replies))
    (found,), _ = summaries(path, index=kept)
    assert (found.reports, found.peak_tokens) == (3, 100)
    path.write_bytes(replies[0])
    assert summaries(path, index=kept)[0][0].reports == 1


class PlainTranscripts(Transcripts):
    """Those of a host of another package that reads a transcript only as a whole."""

    looks_like_transcript = staticmethod(CLAUDE_CODE.transcripts.looks_like_transcript)
    identify = staticmethod(CLAUDE_CODE.transcripts.identify)
    read_transcript = staticmethod(CLAUDE_CODE.transcripts.read_transcript)


def test_a_host_without_a_reader_is_read_as_a_whole(tmp_path, kept, monkeypatch):
    """Its transcripts are kept as well; one that grew is read anew."""
    plain = Host("plain", __name__)
    plain.transcripts = PlainTranscripts()
    monkeypatch.setattr(index_module, "host_of", lambda head: plain)
    path = tmp_path / "s.jsonl"
    path.write_bytes(line(reply("m1", {"input_tokens": 5_000})))
    summaries(path, index=kept)
    with path.open("ab") as file:
        file.write(line(reply("m2", {"input_tokens": 6_000})))
    (found,), read = summaries(path, index=kept)
    assert (found.host, found.reports, found.peak_tokens, read) == ("plain", 2, 6_000, 1)
    assert summaries(path, index=kept) == ([found], 0)


HOSTILE = [
    b"\xff\xfe not text\n",
    b"{}\n",
    b"[" * 5000 + b"\n",
    b'{"type":"assistant","message":{"usage":{"input_tokens":-1}}}\n',
    b'{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":{},"content":7}]}}\n',
    b'{"type":"user","message":{"content":"<task-notification><task-id>\\ud800</task-id>"}}\n',
    b'{"type":"assistant","timestamp":"9999-99-99","message":{"model":["x"],"usage":[]}}\n',
    b'{"type":"assistant","message":{"model":"\\u202e\\u0000","usage":{"input_tokens":1e999}}}\n',
]


def test_hostile_lines_change_no_fact_of_the_lines_around_them(tmp_path, kept):
    """They are counted as broken or say nothing; the index takes every text."""
    path = tmp_path / "s.jsonl"
    lines = SESSION.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(one + HOSTILE[n % len(HOSTILE)] for n, one in enumerate(lines)))
    (found,), _ = summaries(path, index=kept)
    clean = summary(SESSION)
    assert found.broken_lines > 0
    assert (found.reports, found.peak_tokens) == (clean.reports, clean.peak_tokens)
    assert found.discarded_tokens == clean.discarded_tokens
    assert summaries(path, index=kept) == ([found], 0)


def test_files_that_are_no_transcripts_are_passed_over(tmp_path, kept):
    """Also the second time, and a directory or a pipe is never opened."""
    (tmp_path / "notes.jsonl").write_text("hello\n")
    (tmp_path / "empty.jsonl").touch()
    os.mkfifo(tmp_path / "pipe.jsonl")
    paths = [*tmp_path.iterdir(), SESSION]
    assert len(summaries(*paths, index=kept)[0]) == 1
    assert summaries(*paths, index=kept)[1] == 0


def test_a_name_that_is_no_utf_8_is_kept(tmp_path, kept):
    """File names are bytes."""
    path = os.path.join(os.fsencode(tmp_path), b"s\xff\n.jsonl")
    with open(path, "wb") as file:
        file.write(SESSION.read_bytes())
    first = summaries(os.fsdecode(path), index=kept)
    assert summaries(os.fsdecode(path), index=kept) == (first[0], 0)


@pytest.mark.parametrize("garbage", [b"no database", b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_broken_index_is_made_anew(garbage, kept):
    """Whatever is in the file."""
    first = summaries(SESSION, index=kept)
    with open(kept, "wb") as file:
        file.write(garbage)
    assert summaries(SESSION, index=kept) == first
    assert summaries(SESSION, index=kept) == (first[0], 0)


def test_a_torn_index_is_made_anew(kept):
    """Pages of nonsense in the middle, as after a power cut, are found when it is opened."""
    first = summaries(*RECORDED, index=kept)
    size = os.path.getsize(kept)
    with open(kept, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 8192))
    assert summaries(*RECORDED, index=kept) == first


def test_an_index_of_another_version_is_made_anew(kept):
    """Another version may read more out of the same lines."""
    first = summaries(SESSION, index=kept)
    connection = sqlite3.connect(kept)
    connection.execute("PRAGMA user_version = 12")
    connection.execute("DROP TABLE files")
    connection.close()
    assert summaries(SESSION, index=kept) == first
    assert summaries(SESSION, index=kept) == (first[0], 0)


@pytest.mark.parametrize("memory", [b"", b"x", b"x\x9c", None])
def test_a_row_that_makes_no_sense_is_read_anew(memory, tmp_path, kept):
    """A wrong memory costs time, never a fact."""
    growing = tmp_path / "s.jsonl"
    growing.write_bytes(SESSION.read_bytes())
    summaries(growing, index=kept)
    connection = sqlite3.connect(kept)
    with connection:
        connection.execute("UPDATE memories SET memory = ?", (memory,))
        connection.execute("""UPDATE files SET summary = '{"no": 1}'""")
    connection.close()
    (found,), read = summaries(growing, index=kept)
    assert found == summary(SESSION)
    assert read == 1
    with growing.open("ab") as file:
        file.write(line(prompt("more")))
    assert summaries(growing, index=kept)[1] == 1


def test_without_a_place_nothing_is_kept_and_everything_is_read(tmp_path):
    """What stands in the way of the cache directory is named, and costs only time."""
    (tmp_path / "cache").touch()
    with TranscriptIndex(str(tmp_path / "cache" / "i.sqlite3")) as index:
        assert len(list(index.summarize([str(SESSION)]))) == 1
    assert str(tmp_path / "cache") in index.problem


def test_an_index_that_stays_locked_costs_only_time(kept, monkeypatch):
    """Another process holds it longer than a person waits: nothing is kept this time."""
    first = summaries(SESSION, index=kept)
    monkeypatch.setattr(database_module, "_BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(kept)
    holder.execute("BEGIN IMMEDIATE")
    with TranscriptIndex(kept) as index:
        found = list(index.summarize(map(str, [SESSION, ROLLOUT])))
    assert found[0].summary == first[0][0]
    assert len(found) == 2
    assert "locked" in index.problem
    holder.close()


def test_a_file_that_vanished_is_named(tmp_path, kept):
    """It is in no count."""
    path = str(tmp_path / "s.jsonl")
    with TranscriptIndex(kept) as index:
        assert list(index.summarize([path])) == [Unreadable(path, "No such file or directory")]


def test_others_cannot_read_the_index(kept):
    """It names projects and files."""
    summaries(SESSION, index=kept)
    assert os.stat(kept).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(kept)).st_mode & 0o777 == 0o700


def test_files_that_are_gone_are_forgotten(tmp_path, kept):
    """The index does not grow with what a client has deleted."""
    path = tmp_path / "s.jsonl"
    path.write_bytes(SESSION.read_bytes())
    summaries(path, SESSION, index=kept)
    path.unlink()
    with TranscriptIndex(kept) as index:
        index.forget_missing()
    connection = sqlite3.connect(kept)
    for table in ("files", "memories"):
        rows = connection.execute(f"SELECT path FROM {table}").fetchall()
        assert rows == [(os.fsencode(SESSION),)]
    connection.close()


WORKER = """
import json, sys
from ultramon.recordings.index import TranscriptIndex
sys.stdin.readline()
with TranscriptIndex(sys.argv[1]) as index:
    found = [one.summary.to_json() for one in index.summarize(sys.argv[2:])]
assert index.problem is None, index.problem
print(json.dumps(found))
"""


def test_processes_share_an_index(tmp_path, kept):
    """Several that make it, fill it and read it at the same moment all see the same facts."""
    paths = []
    for number in range(80):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes((SESSION if number % 2 else ROLLOUT).read_bytes())
        paths.append(str(path))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, kept, *order],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for order in (paths, paths[::-1], paths[40:] + paths[:40])
    ]
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()
    printed = [json.loads(process.communicate(timeout=100)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert printed[0] == printed[1][::-1] == printed[2][40:] + printed[2][:40]
    assert summaries(*paths, index=kept)[1] == 0


def test_what_fills_a_window_is_read_on_and_kept_once(tmp_path):
    """As the whole transcript gives it; an unchanged one is not stored again."""
    machine = Machine(tmp_path)
    path = machine.write("s", prompt("Look."), used("m1", 150_000), boundary())
    place = str(tmp_path / "index.sqlite3")

    def window():
        with TranscriptIndex(place, of_few=True) as index:
            found = index.present_window(str(path), 1 << 20)
            return found, [stamp for stamp, _ in index._waiting]

    first, stored = window()
    assert first.by_source == {}, "it was emptied"
    assert len(stored) == 1
    machine.write("s", *read_file("/a.py"), used("m2", 12_000, output=200))
    grown, stored = window()
    assert len(stored) == 1
    assert (window(), window()) == ((grown, []), (grown, []))
    with TranscriptIndex(None) as index:
        assert index.present_window(str(path), 1 << 20) == grown
        assert index.present_window(str(path), 100) is None
    assert sum(grown.by_source.values()) == pytest.approx(12_200)
    assert set(grown.by_file) == {"/a.py"}
