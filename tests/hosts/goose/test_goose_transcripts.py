"""Goose's database, made from the tables that its source creates: see tests/data/goose."""

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

from ultramon.hosts.goose.reader import read_transcript
from ultramon.hosts.goose.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.database import opened
from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import (
    UNSTATED_MODEL,
    Billed,
    Boundary,
    Broken,
    Content,
    Record,
    Report,
    Window,
)

RECORDED = DATA / "goose"
MAIN, CHILD, CARRIED = "20261127_1", "20261127_2", "20261127_3"

records_of = partial(stored_records, TRANSCRIPTS)


def plant(path, *names):
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as database:
        for name in names:
            database.executescript((RECORDED / f"{name}.sql").read_text())
    database.close()


@pytest.fixture
def path(tmp_path):
    """Where the client keeps its database."""
    path = tmp_path / "goose" / "sessions" / "sessions.db"
    plant(path, "schema", "sessions")
    return path


@pytest.fixture
def old(tmp_path):
    """The database of a version without a count for each request."""
    path = tmp_path / "old" / "data" / "sessions" / "sessions.db"
    plant(path, "schema_14", "sums")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [(MAIN, [30_000, 61_900, 9_000]), (CHILD, [12_000, 15_000]), (CARRIED, [20_000])],
)
def test_a_reading_is_the_input_of_a_request(path, name, expected):
    """With its cache inside, as its total shows."""
    records = records_of(path, name)
    assert [one.tokens for one in of(Report, records)] == expected
    assert not of(Broken, records)


def test_a_compaction_is_a_boundary_with_its_cost(path):
    """What it has hidden from the agent was in the window before."""
    records = records_of(path, MAIN)
    (boundary,) = of(Boundary, records)
    (billed,) = of(Billed, records)
    assert (boundary.trigger, billed.is_summary, sum(billed.billed_tokens)) == (None, True, 62_910)
    assert [one.tokens for one in of(Window, records)] == [100_000]
    found = [(one.source, one.counted, one.file) for one in of(Content, records)]
    assert found == [
        ("user", False, None),
        ("assistant", True, None),
        ("assistant", True, None),
        ("tool:developer__text_editor", False, "a.txt"),
        ("assistant", True, None),
        ("summary", False, None),
        ("user", False, None),
        ("assistant", True, None),
    ]
    assert [one.cost_usd for one in of(Report, records)] == [0.1, 0.15, 0.05]


def test_what_was_counted_before_is_no_reading(path):
    """A row that carries sums forward has cost tokens, and says nothing of a window."""
    (billed,) = of(Billed, records_of(path, CARRIED))
    assert (billed.billed_tokens[0], billed.billed_tokens[4]) == (300_000, 2_000)
    prompt, *_ = of(Content, records_of(path, CARRIED))
    assert (prompt.text, prompt.at) == ("Again.", 1_795_740_601.0)


def test_a_subagent_is_a_session_of_its_own(path):
    """Named after the session that launched it, where the schema says which."""
    assert TRANSCRIPTS.transcripts_in(str(path)) == [
        f"{path}/{name}" for name in (MAIN, CHILD, CARRIED)
    ]
    assert list(TRANSCRIPTS.subagent_transcripts(f"{path}/{MAIN}")) == [f"{path}/{CHILD}"]
    with TRANSCRIPTS.find_stored(f"{path}/{CHILD}").open() as stream:
        found = TRANSCRIPTS.identify(bounded_lines(stream))
    assert (found.session_id, found.agent_id, found.project) == (
        MAIN, CHILD, "/home/user/project",
    )  # fmt: skip
    reading = TRANSCRIPTS.read_last_reading(f"{path}/{MAIN}", is_subagent=False)
    assert (reading.report.tokens, reading.window_tokens) == (9_000, 100_000)


