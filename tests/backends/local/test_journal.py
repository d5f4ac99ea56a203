"""The journal: each event once, in commit order, for any writers and after any damage."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, answer, finish, make_event, run_writer, start
from helpers.journal_fixtures import NO_WAIT, journal, numbers, raw  # noqa: F401 - a fixture

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL, Journal
from ultramon.errors import StateCorruptError, StateWriteError
from ultramon.notices.message import Draft
from ultramon.state.event_keys import event_key


def test_an_event_is_stored_once_under_its_key(journal):
    """The same key again changes nothing, also within one call."""
    first = make_event(n=1)
    journal.append([first, make_event(n=1)], NO_WAIT)
    journal.append([make_event(n=1), make_event(n=2)], NO_WAIT)
    events, *_ = journal.tail(None, 100)
    assert numbers(events) == [1, 2]
    assert events[0] == first


@pytest.mark.parametrize(
    "change",
    [{"agentId": "b"}, {"generation": 2}, {"epoch": 2}, {"type": "t"}, {"level": "l"}, {"n": 1}],
    ids=str,
)
def test_every_part_of_the_key_tells_events_apart(change):
    """Who, which filling, what and how often: each alone makes another event."""
    assert event_key(make_event()) != event_key(make_event() | change)


def test_a_cursor_continues_behind_the_page_it_came_with(journal):
    """Pages join without a gap or a repetition, and the end gives an empty page."""
    journal.append([make_event(n=n) for n in range(7)], NO_WAIT)
    seen, cursor = [], None
    while True:
        page, cursor, _ = journal.tail(cursor, 3)
        if not page:
            break
        assert len(page) <= 3
        seen += numbers(page)
    assert seen == list(range(7))
    assert journal.tail(cursor, 3) == ([], cursor, [])
    journal.append([make_event(n=7)], NO_WAIT)
    assert numbers(journal.tail(cursor, 3)[0]) == [7]


def test_reading_makes_no_journal(journal):
    """A look at a directory without a journal leaves none behind."""
    assert journal.tail(None, 10) == ([], "0", [])
    assert journal.prune(1e12) == 0
    assert not os.path.exists(journal.path)


def test_a_cursor_outlives_the_journal_it_came_from(journal):
    """After a quarantine the events of the new journal lie behind every older cursor."""
    journal.append([make_event(n=n) for n in range(50)], NO_WAIT)
    _, cursor, _ = journal.tail(None, 100)
    os.rename(journal.path, f"{journal.path}.old")
    journal.append([make_event(n=50)], NO_WAIT)
    assert numbers(journal.tail(cursor, 100)[0]) == [50]


def test_six_writers_and_a_reader_miss_nothing(tmp_path):
    """A tail that reads while six processes commit sees each of 2,400 events once, in order."""
    count = 399
    writers = [run_writer(tmp_path, "append", f"w{n}", count) for n in range(6)]
    for writer in writers:
        writer.stdin.write("begin\n")
        writer.stdin.close()
    seen, cursor = [], None
    with closing(Journal(str(tmp_path))) as journal:
        while True:
            ended = all(writer.poll() is not None for writer in writers)
            page, cursor, _ = journal.tail(cursor, 50)
            seen += [(event["agentId"], event["n"]) for event in page]
            if ended and not page:
                break
    for writer in writers:
        writer.stdout.close()
    assert [writer.wait() for writer in writers] == [0] * 6
    assert len(seen) == 6 * count
    for number in range(6):
        assert [n for agent, n in seen if agent == f"w{number}"] == list(range(count))


def test_a_busy_journal_is_a_write_error_and_stores_nothing(journal):
    """While somebody else writes, an append gives up typed; afterwards it works."""
    journal.append([make_event(n=0)], NO_WAIT)
    with raw(journal) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateWriteError, match="locked"):
            journal.append([make_event(n=1)], NO_WAIT)
        assert numbers(journal.tail(None, 10)[0]) == [0]
    journal.append([make_event(n=2)], NO_WAIT)
    assert numbers(journal.tail(None, 10)[0]) == [0, 2]


def test_a_crossing_waits_in_the_state_and_is_stored_once(tmp_path, journal):
    """A busy journal leaves the events in `pending`; passed again they are stored exactly once."""
    backend = LocalBackend(str(tmp_path))
    record = start(backend)
    journal.append([make_event("other")], NO_WAIT)
    crossing = [make_event(n=1), make_event(n=2)]
    with raw(journal) as other:
        other.execute("BEGIN IMMEDIATE")
        assert backend.record(record, crossing, durable=True) is False
        assert backend.load(AGENT).record.pending == crossing
    for _ in range(2):
        assert backend.record(record, crossing, durable=True) is True
    assert backend.load(AGENT).record.pending is None
    assert [e["n"] for e in backend.events().events if e["agentId"] == AGENT] == [1, 2]


def test_a_thread_with_more_patience_keeps_no_agent_waiting(tmp_path):
    """While another thread has the journal, a save leaves its events in `pending`."""
    backend = LocalBackend(str(tmp_path))
    record = start(backend)
    crossing = [make_event(n=1)]
    with ThreadPoolExecutor(1) as agent, backend._journal.transaction(1.0):
        assert not agent.submit(backend.record, record, crossing, durable=True).result(10)
    assert backend.load(AGENT).record.pending == crossing
    assert backend.record(record, crossing, durable=True)
    assert numbers(backend.events().events) == [1]
    backend.close()


GARBAGE = {
    "text": b"this is no database, however long it may be" * 200,
    "broken pages": b"SQLite format 3\0" + b"\xff" * 8176,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_garbage_journal_is_set_aside_by_the_next_writer(tmp_path, journal, garbage):
    """Events wait once, the evidence is kept, and the next save stores them in a new journal."""
    backend = LocalBackend(str(tmp_path))
    record = start(backend)
    Path(journal.path).write_bytes(garbage)
    with pytest.raises(StateCorruptError):
        journal.tail(None, 10)
    assert backend.record(record, [make_event(n=1)], durable=True) is False
    (kept,) = tmp_path.glob(f"{JOURNAL}.corrupt-*")
    assert kept.read_bytes() == garbage
    assert backend.record(record, [make_event(n=1)], durable=True) is True
    assert numbers(journal.tail(None, 10)[0]) == [1]


@pytest.mark.parametrize("kind", ["symlink", "directory", "FIFO"])
def test_a_planted_journal_is_set_aside_and_its_target_untouched(tmp_path, kind):
    """SQLite never opens what is not a plain file of this user."""
    backend = LocalBackend(str(tmp_path / "state"))
    record = start(backend)
    victim, path = tmp_path / "victim", tmp_path / "state" / JOURNAL
    victim.write_bytes(b"")
    {
        "symlink": lambda: path.symlink_to(victim),
        "directory": path.mkdir,
        "FIFO": lambda: os.mkfifo(path),
    }[kind]()
    assert backend.record(record, [make_event(n=1)], durable=True) is False
    assert backend.record(record, [make_event(n=1)], durable=True) is True
    assert numbers(backend.events().events) == [1]
    assert victim.read_bytes() == b""


def test_a_copy_by_hard_links_costs_nothing(tmp_path, caplog):
    """A backup gives every file a second name: nothing is set aside, and the log says it once."""
    state = tmp_path / "state"
    backend = LocalBackend(str(state))
    record = start(backend)
    assert backend.record(record, [make_event(n=1)], durable=True)
    backend.queue.queue_message(Draft("boss", "hello"), now=1.0)
    subprocess.run(["cp", "-al", state, tmp_path / "copy"], check=True)
    assert backend.record(record, [make_event(n=2)], durable=True)
    start(backend, "another")
    with closing(LocalBackend(str(state))) as later:
        for agent_id in ("b", "c"):
            start(later, agent_id)
        assert [message.text for message in later.queue.peek("boss", now=2.0)] == ["hello"]
        assert numbers(e for e in later.events().events if e["agentId"] == AGENT) == [1, 2]
    assert list(tmp_path.rglob("*.corrupt-*")) == []
    said = [line for line in caplog.messages if "is no backup" in line]
    assert [line.split()[2] for line in said] == [str(state / JOURNAL)]
    # A state is replaced: the copy keeps the one it had.
    assert (tmp_path / "copy" / "subagents" / f"{AGENT}.json").stat().st_nlink == 1


def test_a_good_journal_of_others_is_not_set_aside(tmp_path, journal):
    """A process that comes late to a quarantine finds the new journal and leaves it alone."""
    Path(journal.path).write_bytes(GARBAGE["text"])
    late = Journal(str(tmp_path))
    for each in (journal, late):
        with pytest.raises(StateCorruptError):
            each.append([make_event(n=0)], NO_WAIT)
    error = StateCorruptError("here", "it is malformed")
    said = journal.set_aside(error)
    assert "it is malformed" in said
    assert "; set aside as " in said
    journal.append([make_event(n=1)], NO_WAIT)
    assert late.set_aside(error).endswith("; it can be read again")
    late.append([make_event(n=2)], NO_WAIT)
    assert numbers(journal.tail(None, 10)[0]) == [1, 2]
    late.close()


def test_a_replaced_journal_is_opened_again(tmp_path, journal):
    """A writer notices that the file under its connection is another one."""
    journal.append([make_event(n=1)], NO_WAIT)
    before = len(os.listdir("/proc/self/fd"))
    os.rename(tmp_path / JOURNAL, tmp_path / "moved")
    journal.append([make_event(n=2)], NO_WAIT)
    assert len(os.listdir("/proc/self/fd")) == before
    with closing(Journal(str(tmp_path))) as another:
        assert numbers(another.tail(None, 10)[0]) == [2]


def test_giving_up_an_unknown_name_makes_no_journal(journal):
    """A fleet that never got a lease leaves nothing behind."""
    LocalBackend(os.path.dirname(journal.path)).unsubscribe("main", "fleet-1")
    assert not os.path.exists(journal.path)


def test_standing_by_writes_nothing(tmp_path):
    """A fleet that asks in vain wakes nobody who watches the change mark."""
    backend = LocalBackend(str(tmp_path))
    backend.subscribe("main", "fleet-1", now=0.0, lease_seconds=30.0)
    mark = backend.change_mark()
    assert backend.subscribe("main", "fleet-2", now=1.0, lease_seconds=30.0) is None
    assert backend.change_mark() == mark
    backend.close()


def test_a_missing_journal_has_a_mark(tmp_path):
    """Looking at the mark makes no journal, and the first event changes it."""
    backend = LocalBackend(str(tmp_path / "state"))
    assert backend.change_mark() == (None, None)
    assert not (tmp_path / "state").exists()
    backend.append_events([make_event()])
    assert None not in backend.change_mark()
    backend.close()


def test_prune_deletes_only_older_events_and_cursors_stay_valid(journal):
    """What is older than the time goes; later events still come behind old cursors."""
    journal.append([make_event(n=1, occurredAt="2026-01-01T00:00:00.000Z")], NO_WAIT)
    journal.append([make_event(n=2, occurredAt="2026-01-02T00:00:00.000Z")], NO_WAIT)
    _, cursor, _ = journal.tail(None, 10)
    assert journal.prune(1_767_312_000.0) == 1
    assert numbers(journal.tail(None, 10)[0]) == [2]
    assert journal.prune(1e11) == 1
    journal.append([make_event(n=3)], NO_WAIT)
    assert numbers(journal.tail(cursor, 10)[0]) == [3]


def test_one_of_two_processes_wins_each_claim(tmp_path):
    """However two successors race, both learn the same one winner of every handoff."""
    claimants = {name: run_writer(tmp_path, "claim", name, 100) for name in ("left", "right")}
    for claimant in claimants.values():
        claimant.stdin.write("begin\n")
        claimant.stdin.flush()
    holders = [answer(claimant) for claimant in claimants.values()]
    for claimant in claimants.values():
        finish(claimant)
    assert holders[0] == holders[1]
    assert len(holders[0]) == 100
    assert set(holders[0]) <= set(claimants)


def test_a_claim_may_be_repeated_by_its_holder_only(tmp_path):
    """The winner learns again that it won, everybody else who did."""
    backend = LocalBackend(str(tmp_path / "state"))
    for successor_id in ("first", "second", "first"):
        assert backend.claim_handoff("h", "pred", successor_id, now=0.0) == "first"
    backend.close()


def test_the_journal_and_its_side_files_are_private(tmp_path, journal):
    """Journal, write-ahead log and shared memory have mode 0600 under any umask."""
    before = os.umask(0)
    try:
        journal.append([make_event()], NO_WAIT)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {JOURNAL: 0o600, f"{JOURNAL}-wal": 0o600, f"{JOURNAL}-shm": 0o600}


def test_a_directory_that_is_gone_is_a_write_error(tmp_path):
    """The adapter's error is typed, never SQLite's or the system's own."""
    with pytest.raises(StateWriteError, match="cannot be opened"):
        Journal(str(tmp_path / "missing")).append([make_event()], NO_WAIT)


def test_a_second_opening_in_one_process_keeps_the_locks_of_the_first(tmp_path, journal):
    """A stranger that leaves does not take itself for the last one and delete the log."""
    journal.append([make_event(n=0)], NO_WAIT)
    with closing(Journal(str(tmp_path))) as second:
        second.tail(None, 1)
    assert finish(run_writer(tmp_path, "append_once", 5.0)) == [[]]
    assert (tmp_path / f"{JOURNAL}-wal").exists()
    assert len(journal.tail(None, 10)[0]) == 2


def test_a_record_without_events_touches_no_journal(tmp_path):
    """Only crossings pay for SQLite."""
    backend = LocalBackend(str(tmp_path / "state"))
    record = start(backend)
    record.seq += 1
    assert backend.record(record, [], durable=False) is True
    assert not (tmp_path / "state" / JOURNAL).exists()
    assert backend.load(AGENT).record.pending is None
