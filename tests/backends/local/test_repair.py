"""Damage in the journal: what is passed over, found by the check, and saved by the repair."""

from __future__ import annotations

import random
import signal
import sqlite3
import tempfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, answer, finish, make_event, run_writer, start
from helpers.journal_fixtures import NO_WAIT, numbers, raw
from hypothesis import given
from hypothesis import strategies as st

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL, Journal
from ultramon.backends.local.journal_check import examine_journal
from ultramon.backends.local.row_shapes import new_tables
from ultramon.errors import StateCorruptError, StateError, StateSchemaError, StateWriteError
from ultramon.notices.message import Draft
from ultramon.system.findings import OK, WARNING

PAGE_BYTES = 4096


@pytest.fixture
def backend(tmp_path):
    """A store with rows in every table that a reader passes through."""
    with closing(LocalBackend(str(tmp_path))) as store:
        record = start(store)
        store.record(record, [make_event(n=n, text="x" * 500) for n in range(200)], durable=True)
        for n in range(40):
            for recipient in ("boss", "other"):
                store.queue.queue_message(Draft(recipient, f"text {n} " + "y" * 200), now=1.0)
        store.claim_handoff("handoff-1", "a", "b", now=1.0)
        store.subscribe("main", "me", now=1.0, lease_seconds=1.0)
        store.acknowledge("main", "me", store.last_cursor(), {"seen": 3})
        yield store


def change(tmp_path, statement, *values):
    with closing(sqlite3.connect(tmp_path / JOURNAL, isolation_level=None)) as stranger:
        return stranger.execute(statement, values).fetchall()