def test_an_older_version_states_the_last_request_and_sums(old):
    """Without sums what the earlier requests cost is unknown, and so has no price."""
    first, second = (records_of(old, name) for name in ("20261120_1", "20261120_2"))
    (report,) = of(Report, first)
    (billed,) = of(Billed, first)
    assert (report.tokens, report.model, report.at) == (40_000, "gpt-5", 1_795_169_100.0)
    assert billed.billed_tokens == (60_000, 0, 0, 0, 500)
    (report,) = of(Report, second)
    assert (report.tokens, report.model, report.requested_model) == (5_000, UNSTATED_MODEL, "gpt-5")
    assert not of(Billed, second)
    assert list(TRANSCRIPTS.subagent_transcripts(f"{old}/20261120_1")) == []


def test_a_schema_that_is_not_known_is_named(path, tmp_path):
    """And nothing of it is read; a database of another program is none."""
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO schema_version (version) VALUES (18)")
    database.close()
    with pytest.raises(ValueError, match="format 18 of Goose is not known"):
        TRANSCRIPTS.transcripts_in(str(path))
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    done = run("report", "--days", "9999", **dict.fromkeys(names, str(tmp_path)))
    problem = "format 18 of Goose is not known: nothing was read"
    assert problem in done.stderr
    for words in (("report", "--days", "9999"), ("replay",)):
        done = run(*words, str(path), HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
        assert problem in done.stderr
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        for name in ("schema_version", "sessions", "messages"):
            database.execute(f"CREATE TABLE {name} (version)")
    database.close()
    assert TRANSCRIPTS.transcripts_in(str(other)) is None


def test_a_report_counts_what_the_client_says(path, old, tmp_path):
    """Each database where the environment says it is, left as it was."""
    before = path.read_bytes()
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    variables = dict.fromkeys(names, str(tmp_path))
    report = json.loads(run("report", "--days", "9999", "--json", **variables).stdout)
    assert (report["sessions"], report["subagents"]) == (2, 1)
    assert report["compactions"] == 1
    assert (path.read_bytes(), os.listdir(path.parent)) == (before, ["sessions.db"])
    variables |= {"GOOSE_PATH_ROOT": str(tmp_path / "old")}
    report = json.loads(run("report", "--days", "9999", "--json", **variables).stdout)
    assert (report["sessions"], report["unpricedSessions"]) == (2, 1)
    assert list(TRANSCRIPTS.transcript_files(variables)) == [
        f"{old}/20261120_1", f"{old}/20261120_2",
    ]  # fmt: skip


def test_a_query_is_bounded_by_one_session(path):
    """Each uses an index, so that a large database costs no more."""
    asked = []
    with opened(str(path)) as database:
        from ultramon.hosts.goose import database as queries

        database.set_trace_callback(asked.append)
        name = {"id": MAIN}
        database.execute(f"{queries._LINES}{queries._COSTS} ORDER BY 1, 2, 3", name).fetchall()
        database.execute(queries._CHILDREN, name).fetchall()
        database.execute(queries._ROOT, name).fetchall()
        database.set_trace_callback(None)
        plans = [database.execute(f"EXPLAIN QUERY PLAN {one}").fetchall() for one in asked]
    steps = [step[-1].decode() for plan in plans for step in plan]
    assert len(plans) == 3
    tables = {"sessions", "messages", "usage_ledger", "s"}
    assert not any(step.startswith("SCAN") and step.split()[1] in tables for step in steps)


NAMES = ["at", "role", "content", "metadata", "counts", "cost", "model", "type", "text", "id",
         "toolCall", "toolResult", "value", "input_tokens", "agentVisible", "root"]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(["session", "message", "usage", "sums"]), VALUES)))
def test_no_line_is_too_strange(entries):
    """Whatever JSON a database holds: records, or a line that could not be read."""
    lines = [json.dumps({"goose": kind, "data": data}).encode() for kind, data in entries]
    for record in read_transcript(lines):
        assert isinstance(record, Record)
        assert not isinstance(record, Broken) or "token count" in record.reason
    TRANSCRIPTS.identify(lines)
