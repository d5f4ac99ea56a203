"""The sessions in Kilo's database: those of opencode, under a name of their own."""

import os
import sqlite3
from functools import partial

import pytest
from helpers import DATA
from helpers.opencode_session import plant, session_id
from helpers.program import run
from helpers.transcript_records import stored_records, totals

from ultramon.hosts.kilo.transcripts import TRANSCRIPTS
from ultramon.hosts.opencode.transcripts import TRANSCRIPTS as OPENCODE
from ultramon.hosts.transcripts.records import Billed, Boundary, Overflow

RECORDED = DATA / "kilo"

records_of = partial(stored_records, TRANSCRIPTS)


@pytest.fixture
def path(tmp_path):
    """Where the client keeps its database."""
    return tmp_path / "kilo" / "kilo.db"


@pytest.mark.parametrize(
    ("name", "expected", "overflows"),
    [
        ("plain_then_continue", [22_040, 110_090, 160_033, 40_020, 41_015], 0),
        ("subagents", [30_070, 33_040, 35_020], 0),
        ("compaction", [60_040, 91_950, 92_020, 9_060, 9_533], 0),
        ("overflow_compacted", [60_040, 9_533], 1),
        ("overflow_failed", [60_040], 1),
    ],
)
def test_a_reading_is_the_total_that_the_client_shows(path, name, expected, overflows):
    """The summarising request is none, and a refused one is an overflow."""
    plant(path, name, recorded=RECORDED)
    records = records_of(path, session_id(path))
    assert totals(records) == expected
    assert len([one for one in records if isinstance(one, Overflow)]) == overflows


def test_a_compaction_is_a_boundary_with_its_cost(path):
    """As the client's own message says it."""
    plant(path, "compaction", recorded=RECORDED)
    records = records_of(path, session_id(path))
    (boundary,) = [one for one in records if isinstance(one, Boundary)]
    (billed,) = [one for one in records if isinstance(one, Billed)]
    assert (boundary.trigger, boundary.post_tokens) == ("auto", None)
    assert (billed.billed_tokens, billed.is_summary) == ((2_500, 90_000, 0, 0, 410), True)


def test_a_subagent_is_a_session_of_its_own(path):
    """With its own numbers, named after the session that has launched it."""
    plant(path, "subagents", recorded=RECORDED)
    main = session_id(path)
    names = [session_id(path, title, is_subagent=True) for title in ("first", "second")]
    assert [totals(records_of(path, name)) for name in names] == [
        [61_030, 88_025],
        [12_030, 15_025],
    ]
    assert list(TRANSCRIPTS.subagent_transcripts(f"{path}/{main}")) == [
        f"{path}/{name}" for name in names
    ]


def test_a_database_belongs_to_one_host(path, tmp_path):
    """By its name, and a copy under another one by the client's own tables."""
    plant(path, "compaction", recorded=RECORDED)
    copy, other = tmp_path / "copy.db", tmp_path / "opencode.db"
    plant(copy, "compaction", recorded=RECORDED)
    plant(other, "compaction")
    assert [bool(TRANSCRIPTS.transcripts_in(str(one))) for one in (path, copy, other)] == [
        True, True, False,
    ]  # fmt: skip
    assert [bool(OPENCODE.transcripts_in(str(one))) for one in (path, copy, other)] == [
        False, False, True,
    ]  # fmt: skip
    with TRANSCRIPTS.find_stored(f"{path}/{session_id(path)}").open() as stream:
        head = stream.read(65_536)
    assert TRANSCRIPTS.looks_like_transcript(head)
    assert not OPENCODE.looks_like_transcript(head)


def test_where_sessions_are_is_what_the_environment_says(path, tmp_path):
    """In the user's folder of data, or in the database that a variable names."""
    plant(path, "compaction", recorded=RECORDED)
    plant(tmp_path / "other.db", "overflow_failed", recorded=RECORDED)
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    here = f"{path}/{session_id(path)}"
    assert list(TRANSCRIPTS.transcript_files(environ)) == [here]
    moved = environ | {"KILO_DB": str(tmp_path / "other.db")}
    assert list(TRANSCRIPTS.transcript_files(moved)) == [
        here,
        f"{tmp_path}/other.db/{session_id(tmp_path / 'other.db')}",
    ]


def test_a_report_names_the_client_and_what_it_does_not_know(path, tmp_path):
    """Its database is left as it was; one of another form is named, and nothing of it is read."""
    plant(path, "subagents", recorded=RECORDED)
    before = path.read_bytes()
    with sqlite3.connect(path.parent / "kilo-next.db") as database:
        database.execute("CREATE TABLE conversation (id)")
    database.close()
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    done = run("report", "--days", "9999", **dict.fromkeys(names, str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "1 session, 2 subagents" in done.stdout
    assert "kilo" in done.stdout.splitlines()[0]
    assert "kilo-next.db" in done.stderr
    assert "its format is no known one of kilo: nothing was read" in done.stderr
    assert (path.read_bytes(), "kilo.db-wal" in os.listdir(path.parent)) == (before, False)
