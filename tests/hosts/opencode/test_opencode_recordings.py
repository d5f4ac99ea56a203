"""opencode's sessions in a report and a replay: each is one recording in a file with others."""

import json
import os
import socket
import sqlite3
from contextlib import closing

import pytest
from helpers.opencode_session import plant, session_id
from helpers.program import run_process

from ultramon.recordings.clients import client_files, find_by_id, split_by_age
from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable
from ultramon.recordings.recordings import find_recordings
from ultramon.state.record import StateRecord
from ultramon.web.fillings import FillingReader


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The user's database, with two recorded runs."""
    path = tmp_path / "data" / "opencode" / "opencode.db"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("OPENCODE_DB", raising=False)
    plant(path, "subagents")
    plant(path, "compaction")
    return path


def files(path):
    return [one for one in client_files(os.environ) if one.startswith(str(path))]


def test_each_session_of_the_database_is_a_recording(path):
    """A session brings its subagents; what is no session is passed over."""
    whole = find_recordings([str(path)])
    assert (len(whole.recordings), whole.skipped) == (4, [])
    main = session_id(path)
    one = find_recordings([f"{path}/{main}"]).recordings
    assert [recording.id.count(".") for recording in one] == [0, 1, 1]
    (skipped,) = find_recordings([f"{path}/ses_gone"]).skipped
    assert "no session of that name" in skipped.reason
    assert find_by_id(main[:20], os.environ) == [f"{path}/{main}"]


def test_only_the_session_that_changed_is_read_again(path, tmp_path):
    """The database's own time says nothing about one of them."""
    read = []
    with TranscriptIndex(str(tmp_path / "index")) as index:
        found = list(index.summarize(files(path), read.append))
    assert [type(one) for one in found] == [Summarized] * 4
    assert len(read) == 4
    changed = session_id(path)
    with closing(sqlite3.connect(path)) as database, database:
        query = "UPDATE message SET time_updated = time_updated + 9 WHERE session_id = ?"
        database.execute(query, (changed,))
    read.clear()
    with TranscriptIndex(str(tmp_path / "index")) as index:
        index.forget_missing()
        again = list(index.summarize(files(path), read.append))
    assert read == [f"{path}/{changed}"]
    assert [one.summary for one in again] == [one.summary for one in found]
    gone = f"{path}/ses_gone"
    with TranscriptIndex(None) as index:
        assert list(index.summarize([gone])) == [Unreadable(gone, "no session of that name")]


def test_a_report_leaves_old_sessions_out_by_their_own_time(path):
    """Though the file was written to just now."""
    recent, older = split_by_age(files(path), since=1_795_596_800.0)
    assert [len(recent), len(older)] == [1, 3]


def test_a_report_counts_its_sessions_and_subagents(path):
    """Each by its own numbers, the client named."""
    done = run_process("report", "--json", "--days", "10000", HOME=str(path.parent))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    text = json.dumps(report)
    assert "opencode" in text
    assert done.stderr == ""


def test_a_replay_shows_what_a_monitor_would_have_said(path):
    """A compaction is an epoch, the summarising request no reading."""
    main = f"{path}/{_compacted(path)}"
    done = run_process("replay", main, "--limit", "92000", "--json")
    assert done.returncode == 0, done.stderr
    assert "92910" not in done.stdout


def test_what_filled_a_window_is_shown_on_the_web_too(path):
    """By the texts of that session alone."""
    name = session_id(path, "second part", is_subagent=True)
    record = StateRecord(name)
    record.hostname = socket.gethostname()
    filling = FillingReader().of(record, f"{path}/{name}")
    assert "tool:read" in filling.window.by_source


def _compacted(path):
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT session_id FROM message WHERE data LIKE '%\"summary\":true%'"
        return database.execute(query).fetchone()[0]
