"""The sessions in opencode's database, read as records."""

import json
import os
import sqlite3
from pathlib import Path

import pytest
from helpers.opencode_database import Rows, make
from helpers.opencode_session import plant, session_id
from helpers.program import run
from hypothesis import given
from hypothesis import strategies as st

from ultramon.hosts.opencode.database import sessions_since
from ultramon.hosts.opencode.reader import identify, looks_like_transcript, read_transcript
from ultramon.hosts.opencode.transcripts import TRANSCRIPTS
from ultramon.hosts.transcripts.jsonl import bounded_lines
from ultramon.hosts.transcripts.records import (
    OVERFLOW,
    Billed,
    Boundary,
    Broken,
    Content,
    Overflow,
    Record,
    Report,
    Returned,
    SessionEnd,
)

PAGE_BYTES = 4_096
MAIN, PART_A, PART_B = (30_070, 33_040, 35_020), (61_030, 88_025), (12_030, 15_025)


@pytest.fixture
def path(tmp_path):
    """Where a database lies."""
    return tmp_path / "data" / "opencode.db"


def lines_of(path, name):
    stored = TRANSCRIPTS.find_stored(str(path / name))
    with stored.open() as stream:
        return list(bounded_lines(stream))


def records_of(path, title="", *, is_subagent=False):
    name = session_id(path, title, is_subagent=is_subagent)
    return list(read_transcript(lines_of(path, name)))


def totals(records):
    return [one.tokens + one.output_tokens for one in records if isinstance(one, Report)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain_then_continue", [22_040, 110_090, 160_033, 40_020, 41_015]),
        ("subagents", [*MAIN]),
        ("compaction", [60_040, 91_950, 92_020, 9_060, 9_533]),
        ("overflow_compacted", [60_040, 9_533]),
        ("overflow_failed", [60_040]),
        ("killed_then_continued", [52_040, 40_020, 41_015]),
        ("aborted_by_plugin", []),
    ],
)
def test_a_reading_is_the_total_that_the_client_shows(path, name, expected):
    """A reply that was cut has none, and the size of the summarising request is none."""
    plant(path, name)
    assert totals(records_of(path)) == expected


def test_a_subagent_is_a_session_of_its_own(path):
    """With its own numbers, named after the session that has launched it."""
    plant(path, "subagents")
    main = session_id(path)
    for title, expected in (("first part", PART_A), ("second part", PART_B)):
        name = session_id(path, title, is_subagent=True)
        assert totals(records_of(path, title, is_subagent=True)) == [*expected]
        identity = identify(lines_of(path, name))
        assert (identity.session_id, identity.agent_id) == (main, name)
    first = session_id(path, "first part", is_subagent=True)
    second = session_id(path, "second part", is_subagent=True)
    paths = [str(path / one) for one in (main, first, second)]
    assert TRANSCRIPTS.transcripts_in(str(path)) == paths
    assert list(TRANSCRIPTS.subagent_transcripts(paths[0])) == paths[1:]
    assert list(TRANSCRIPTS.subagent_transcripts(paths[1])) == []


def test_a_session_says_whose_it_is(path):
    """Model, directory and begin."""
    plant(path, "compaction")
    name = session_id(path)
    identity = identify(lines_of(path, name))
    assert (identity.session_id, identity.agent_id, identity.model) == (name, None, "fake-1")
    assert (identity.project, identity.began_at) == ("/home/user/project", 1_795_596_862.789)


def test_a_launcher_says_whether_it_got_a_text(path):
    """An aborted subagent gave none."""
    plant(path, "subagent_aborted_by_plugin")
    returned = [one for one in records_of(path) if isinstance(one, Returned)]
    names = [session_id(path, f"{one} part", is_subagent=True) for one in ("first", "second")]
    assert [(one.agent_id, one.has_text) for one in returned] == [
        *zip(names, (True, False), strict=True)
    ]


def test_a_compaction_is_a_boundary_with_its_cost(path):
    """The summary is text of the new window."""
    plant(path, "compaction")
    records = records_of(path)
    (boundary,) = [one for one in records if isinstance(one, Boundary)]
    assert (boundary.trigger, boundary.post_tokens) == ("auto", None)
    (billed,) = [one for one in records if isinstance(one, Billed)]
    assert (billed.billed_tokens, billed.is_summary) == ((2_500, 90_000, 0, 0, 410), True)
    (summary,) = [one for one in records if getattr(one, "source", "") == "summary"]
    assert summary.text.startswith("## Goal")


@pytest.mark.parametrize("name", ["overflow_compacted", "overflow_failed"])
def test_a_refused_request_is_an_overflow(path, name):
    """Whether the client compacts then, or the session ends."""
    plant(path, name)
    assert len([one for one in records_of(path) if isinstance(one, Overflow)]) == 1


