"""What a session in opencode's database has spent, and how the plugin ends a turn for it."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from helpers.opencode_session import plant, session_id

from ultramon.hosts import failure_log
from ultramon.hosts.calls import spending
from ultramon.hosts.calls.spending import REASON, Reserve, Spent, count_new, spent_of_context
from ultramon.hosts.calls.switches import RELAY_FOLDER
from ultramon.hosts.opencode import hook
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.system.files import make_private_directory

ANY = Reserve(10**9, None, {})


@pytest.fixture
def path(tmp_path):
    """Where a database lies."""
    return tmp_path / "data" / "opencode" / "opencode.db"


def count(path, name, spent):
    """Count what is new, by what was stored, and return all tokens."""
    again = Spent(json.loads(json.dumps(spent.to_json())))
    count_new(OPENCODE, str(path / name), again, ANY)
    return again


def change(path, statement, *values):
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


def test_each_reply_is_counted_once(path):
    """A reply without numbers is counted once it has some; a revert takes none back."""
    plant(path, "plain_then_continue")
    name = session_id(path)
    query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    rows = change(path, query, name)
    tokens = {one: json.loads(data).get("tokens") for one, data in rows}
    last = max(one for one, found in tokens.items() if found)
    told = dict(rows)[last]
    change(path, "UPDATE message SET data = json_remove(data, '$.tokens') WHERE id = ?", last)
    first = count(path, name, Spent())
    change(path, "UPDATE message SET data = ? WHERE id = ?", told, last)
    second = count(path, name, first)
    assert second.all_kinds == count(path, name, second).all_kinds
    assert sum(second.all_kinds) - sum(first.all_kinds) == tokens[last]["total"]
    assert sum(second.all_kinds) == sum(one["total"] for one in tokens.values() if one)
    change(path, "DELETE FROM message WHERE id = ?", last)
    assert count(path, name, second).all_kinds == second.all_kinds


def test_a_summary_is_counted(path):
    """Though it says nothing of the present window."""
    plant(path, "compaction")
    name = session_id(path)
    query = "SELECT data FROM message WHERE session_id = ?"
    found = [json.loads(data).get("tokens") for (data,) in change(path, query, name)]
    spent = count(path, name, Spent())
    assert sum(spent.all_kinds) == sum(one["total"] for one in found if one)
    assert len(spent.counted) == sum(one is not None and one["total"] > 0 for one in found)


def test_more_messages_than_are_known_again_count_none_twice(path, monkeypatch):
    """Only the newest ones are looked at."""
    monkeypatch.setattr(spending, "MAX_COUNTED", 2)
    plant(path, "plain_then_continue")
    name = session_id(path)
    spent = count(path, name, Spent())
    assert sum(spent.all_kinds) > 0
    assert count(path, name, spent).all_kinds == spent.all_kinds


def test_without_a_database_nothing_is_spent(path):
    """The client makes it with the first session."""
    assert count(path, "ses_1", Spent()).all_kinds == [0] * 5
    plant(path, "compaction")
    assert count(path, "ses_none", Spent()).all_kinds == [0] * 5


@pytest.mark.parametrize(("tokens", "is_ended"), [(10**9, False), (50_000, True)])
def test_a_session_that_has_spent_its_reserve_is_aborted(path, tmp_path, tokens, is_ended):
    """Before its next request, by the answer to the plugin; nothing is killed."""
    plant(path, "plain_then_continue")
    name, states = session_id(path), tmp_path / "states"
    folder = states / RELAY_FOLDER / "review"
    make_private_directory(str(folder / "spending"))
    Reserve(tokens, None, {}).store(str(folder), name)
    done = subprocess.run(
        [sys.executable, "-I", "-S", hook.__file__, str(folder / "opencode.json")],
        input=json.dumps({"event": "request", "sessionID": name, "messages": []}),
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={
            "HOME": str(tmp_path),
            "XDG_DATA_HOME": str(tmp_path / "data"),
            "ULTRAMON_RELAY": "review",
            "ULTRAMON_STATE_DIR": str(states),
        },
    )
    assert done.stdout == (json.dumps({"end": REASON}, separators=(",", ":")) if is_ended else "")
    assert failure_log.read(failure_log.log_path(str(states), "opencode")) == []
    assert sum(spent_of_context(str(folder), name)[name].all_kinds) > 50_000