def whole_file(tmp_path):
    change(tmp_path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return bytearray((tmp_path / JOURNAL).read_bytes())


def texts(messages):
    return [message.text.split()[1] for message in messages]


BAD_PAYLOADS = {
    "no UTF-8": "cast(x'7b22ff227d' AS text)",
    "no JSON": "'{\"type\"'",
    "not an event": '\'{"type":"agent_started"}\'',
    "another type": "17",
    "deeply nested": f"'{'[' * 100_000}'",
}


@pytest.mark.parametrize("payload", BAD_PAYLOADS.values(), ids=BAD_PAYLOADS.keys())
def test_an_event_that_cannot_be_read_is_passed_over(tmp_path, backend, payload):
    """The events behind it arrive, and the cursor moves on, also where it was the last one."""
    number = "(SELECT id FROM events ORDER BY id LIMIT 1 OFFSET 5)"
    change(tmp_path, f"UPDATE events SET payload = {payload} WHERE id = {number}")
    events, cursor, _ = Journal(str(tmp_path)).tail(None, 500)
    assert numbers(events) == [n for n in range(200) if n != 5]
    change(
        tmp_path, f"UPDATE events SET payload = {payload} WHERE id = (SELECT max(id) FROM events)"
    )
    assert backend.events().cursor == cursor


BAD_TEXTS = {"no UTF-8": "cast(x'ff41' AS text)", "a number": "5", "a blob": "x'00ff'"}


@pytest.mark.parametrize("text", BAD_TEXTS.values(), ids=BAD_TEXTS.keys())
def test_a_message_that_cannot_be_read_is_a_dead_letter(tmp_path, backend, text):
    """It can be looked at and is counted; its recipient gets the others."""
    change(tmp_path, "DELETE FROM messages WHERE id > 6")
    # A column of text turns a number into one; the value of a damaged page was never stored.
    change(tmp_path, "PRAGMA writable_schema = 1")
    change(tmp_path, f"UPDATE messages SET text = {text}, sender = x'ff' WHERE id = 3")
    assert len(backend.queue.peek("boss", now=2.0)) == 2
    assert texts(backend.queue.claim("boss", now=2.0)) == ["0", "2"]
    [dead] = backend.queue.dead("boss")
    assert (dead.id, dead.last_error) == (3, "cannot be read: a value of it is damaged")
    assert dead.sender == "\\xff"
    assert [one.dead for one in backend.queue.depth(now=2.0) if one.recipient == "boss"] == [1]
    assert backend.queue.drop(3)


def test_a_consumer_whose_memory_is_damaged_begins_anew(tmp_path, backend, caplog):
    """It gets every event once more, as after any loss of its cursor, and the log says why."""
    for damage in ("memory = '{'", "memory = '[1]'", "cursor = '12x'", "cursor = x'ff'"):
        change(tmp_path, "UPDATE consumers SET cursor = NULL, memory = '{}'")
        change(tmp_path, f"UPDATE consumers SET {damage}")
        assert backend.subscribe("main", "me", now=2.0, lease_seconds=1.0) == (None, {})
    assert len(caplog.messages) == 4
    assert set(caplog.messages) == {
        "what consumer main had acknowledged cannot be read: it begins anew"
    }


def test_a_value_that_no_reader_expects_is_a_typed_error(tmp_path, backend):
    """A rejected message whose count of attempts is a text: the journal and its cure are named."""
    [message] = backend.queue.claim("boss", now=2.0, limit=1)
    change(tmp_path, "UPDATE messages SET attempts = x'ff' WHERE id = ?", message.id)
    with pytest.raises(StateCorruptError, match=f"{JOURNAL}: messages {message.id}: attempts") as e:
        backend.queue.reject(message.id, message.claim_token, "no", now=3.0)
    assert f"ultramon backend repair --state-dir {tmp_path}" in str(e.value)


def test_an_error_that_no_row_caused_stays_what_it_is(backend):
    """A mistake in a caller is not taken for damage."""
    with pytest.raises(TypeError, match="mine"), backend._journal.transaction(1.0):
        raise TypeError("mine")


def test_the_check_reads_every_column_of_every_table(tmp_path, backend):
    """A byte that is no UTF-8 is found in whichever column it is."""
    for shape in new_tables():
        columns = ", ".join(shape.columns)
        values = ["x'ff'" if str in kinds else "1" for kinds in shape.kinds]
        change(tmp_path, f"DELETE FROM {shape.table}")
        change(tmp_path, f"INSERT INTO {shape.table} ({columns}) VALUES ({', '.join(values)})")
        [finding] = examine_journal(str(tmp_path))
        assert (finding.check, finding.status) == ("journal", WARNING)
        assert f"1 rows cannot be read and are passed over: {shape.table} " in finding.message
        assert "ultramon backend repair" in finding.cure
        change(tmp_path, f"DELETE FROM {shape.table}")


def test_a_repair_keeps_numbers_keys_and_cursors(tmp_path, backend):
    """A bad row goes, all others keep their numbers, and consumers continue where they were."""
    before = {
        shape.table: change(tmp_path, f"SELECT * FROM {shape.table}") for shape in new_tables()
    }
    change(tmp_path, "UPDATE messages SET text = cast(x'ff' AS text) WHERE id = 3")
    change(tmp_path, "UPDATE messages SET facts = 'none' WHERE id = 4")
    done = backend._journal.repair(1.0)
    assert (done.bad, done.damaged) == (1, [])
    assert done.shown == ["messages 3: text is no UTF-8 text"]
    assert all(finding.status == OK for finding in examine_journal(str(tmp_path)))
    for table, rows in before.items():
        kept = [row for row in rows if (table, row[0]) != ("messages", 3)]
        assert change(tmp_path, f"SELECT * FROM {table}") == kept
    cursor, memory = backend.subscribe("main", "you", now=9.0, lease_seconds=1.0)
    assert memory == {"seen": 3}
    assert backend.events(cursor).events == []
    backend.append_events([make_event(n=500)])
    assert numbers(backend.events(cursor).events) == [500]
    last = max(row[0] for row in before["messages"])
    assert backend.queue.queue_message(Draft("boss", "new"), now=9.0) == last + 1
    # The damaged one is as it was, and can be read by what reads a database.
    with closing(sqlite3.connect(done.kept_as)) as kept:
        assert [*kept.execute("SELECT cast(text AS blob) FROM messages WHERE id = 3")] == [
            (b"\xff",)
        ]


def test_a_repair_reads_around_damaged_pages(tmp_path, backend):
    """Whichever page is random bytes, all rows on the others are kept, and writers continue."""
    backend.close()
    good = whole_file(tmp_path)
    chance = random.Random(5)
    total = {row[0] for row in change(tmp_path, "SELECT id FROM events")}
    kept = []
    for page in range(0, len(good) // PAGE_BYTES, 2):
        bad = bytearray(good)
        bad[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = chance.randbytes(PAGE_BYTES)
        (tmp_path / JOURNAL).write_bytes(bad)
        Journal(str(tmp_path)).repair(1.0)
        assert [finding.status for finding in examine_journal(str(tmp_path))] == [OK]
        stored = {row[0] for row in change(tmp_path, "SELECT id FROM events")}
        assert stored <= total
        kept.append(len(stored))
        with closing(LocalBackend(str(tmp_path))) as store:
            store.append_events([make_event("later")])
            assert store.events().events[-1]["agentId"] == "later"
            assert store.queue.queue_message(Draft("boss", "new"), now=9.0) > 80
        store.close()
        for name in tmp_path.glob(f"{JOURNAL}-*"):
            name.unlink()
    # A page holds a few events; only the root of their tree may cost more of them.
    few = [count for count in kept if len(total) - count <= 10]
    assert len(few) >= len(kept) - 1


@pytest.mark.parametrize("size", [0, 1, 100, 512, 4096, 4097, 20_000])
def test_a_journal_that_was_cut_off_is_repaired(tmp_path, backend, size):
    """What lies before the end is kept if it can be, and the store works again."""
    backend.close()
    data = whole_file(tmp_path)
    (tmp_path / JOURNAL).write_bytes(data[:size])
    with closing(Journal(str(tmp_path))) as journal:
        journal.repair(1.0)
    assert backend.record(start(backend, "b"), [make_event("b")], durable=True)
    assert [finding.status for finding in examine_journal(str(tmp_path))] == [OK]


@cache
def small_journal():
    """The bytes of a journal with a row or more in each table, on a page each or two."""
    with tempfile.TemporaryDirectory() as path:
        with closing(LocalBackend(path)) as store:
            store.record(start(store), [make_event(n=n) for n in range(20)], durable=True)
            for n in range(10):
                store.queue.queue_message(Draft("boss", f"text {n}"), now=1.0)
            store.claim_handoff("handoff-1", "a", "b", now=1.0)
            store.subscribe("main", "me", now=1.0, lease_seconds=1.0)
        return bytes(whole_file(Path(path)))


@given(
    damage=st.lists(
        st.tuples(st.floats(0.0, 1.0, exclude_max=True), st.binary(min_size=1, max_size=300)),
        min_size=1,
        max_size=6,
    )
)
def test_damage_anywhere_is_a_typed_error_and_can_be_repaired(damage):
    """Readers return what is there or say what is wrong; after a repair the store works."""
    bad = bytearray(small_journal())
    for share, data in damage:
        first = int(share * len(bad))
        bad[first : first + len(data)] = data[: len(bad) - first]
    with tempfile.TemporaryDirectory() as path, closing(LocalBackend(path)) as store:
        (Path(path) / JOURNAL).write_bytes(bad)
        (Path(path) / JOURNAL).chmod(0o600)
        for read in (
            store.events,
            lambda: store.queue.peek("boss", now=2.0),
            store.queue.dead,
            store.last_cursor,
        ):
            with suppress(StateError):
                read()
        with closing(Journal(path)) as journal:
            try:
                journal.repair(1.0)
            except StateSchemaError:
                return  # the damage says that a newer version wrote it
        found = list(examine_journal(path))
        assert [finding.status for finding in found] == [OK], found
        store.append_events([make_event("later")])
        assert store.events(limit=1000).events[-1]["agentId"] == "later"
        assert store.queue.queue_message(Draft("boss", "new"), now=9.0)


def test_a_writer_repairs_what_it_meets(tmp_path, backend, caplog):
    """Damage on a writer's way costs the rows on that page; messages and the rest stay."""
    backend.close()
    data = whole_file(tmp_path)
    [(root,)] = change(
        tmp_path, "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_events_1'"
    )
    data[(root - 1) * PAGE_BYTES : root * PAGE_BYTES] = b"\xee" * PAGE_BYTES
    (tmp_path / JOURNAL).write_bytes(data)
    record = backend.load(AGENT).record
    assert backend.record(record, [make_event(n=900)], durable=True) is False
    assert backend.record(record, [make_event(n=900)], durable=True) is True
    assert numbers(backend.events().events) == [*range(200), 900]
    assert len(backend.queue.peek("boss", now=2.0)) == 40
    assert "set aside as" in caplog.messages[0]
    assert "kept 200 events, 1 handoff_claims, 1 consumers, 80 messages" in caplog.messages[0]


def test_a_repair_waits_for_a_writer_and_refuses_beyond(tmp_path, backend):
    """While another process holds the journal nothing is changed, and no file is left behind."""
    before = sorted(tmp_path.iterdir())
    with raw(backend._journal) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateWriteError, match="cannot be repaired: database is locked"):
            Journal(str(tmp_path)).repair(0.1)
    assert sorted(tmp_path.iterdir()) == before


def test_writers_are_refused_during_a_repair(tmp_path, backend):
    """A row that was stored now would not be in the new journal: it waits as for any writer."""
    mark = Path(f"{backend._journal.path}.repair")
    holder = run_writer(tmp_path, "hold_file", str(mark))
    assert answer(holder) == "held"
    record = backend.load(AGENT).record
    with pytest.raises(StateWriteError, match="is being repaired"):
        backend.append_events([make_event(n=900)])
    assert backend.record(record, [make_event(n=900)], durable=True) is False
    assert len(backend.events().events) == 200
    with pytest.raises(StateWriteError, match="locked by another process"):
        Journal(str(tmp_path)).repair(0.1)
    finish(holder)
    assert mark.exists()
    assert backend.record(record, [make_event(n=900)], durable=True) is True
    assert not mark.exists()


def test_a_repair_that_is_killed_loses_nothing(tmp_path, backend):
    """Killed at any of its steps it leaves the journal as it was or repaired; the next one ends."""
    change(tmp_path, "UPDATE messages SET text = cast(x'ff' AS text) WHERE id = 3")
    backend.close()
    for step in range(1, 100):
        victim = run_writer(tmp_path, "repair_and_die", str(step))
        victim.stdout.read()
        finish(victim)
        with closing(LocalBackend(str(tmp_path))) as store:
            assert numbers(store.events().events)[:200] == [*range(200)]
            assert len(store.queue.peek("other", now=2.0)) == 40
            store.append_events([make_event("later", n=step)])
        if victim.returncode == 0:
            break
        assert victim.returncode == -signal.SIGKILL
    assert step > 5
    assert [finding.status for finding in examine_journal(str(tmp_path))] == [OK]
    assert [*tmp_path.glob("*.repair")] == []


def test_connections_that_are_open_read_and_write_the_new_one(tmp_path, backend):
    """A repair changes the journal under them: nothing has to be started again."""
    with closing(Journal(str(tmp_path))) as other:
        other.append([make_event("other", n=1)], NO_WAIT)
        backend._journal.repair(1.0)
        other.append([make_event("other", n=2)], NO_WAIT)
        assert numbers(other.tail(None, 500)[0])[200:] == [1, 2]
    assert numbers(backend.events().events)[200:] == [1, 2]