def test_texts_are_what_filled_the_window(path):
    """Calls and replies are in the count of their reply, results come after it."""
    plant(path, "subagents")
    records = records_of(path, "second part", is_subagent=True)
    found = [(one.source, one.counted) for one in records if isinstance(one, Content)]
    assert found == [
        ("user", False),
        ("assistant", True),
        ("tool:read", False),
        ("assistant", True),
    ]
    (result,) = [one for one in records if getattr(one, "source", "") == "tool:read"]
    assert result.file == "a.txt"


def last(path, title="", *, is_subagent=False):
    name = session_id(path, title, is_subagent=is_subagent)
    return TRANSCRIPTS.read_last_reading(str(path / name), is_subagent=is_subagent)


def test_the_last_reading_is_that_of_the_last_reply(path):
    """With its text."""
    plant(path, "plain_then_continue")
    reading = last(path)
    assert (reading.report.tokens, reading.report.output_tokens) == (41_000, 15)
    assert (reading.text, reading.error, reading.compaction_id) == ("Resumed.", None, None)
    replies = TRANSCRIPTS.read_last_replies(str(path / session_id(path)), is_subagent=False)
    assert [report.tokens for report, _ in replies] == [41_000, 40_000]


def test_nothing_is_known_between_a_summary_and_the_next_reply(path):
    """The last reading is of the window before: the state begins an epoch by the summary's id."""
    plant(path, "compaction")
    with sqlite3.connect(path) as database:
        query = "SELECT id, time_created FROM message WHERE data LIKE '%\"summary\":true%'"
        name, at = database.execute(query).fetchone()
        database.execute("DELETE FROM message WHERE time_created > ?", (at,))
    database.close()
    reading = last(path)
    assert (reading.report, reading.compaction_id) == (None, name)
    assert reading.compacted_at == 1_795_596_890.644


def test_a_session_ends_as_its_last_message_says(path):
    """A reply that was cut, and one that is running, say nothing of an end."""

    def end(name, title="", *, is_subagent=False):
        path.unlink(missing_ok=True)
        plant(path, name)
        named = session_id(path, title, is_subagent=is_subagent)
        return TRANSCRIPTS.read_session_end(str(path / named), {})

    assert end("compaction") == SessionEnd(1_795_596_892.85)
    assert end("overflow_failed") == SessionEnd(1_795_597_119.521, OVERFLOW)
    assert end("aborted_by_plugin").cuts_turn
    assert last(path).stopped_at == 1_795_596_744.092
    with sqlite3.connect(path) as database:
        database.execute("UPDATE message SET data = json_remove(data, '$.time.completed')")
    database.close()
    assert TRANSCRIPTS.read_session_end(str(path / session_id(path)), {}) is None


def test_reading_leaves_no_trace_and_sees_what_a_client_has_just_written(path):
    """A closed database gets no files beside it; of an open one the log of writes counts."""
    plant(path, "killed_then_continued")
    before = path.read_bytes()
    assert last(path).report.tokens == 41_000
    assert (os.listdir(path.parent), path.read_bytes()) == ([path.name], before)
    client = sqlite3.connect(path, isolation_level=None)
    client.execute("BEGIN IMMEDIATE")  # a client in the middle of writing keeps nobody waiting
    client.execute("UPDATE message SET data = replace(data, ':1000,', ':2000,')")
    assert last(path).report.tokens == 41_000
    client.execute("COMMIT")
    assert last(path).report.tokens == 42_000
    client.close()


def test_what_is_no_database_of_the_client_is_named(path, tmp_path):
    """Neither another program's, nor one with other columns, nor none."""
    plant(path, "compaction")
    name = str(path / session_id(path))
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE message RENAME COLUMN time_created TO created")
    database.close()
    with pytest.raises(ValueError, match="of a version that ultramon does not know"):
        TRANSCRIPTS.read_last_reading(name, is_subagent=False)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE session (id)")
    database.close()
    (tmp_path / "text.db").write_text("text")
    for file in (other, tmp_path / "text.db"):
        assert TRANSCRIPTS.transcripts_in(str(file)) is None
        assert TRANSCRIPTS.find_stored(f"{file}/ses_1") is None
    with pytest.raises(FileNotFoundError):
        TRANSCRIPTS.read_last_reading(str(tmp_path / "gone.db" / "ses_1"), is_subagent=False)


@pytest.mark.timeout(30)
def test_a_pipe_is_passed_over(tmp_path):
    """Without waiting for what would write into it."""
    os.mkfifo(tmp_path / "opencode.db")
    assert TRANSCRIPTS.transcripts_in(str(tmp_path / "opencode.db")) is None
    with pytest.raises(ValueError, match="not a regular file"):
        TRANSCRIPTS.read_last_reading(f"{tmp_path}/opencode.db/ses_1", is_subagent=False)


