"""MiMo Code's database, made from the tables that its source declares: see tests/data/mimo."""

import os
import sqlite3
from functools import partial

import pytest
from helpers import DATA
from helpers.opencode_session import plant
from helpers.transcript_records import stored_records, totals

from ultramon.hosts.mimo.transcripts import TRANSCRIPTS
from ultramon.hosts.opencode import database as queries
from ultramon.hosts.opencode.transcripts import TRANSCRIPTS as OPENCODE
from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import Boundary, Report
from ultramon.recordings.clients import find_by_id

MAIN, PEER, PART = "ses_0aMain", "ses_0bPeer", "ses_0aMain.general-1"

records_of = partial(stored_records, TRANSCRIPTS)


@pytest.fixture
def path(tmp_path):
    """The client's database."""
    path = tmp_path / "mimocode" / "mimocode.db"
    plant(path, "session", recorded=DATA / "mimo")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [(MAIN, [30_070, 35_020, 12_040]), (PART, [61_030, 88_025]), (PEER, [15_025])],
)
def test_each_agent_has_its_own_numbers(path, name, expected):
    """Though the messages of a subagent lie in the session that launched it."""
    assert totals(records_of(path, name)) == expected


def test_a_subagent_is_named_after_its_session(path):
    """In the same session by its name, in another one by that."""
    found = {}
    for name in (MAIN, PART, PEER):
        with TRANSCRIPTS.find_stored(f"{path}/{name}").open() as stream:
            found[name] = TRANSCRIPTS.identify(bounded_lines(stream))
    assert [(one.session_id, one.agent_id) for one in found.values()] == [
        (MAIN, None),
        (MAIN, "general-1"),
        (MAIN, PEER),
    ]
    assert list(TRANSCRIPTS.subagent_transcripts(f"{path}/{MAIN}")) == [
        f"{path}/{PART}",
        f"{path}/{PEER}",
    ]


def test_sessions_of_other_hosts_are_left_out(path, tmp_path):
    """The client copies them into its database; their own files have them."""
    names = [f"{path}/{name}" for name in (MAIN, PART, PEER)]
    assert TRANSCRIPTS.transcripts_in(str(path)) == names
    assert OPENCODE.transcripts_in(str(path)) is None
    for environ in ({"XDG_DATA_HOME": str(tmp_path)}, {"MIMOCODE_HOME": str(tmp_path / "home")}):
        if "MIMOCODE_HOME" in environ:
            (tmp_path / "home").mkdir()
            (tmp_path / "home" / "data").symlink_to(path.parent)
        assert [os.path.basename(one) for one in TRANSCRIPTS.transcript_files(environ)] == [
            MAIN, PART, PEER,
        ]  # fmt: skip


def test_a_window_begins_anew_with_a_checkpoint(path):
    """Until the next reply its size is unknown."""
    records = records_of(path, MAIN)
    assert [type(one) for one in records if isinstance(one, Report | Boundary)] == [
        Report, Report, Boundary, Report,
    ]  # fmt: skip
    assert TRANSCRIPTS.read_last_reading(f"{path}/{MAIN}", is_subagent=False).report is not None
    with sqlite3.connect(path) as database:
        query = 'SELECT message_id FROM part WHERE data LIKE \'%"type":"checkpoint"%\''
        (name,) = database.execute(query).fetchone()
        database.execute("DELETE FROM message WHERE agent_id = 'main' AND id > ?", (name,))
    database.close()
    reading = TRANSCRIPTS.read_last_reading(f"{path}/{MAIN}", is_subagent=False)
    assert (reading.report, reading.compaction_id) == (None, name)
    assert reading.compacted_at == 1_795_740_008.0


def test_an_id_that_begins_another_one_names_its_session(path, tmp_path):
    """As the id of a subagent begins with that of its session."""
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    assert find_by_id(MAIN, environ) == [f"{path}/{MAIN}"]
    assert find_by_id(PART, environ) == [f"{path}/{PART}"]


def test_a_query_is_bounded_by_one_session(path):
    """Each uses an index, though a session holds several agents."""
    asked = []
    with queries.opened(str(path)) as database:
        database.set_trace_callback(asked.append)
        list(queries.newest_messages(database, PART, 9))
        queries.newest_message_ids(database, MAIN, 9)
        database.set_trace_callback(None)
        asked = [one for one in asked if "pragma" not in one.lower()]
        plans = [database.execute(f"EXPLAIN QUERY PLAN {one}").fetchall() for one in asked]
    steps = [step[-1].decode() for plan in plans for step in plan]
    assert len(plans) == 2
    assert not any(step.startswith("SCAN") and step.split()[1] in {"session", "message", "part"}
                   for step in steps)  # fmt: skip
