"""Crush's databases, made from the tables that its migrations leave: see tests/data/crush."""

import json
import os
import sqlite3
from functools import partial

import pytest
from helpers import DATA
from helpers.program import run
from helpers.transcript_records import of, stored_records
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.crush.reader import read_transcript
from ultramon.hosts.crush.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import (
    UNSTATED_MODEL,
    Billed,
    Boundary,
    Broken,
    Content,
    Record,
    Report,
    Returned,
)

RECORDED = DATA / "crush"
MAIN, CHILD = "11111111-1111-4111-8111-111111111111", "m-1$$call_2"
SUMMARY = "22222222-2222-4222-8222-222222222222"
PLAN = "33333333-3333-4333-8333-333333333333"

records_of = partial(stored_records, TRANSCRIPTS)


@pytest.fixture
def path(tmp_path):
    """The database of a project, which the client has noted."""
    path = tmp_path / "project" / ".crush" / "crush.db"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        for name in ("schema", "sessions"):
            database.executescript((RECORDED / f"{name}.sql").read_text())
    database.close()
    (tmp_path / "crush").mkdir()
    projects = [
        {"path": str(tmp_path / "project"), "data_dir": str(path.parent)},
        {"path": str(tmp_path / "project" / "inner"), "data_dir": str(path.parent)},
        {"path": str(tmp_path / "gone"), "data_dir": str(tmp_path / "gone" / ".crush")},
    ]
    (tmp_path / "crush" / "projects.json").write_text(json.dumps({"projects": projects}))
    return path


def test_a_session_has_the_count_of_its_last_request(path):
    """And of all that it cost, its subagents left out: they have their own."""
    (report,) = of(Report, records_of(path, MAIN))
    assert (report.tokens, report.output_tokens) == (42_000, 33)
    assert (report.model, round(report.cost_usd, 9)) == ("claude-sonnet-4-5", 0.3)
    (report,) = of(Report, records_of(path, CHILD))
    assert (report.tokens, report.cost_usd) == (9_000, 0.2)


def test_a_session_without_a_cost_has_no_price(path):
    """What the requests before the last one cost is not known."""
    (report,) = of(Report, records_of(path, PLAN))
    assert (report.tokens, report.cost_usd) == (7_000, None)
    assert (report.model, report.requested_model) == (UNSTATED_MODEL, "claude-sonnet-4-5")


def test_behind_a_summary_nothing_is_known(path):
    """The client counts nothing until the next request."""
    records = records_of(path, SUMMARY)
    assert of(Report, records) == []
    assert [one.billed_tokens for one in of(Billed, records)] == [(0, 0, 0, 0, 410)]
    assert of(Boundary, records) == [Boundary(None, None, 1_795_740_110.0)]
    assert [one.source for one in of(Content, records)] == ["user", "assistant", "summary"]
    reading = TRANSCRIPTS.read_last_reading(f"{path}/{SUMMARY}", is_subagent=False)
    assert reading.report is None


def test_a_subagent_is_a_session_of_its_own(path, tmp_path):
    """Named after the call that launched it; the title's session is none."""
    assert TRANSCRIPTS.transcripts_in(str(path)) == [
        f"{path}/{name}" for name in (MAIN, CHILD, SUMMARY, PLAN)
    ]
    assert list(TRANSCRIPTS.subagent_transcripts(f"{path}/{MAIN}")) == [f"{path}/{CHILD}"]
    with TRANSCRIPTS.find_stored(f"{path}/{CHILD}").open() as stream:
        found = TRANSCRIPTS.identify(bounded_lines(stream))
    assert (found.session_id, found.agent_id) == (MAIN, CHILD)
    assert found.project == str(tmp_path / "project")
    assert of(Returned, records_of(path, MAIN)) == [Returned(CHILD, True, 1_795_740_009.0)]


def test_texts_are_what_filled_the_window(path):
    """The last reply is in its count, what came before is estimated."""
    found = [(one.source, one.counted, one.file) for one in of(Content, records_of(path, MAIN))]
    assert found == [
        ("user", False, None),
        ("assistant", False, None),
        ("assistant", False, None),
        ("assistant", False, None),
        ("tool:view", False, "a.txt"),
        ("tool:agent", False, None),
        ("assistant", True, None),
        ("user", False, None),
    ]


def test_databases_are_those_of_the_projects_that_the_client_notes(path, tmp_path):
    """Each once; notes that cannot be read are an error."""
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    names = [f"{path}/{name}" for name in (MAIN, CHILD, SUMMARY, PLAN)]
    assert list(TRANSCRIPTS.transcript_files(environ)) == names
    moved = {"CRUSH_GLOBAL_DATA": str(tmp_path / "crush")}
    assert list(TRANSCRIPTS.transcript_files(moved)) == names
    (tmp_path / "crush" / "projects.json").write_text("{")
    errors = []
    assert list(TRANSCRIPTS.transcript_files(environ, errors.append)) == []
    assert [os.path.basename(one.filename) for one in errors] == ["projects.json"]


def test_a_report_counts_what_the_client_says(path, tmp_path):
    """The database is left as it was."""
    before = path.read_bytes()
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    variables = dict.fromkeys(names, str(tmp_path))
    report = json.loads(run("report", "--days", "9999", "--json", **variables).stdout)
    assert (report["sessions"], report["subagents"]) == (3, 1)
    assert (report["costUsd"], report["costSource"]) == (0.5, "host")
    assert report["unpricedSessions"] == 2
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, ["crush.db"])


def test_a_schema_that_is_not_known_is_named(path, tmp_path):
    """And nothing of it is read."""
    with sqlite3.connect(path) as database:
        query = "INSERT INTO goose_db_version (version_id, is_applied) VALUES (20270101000000, 1)"
        database.execute(query)
    database.close()
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    done = run("report", "--days", "9999", **dict.fromkeys(names, str(tmp_path)))
    assert "format 20270101000000 of Crush is not known: nothing was read" in done.stderr


NAMES = ["at", "id", "role", "parts", "type", "data", "text", "name", "input", "content", "model",
         "prompt", "completion", "cost", "is_summary", "tool_call_id"]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(["session", "message", "usage"]), VALUES)))
def test_no_line_is_too_strange(entries):
    """Whatever JSON a database holds: records, or a line that could not be read."""
    lines = [json.dumps({"crush": kind, "data": data}).encode() for kind, data in entries]
    for record in read_transcript(lines):
        assert isinstance(record, Record)
        assert not isinstance(record, Broken) or "token count" in record.reason
    TRANSCRIPTS.identify(lines)