@pytest.mark.parametrize("keep_open", [False, True])
def test_a_link_is_what_it_leads_to(path, tmp_path, keep_open):
    """As to the client, with what that has not yet moved into the file itself."""
    client = plant(path, "compaction", keep_open=keep_open)
    link = tmp_path / "opencode" / "opencode.db"
    link.parent.mkdir()
    link.symlink_to(path)
    names = [os.path.join(link, session_id(path))]
    assert TRANSCRIPTS.transcripts_in(str(link)) == names
    assert list(TRANSCRIPTS.transcript_files({"XDG_DATA_HOME": str(tmp_path)})) == names
    assert TRANSCRIPTS.read_last_reading(names[0], is_subagent=False).report is not None
    assert sorted(os.listdir(link.parent)) == ["opencode.db"]
    if client is not None:
        client.close()


def damage(path, table):
    """Overwrite the first page of a table."""
    with sqlite3.connect(path) as database:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = database.execute(query, (table,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    database.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


@pytest.mark.parametrize("table", ["session", "message", "sqlite_master"])
def test_a_damaged_database_takes_nothing_from_the_others(path, table):
    """It is named where its sessions cannot be listed, and by each one that cannot be read."""
    data = path.parent / "opencode"
    plant(data / "opencode.db", "plain_then_continue")
    plant(data / "opencode-beta.db", "compaction")
    plant(data / "opencode-zeta.db", "compaction")
    beta = data / "opencode-beta.db"
    if table == "sqlite_master":
        with beta.open("r+b") as file:
            file.seek(100)
            file.write(b"\xff" * 3_996)
    else:
        damage(beta, table)
    errors = []
    found = [*TRANSCRIPTS.transcript_files({"XDG_DATA_HOME": str(path.parent)}, errors.append)]
    names = {os.path.basename(os.path.dirname(one)) for one in found}
    assert {"opencode.db", "opencode-zeta.db"} <= names
    assert [one.filename for one in errors] == ([] if table == "message" else [str(beta)])
    done = report(path.parent)
    assert done.returncode == 0, done.stderr
    assert str(beta) in done.stderr
    assert "ses_" in done.stdout


@pytest.mark.parametrize("strange", ["NULL", "'soon'", "x'ff'", "1e300"])
def test_values_that_the_client_never_writes_hide_no_other_session(path, strange):
    """Its tables promise more than a damaged file keeps."""
    data = path.parent / "opencode"
    plant(data / "opencode.db", "plain_then_continue")
    plant(data / "opencode.db", "compaction")
    with sqlite3.connect(data / "opencode.db") as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    database.close()
    name = session_id(data / "opencode.db")
    with sqlite3.connect(data / "opencode.db") as database:
        for column in ("time_created", "directory", "version", "model"):
            database.execute(f"UPDATE session SET {column} = {strange} WHERE id = ?", (name,))
        for column in ("time_created", "time_updated", "data"):
            query = f"UPDATE message SET {column} = {strange} WHERE session_id = ?"
            database.execute(query, (name,))
        database.execute(f"UPDATE part SET data = {strange} WHERE session_id = ?", (name,))
    database.close()
    found = [*TRANSCRIPTS.transcript_files({"XDG_DATA_HOME": str(path.parent)})]
    assert len(found) == 2
    for one in found:
        with TRANSCRIPTS.find_stored(one).open() as stream:
            list(read_transcript(bounded_lines(stream)))
        TRANSCRIPTS.read_last_reading(one, is_subagent=False)
        TRANSCRIPTS.read_session_end(one, {})
        TRANSCRIPTS.new_requests(one, (), 10)
    assert isinstance(sessions_since(str(data / "opencode.db"), 0.0), dict)
    assert report(path.parent).returncode == 0


def report(data):
    """Run `ultramon report` on what the clients of a user keep."""
    changes = {"HOME": str(data), "XDG_DATA_HOME": str(data), "XDG_CACHE_HOME": str(data)}
    return run("report", "--days", "9999", **changes)


def test_a_query_is_bounded_by_one_session(path):
    """Each uses an index, so that a database of many gigabytes costs no more."""
    from ultramon.hosts.opencode import database as queries

    plant(path, "subagents")
    asked = []
    name = session_id(path)
    with queries.opened(str(path)) as database:
        database.set_trace_callback(asked.append)
        list(queries.newest_messages(database, name, 9))
        list(queries.parts_of(database, "msg_x"))
        database.execute(queries._CHILDREN, {"id": name}).fetchall()
        database.execute(queries._ROOT, {"id": name}).fetchall()
        database.set_trace_callback(None)
        asked = [one for one in asked if "pragma" not in one.lower()]
        plans = [database.execute(f"EXPLAIN QUERY PLAN {one}").fetchall() for one in asked]
    steps = [step[-1].decode() for plan in plans for step in plan]
    assert len(plans) == 4
    assert not any(step.startswith("SCAN") and step.split()[1] in {"session", "message", "part"}
                   for step in steps)  # fmt: skip


def read_by(act):
    """How many bytes this thread has the system read meanwhile."""
    io = Path("/proc/thread-self/io")
    before = int(io.read_text().split()[1])
    act()
    return int(io.read_text().split()[1]) - before


def test_what_is_read_of_a_session_does_not_grow_with_the_database(tmp_path):
    """One with twenty times as many sessions has some pages more above those that count."""
    found = []
    for sessions in (3, 60):
        path = tmp_path / f"{sessions}.db"
        make(path, Rows(result_bytes=3_000, sessions=sessions))
        newest = TRANSCRIPTS.transcripts_in(str(path))[-1]
        asked = (
            lambda one=newest: TRANSCRIPTS.read_last_reading(one, is_subagent=False),
            lambda one=newest: TRANSCRIPTS.read_last_replies(one, is_subagent=False),
            lambda one=newest: TRANSCRIPTS.read_session_end(one, {}),
            lambda one=newest: TRANSCRIPTS.new_requests(one, (), 20),
            lambda one=newest: TRANSCRIPTS.find_stored(one),
            lambda one=newest: list(TRANSCRIPTS.subagent_transcripts(one)),
            lambda one=path: sessions_since(str(one), 0.0),
        )
        for ask in asked:
            ask()
        found.append([read_by(ask) for ask in asked])
    few, many = found
    assert all(after <= before + 8 * PAGE_BYTES for before, after in zip(few, many, strict=True))
    assert max(many) < 40 * PAGE_BYTES


def test_a_list_of_sessions_reads_no_messages_but_the_newest(tmp_path):
    """What changes with a session is found by an index, for all of them at once."""
    path = tmp_path / "opencode.db"
    size = make(path, Rows(result_bytes=3_000, sessions=3, messages=1_500))
    names = TRANSCRIPTS.transcripts_in(str(path))
    whole = TRANSCRIPTS.sizes_and_changes(str(path))
    assert {os.path.join(path, name): one for name, one in whole.items()} == {
        name: (one.size, one.changed_ms)
        for name in names
        for one in [TRANSCRIPTS.find_stored(name)]
    }
    assert [count for count, _ in whole.values()] == [1_500] * 3
    assert read_by(lambda: TRANSCRIPTS.sizes_and_changes(str(path))) < size / 20
    with sqlite3.connect(path) as database:
        query = "UPDATE message SET time_updated = ? WHERE id IN (SELECT max(id) FROM message)"
        database.execute(query, (2_000_000_000_000,))
    database.close()
    assert TRANSCRIPTS.find_stored(names[-1]).changed_ms == 2_000_000_000_000


def test_where_sessions_are_is_what_the_environment_says(path):
    """Builds of other channels have a database of their own."""
    data = path.parent / "opencode"
    plant(data / "opencode.db", "subagents")
    plant(data / "opencode-beta.db", "compaction")
    (data / "notes.txt").write_text("")
    environ = {"XDG_DATA_HOME": str(path.parent)}
    found = list(TRANSCRIPTS.transcript_files(environ))
    assert [os.path.dirname(one) for one in found] == [
        str(data / "opencode-beta.db"),
        *[str(data / "opencode.db")] * 3,
    ]
    assert TRANSCRIPTS.find_transcript(environ, "ses_1") == str(data / "opencode.db" / "ses_1")
    assert TRANSCRIPTS.find_transcript({"OPENCODE_DB": ":memory:"}, "ses_1") is None
    assert TRANSCRIPTS.find_transcript({"OPENCODE_DB": "/x.db"}, "ses_1") == "/x.db/ses_1"


NAMES = st.sampled_from(
    ["role", "tokens", "cache", "input", "output", "time", "completed", "created", "summary",
     "error", "name", "type", "text", "tool", "state", "metadata", "sessionId", "auto", "cost"]
)  # fmt: skip
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(["session", "message", "part", "other"]), JSON)))
def test_no_line_is_too_strange(entries):
    """Whatever JSON a database holds: records, or a line that could not be read."""
    lines = [
        json.dumps({"opencode": kind, "id": "x", "data": data}).encode() for kind, data in entries
    ]
    for record in read_transcript(lines):
        assert isinstance(record, Record)
        assert not isinstance(record, Broken) or "token count" in record.reason
    identify(lines)
    assert looks_like_transcript(b"\n".join([*lines, b""])) == any(
        kind == "session" for kind, _ in entries
    )
