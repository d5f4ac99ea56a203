"""Journals of other versions: older ones are upgraded by writers alone, newer ones left alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from helpers import DATA
from helpers.fault_writer import make_event
from helpers.journal_fixtures import NO_WAIT, journal, numbers, raw  # noqa: F401 - a fixture
from helpers.requirements import missing, require_root, require_tool, unmount

from ultramon.backends.credentials import Credential
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.claims import JournalClaims
from ultramon.backends.local.credentials import JournalCredentials
from ultramon.backends.local.journal import JOURNAL, Journal
from ultramon.backends.local.queue import JournalQueue
from ultramon.backends.local.registry import JournalRegistry
from ultramon.backends.local.schema import CREDENTIALS_VERSION, QUEUE_VERSION, SCHEMA_VERSION
from ultramon.errors import StateSchemaError, StateWriteError
from ultramon.notices.message import Draft

JOURNALS = DATA / "journals"
VERSIONS = sorted(JOURNALS.glob("*.sqlite3"))
VERSION_1 = JOURNALS / "version-1.sqlite3"
VERSION_3 = JOURNALS / "version-3.sqlite3"
TOKEN_HASH = "0" * 64


@pytest.fixture(params=VERSIONS, ids=lambda path: path.stem)
def version(request, journal):
    """A journal of each older version, in the place of the one that a test works on."""
    put(request.param, journal)
    return request.param


def put(version, journal):
    shutil.copyfile(version, journal.path)
    os.chmod(journal.path, 0o600)


def number_of(version):
    return int(version.stem.removeprefix("version-"))


def test_a_newer_journal_is_refused_and_unchanged(journal):
    """A downgrade says so and writes nothing."""
    journal.append([make_event(n=1)], NO_WAIT)
    journal.close()
    with raw(journal) as newer:
        newer.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    for call in (lambda: journal.append([make_event(n=2)], NO_WAIT), lambda: journal.tail(None, 1)):
        with pytest.raises(StateSchemaError, match="written by a newer ultramon"):
            call()
    with raw(journal) as stored:
        assert stored.execute("SELECT count(*) FROM events").fetchone() == (1,)


def test_an_older_journal_is_brought_up_to_date(journal, version):
    """Events, cursors, keys, claims and consumers stay, and what came later becomes possible."""
    events, cursor, _ = journal.tail(None, 2)
    assert numbers(events) == [0, 1]
    assert numbers(journal.tail(cursor, 10)[0]) == [2]
    journal.append([*events, {**events[0], "n": 3}], NO_WAIT)
    assert numbers(journal.tail(cursor, 10)[0]) == [2, 3]
    claims = JournalClaims(journal)
    assert claims.pending_claims() == []
    assert claims.claim_handoff("handoff-1", "scout-1", "scout-3", now=0.0) == "scout-2"
    assert (
        claims.claim_handoff("handoff-2", "scout-1", "scout-3", now=0.0, claimant="a process")
        == "scout-3"
    )
    assert [claim.claimant for claim in claims.pending_claims()] == ["a process"]
    left = (None, {}) if version == VERSION_1 else (cursor, {"lives": {}})
    with closing(LocalBackend(os.path.dirname(journal.path))) as backend:
        assert backend.subscribe("main", "fleet-1", now=0.0, lease_seconds=30.0) == left
    queue = JournalQueue(journal)
    message_id = queue.queue_message(Draft("scout-1", "hello"), now=0.0)
    assert [message.id for message in queue.peek("scout-1", now=1.0)] == [message_id]
    credentials = JournalCredentials(journal)
    credentials.mint(Credential(TOKEN_HASH, "scout-1", 2, "boss", 0.0, 9.0))
    assert credentials.find(TOKEN_HASH) == (TOKEN_HASH, "scout-1", 2, "boss", 0.0, 9.0)
    with raw(journal) as stored:
        assert stored.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert stored.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_look_at_what_an_older_journal_never_had_finds_none(journal, version):
    """Who only reads messages, credentials or claims, or polls, leaves the journal as it is."""
    assert JournalCredentials(journal).find(TOKEN_HASH) is None
    assert JournalClaims(journal).pending_claims() == []
    if number_of(version) < QUEUE_VERSION:
        queue = JournalQueue(journal)
        assert queue.peek("scout-1", now=0.0) == queue.dead() == queue.depth(now=0.0) == []
        assert queue.claim("scout-1", now=0.0) == []
    journal.close()
    assert Path(journal.path).read_bytes() == version.read_bytes()


def test_messages_and_registrations_of_an_older_journal_stay(journal):
    """They are found by a look, and after the journal was brought up to date."""
    put(VERSION_3, journal)
    queue, registry = JournalQueue(journal), JournalRegistry(journal)
    for _ in range(2):
        (message,) = queue.peek("scout-2", now=0.0)
        assert message[:4] == (1, "scout-2", "scout-1", "context_monitor")
        assert message.text == "stored by version 3"
        (registration,) = registry.registrations()
        assert (registration.agent_id, registration.notify_id) == ("scout-1", "scout-2")
        journal.append([make_event(n=9)], NO_WAIT)


def test_credentials_of_an_older_journal_stay(journal):
    """They are found by a look, and after the journal was brought up to date."""
    put(JOURNALS / "version-4.sqlite3", journal)
    for _ in range(2):
        found = JournalCredentials(journal).find("4" * 64)
        assert found == ("4" * 64, "scout-2", 1, "boss", 0.0, 9.0)
        journal.append([make_event(n=9)], NO_WAIT)


def test_a_look_leaves_an_older_journal_as_it_is(journal):
    """A reader migrates nothing: the first release can still write what it began."""
    put(VERSION_1, journal)
    assert numbers(journal.tail(None, 10)[0]) == [0, 1, 2]
    journal.close()
    assert Path(journal.path).read_bytes() == VERSION_1.read_bytes()


def test_a_look_needs_no_write_access(tmp_path):
    """Another container reads, through a read-only mount, what an older ultramon writes here."""
    require_root()
    mount = require_tool("mount")
    here, there = tmp_path / "here", tmp_path / "there"
    for directory in (here, there):
        directory.mkdir()
    shutil.copyfile(VERSION_1, here / JOURNAL)
    os.chmod(here / JOURNAL, 0o600)
    with closing(Journal(str(here))) as writer, closing(Journal(str(there))) as reader:
        assert len(writer.tail(None, 10)[0]) == 3
        if subprocess.run([mount, "--bind", here, there], check=False).returncode:
            missing("no mount here")
        try:
            subprocess.run([mount, "-o", "remount,bind,ro", there], check=True)
            assert numbers(reader.tail(None, 10)[0]) == [0, 1, 2]
            with pytest.raises(StateWriteError, match="readonly"):
                reader.append([make_event(n=3)], NO_WAIT)
        finally:
            reader.close()
            unmount(there)


def test_a_look_at_a_journal_that_is_being_made_finds_nothing(journal):
    """The file is there before its tables; a process that looked may write all the same."""
    Path(journal.path).touch(mode=0o600)
    assert journal.tail(None, 10) == ([], "0", [])
    assert os.path.getsize(journal.path) == 0
    journal.append([make_event(n=0)], NO_WAIT)
    assert numbers(journal.tail(None, 10)[0]) == [0]


@pytest.mark.parametrize("number", range(1, SCHEMA_VERSION))
def test_every_older_version_has_its_journal(number):
    """The files that upgrades are tested with were made by the versions of their names."""
    path = JOURNALS / f"version-{number}.sqlite3"
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as stored:
        assert stored.execute("PRAGMA user_version").fetchone() == (number,)
        tables = stored.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for table, since in (
        ("consumers", 2),
        ("messages", QUEUE_VERSION),
        ("credentials", CREDENTIALS_VERSION),
    ):
        assert ((table,) in tables) == (number >= since), table


def test_an_upgraded_and_a_new_journal_are_alike(tmp_path, journal, version):
    """Whichever version a journal began with, its tables are the same in the end."""

    def tables(path):
        with closing(sqlite3.connect(path)) as stored:
            return stored.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()

    (tmp_path / "new").mkdir()
    with closing(Journal(str(tmp_path / "new"))) as new:
        for each in (journal, new):
            each.append([make_event(n=9)], NO_WAIT)
        assert tables(journal.path) == tables(new.path)
