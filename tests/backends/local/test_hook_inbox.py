"""The flag that makes a hook look: never missing, never lost, whatever is killed or busy."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers.hooked_session import SESSION, HookedSession, encoded, tokens_at
from helpers.notified_session import (
    HEADLESS,
    LINE,
    TOLD_EVENTS,
    any_call,
    backend,  # noqa: F401 - a fixture
    begun,
    flag,
    lease_ends,
    level_facts,
    lines,
    notify,
    session,  # noqa: F401 - a fixture
    waiting,
)
from helpers.requirements import require_tool

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL, Journal
from ultramon.backends.local.message_rows import insert_message
from ultramon.backends.local.queue import JournalQueue
from ultramon.notices.message import Draft
from ultramon.notices.texts import CONTEXT
from ultramon.routing import queue_message
from ultramon.system.processes import this_machine


def test_nothing_is_looked_for_without_a_flag(session, backend):
    """A locked journal is not even noticed."""
    with Journal(str(session.state)).transaction(1.0):
        for event in TOLD_EVENTS:
            assert any_call(session, event).text == ""
    assert session.failures() == []


def test_a_busy_journal_delays_a_notice(session, backend):
    """The hook waits 50 ms, the flag stays, the next call tells it."""
    notify(backend)
    with Journal(str(session.state)).transaction(1.0):
        assert any_call(session).text == ""
    assert flag(session).exists()
    assert lines(any_call(session)) == [LINE.format("scout-1")]
    (problem,) = session.failures()
    assert problem.startswith("notices wait: ")


def test_a_notice_that_is_being_queued_is_never_left_without_its_flag(session, backend):
    """Flag first, then the commit: a hook in between leaves the flag alone."""
    notify(backend)
    any_call(session)
    assert not flag(session).exists()
    journal = Journal(str(session.state))
    with journal.transaction(1.0) as connection:
        draft = Draft(
            SESSION, "words", "scout-1", category=CONTEXT, delivery="urgent", facts=level_facts()
        )
        insert_message(connection, draft, time.time())
        assert flag(session).exists()
        assert any_call(session).text == ""
        assert flag(session).exists()
    journal.close()
    assert lines(any_call(session)) == [LINE.format("scout-1")]


@pytest.mark.parametrize("name", ["an ü and a 'quote'", "\udcff", "file:x?mode=ro#%41"])
def test_a_flag_lies_beside_its_journal_whatever_that_is_called(tmp_path, name):
    """A path need not be UTF-8, and is no URL; text that is read afterwards is text."""
    directory = tmp_path / name
    directory.mkdir(0o700)
    with closing(Journal(str(directory))) as journal:
        queue = JournalQueue(journal)
        queue.queue_message(Draft("boss", "zażółć"), now=1.0)
        assert [message.text for message in queue.peek("boss", now=1.0)] == ["zażółć"]
    assert sorted(os.listdir(directory)) == ["inbox", "journal.sqlite3"]
    assert (directory / "inbox" / "boss").stat().st_mode & 0o777 == 0o600
    assert directory.joinpath("inbox").stat().st_mode & 0o777 == 0o700


def test_a_flag_that_cannot_be_raised_refuses_the_message(session, backend):
    """What could never be delivered is not taken."""
    flag(session).parent.write_text("no folder")
    with pytest.raises(OSError, match="inbox"):
        notify(backend)
    assert waiting(backend) == []


def test_a_resumed_session_looks_even_without_a_flag(session, backend):
    """A power cut may keep the notice and lose the flag."""
    notify(backend)
    flag(session).unlink()
    assert any_call(session).text == ""
    session.call("SessionStart", source="resume")
    assert lines(any_call(session)) == [LINE.format("scout-1")]
    assert not flag(session).exists()


def test_a_journal_that_was_set_aside_hides_no_later_message(session, backend):
    """In a new one the numbers begin again."""
    for _ in range(5):
        queue_message(SESSION, "words", sender="boss", backend=backend)
    assert "5 messages" in any_call(session).text
    backend.close()
    (session.state / JOURNAL).write_bytes(b"garbage" * 1000)
    flag(session).touch()
    os.utime(flag(session), (0, 0))
    assert any_call(session).text == ""
    assert "set aside as" in session.failures()[-1]
    queue_message(SESSION, "words", sender="boss", backend=backend)
    assert "1 message from boss" in any_call(session).text


def test_the_flag_goes_with_its_agent(session, backend):
    """Prune leaves none behind."""
    notify(backend)
    session.call("SessionEnd", reason="other")
    assert flag(session).exists()
    later = time.time() + 9_999
    assert backend.prune(
        agents_before=later, events_before=0.0, now=later, machine=this_machine(), dry_run=False
    ) == [SESSION]
    assert not flag(session).exists()


# --- parallel, killed


def test_parallel_calls_tell_each_notice_once(session, backend):
    """Eight hooks at one moment, three times: nothing is missing, nothing comes twice."""
    names = [f"scout-{number}" for number in range(24)]
    said = []
    for round_ in range(3):
        for name in names[round_ * 8 : round_ * 8 + 8]:
            notify(backend, sender=name)
        queue_message(SESSION, "words", sender="boss", backend=backend)
        calls = [f"toolu_{round_}_{number}" for number in range(8)]
        session.reply(tokens_at(90), *calls)
        processes = [session.start() for _ in calls]
        gate = threading.Barrier(len(calls))

        def finish(process, call, gate=gate):
            gate.wait()
            payload = session.payload("PostToolUse", tool_use_id=call, tool_name="Read")
            out, err = process.communicate(encoded(payload))
            assert (process.returncode, err) == (0, b"")
            return json.loads(out)["hookSpecificOutput"]["additionalContext"] if out else ""

        with ThreadPoolExecutor(len(calls)) as pool:
            texts = list(pool.map(finish, processes, calls))
        said += [line for text in (*texts, any_call(session).text) for line in text.split("\n")]
    while flag(session).exists():  # somebody was too busy for 50 ms, and has noted it
        assert session.failures()
        lease_ends(session)
        said += any_call(session).text.split("\n")
    notices = [line for line in said if "Context window of" in line]
    assert set(notices) == set(map(LINE.format, names))
    if not session.failures():
        assert len(notices) == len(names)
        assert len([line for line in said if "from boss" in line]) == 3


STEPS = "write,pwrite64,fdatasync,utimensat,unlink"


def traced(session, log, *inject):
    """Run one call under strace; return what it said, and its calls since it saw the flag."""
    call = f"toolu_{log.name}"
    session.reply(tokens_at(90), call)
    before = [require_tool("strace"), "-qq", "-e", f"trace={STEPS},newfstatat,lstat"]
    process = session.start(before=[*before, "-o", str(log), *inject])
    payload = session.payload("PostToolUse", tool_use_id=call, tool_name="Bash")
    out, _ = process.communicate(encoded(payload))
    counts, steps, has_seen = {}, [], False
    for line in log.read_text().splitlines():
        found = re.match(r"(\w+)\(", line)
        if found is None:
            continue
        name = found[1]
        counts[name] = counts.get(name, 0) + 1
        has_seen = has_seen or f"/inbox/{SESSION}" in line
        if has_seen and name in STEPS.split(","):
            steps.append((name, counts[name]))
    return out, steps


@pytest.fixture
def queued(tmp_path):
    """Make sessions with a notice and a message of another agent, each a copy of the first."""
    original = tmp_path / "original"
    original.mkdir()
    session = begun(original)
    with closing(LocalBackend(str(session.state))) as backend:
        notify(backend)
        queue_message(SESSION, "words", sender="boss", backend=backend)
    number = itertools.count()

    def make():
        path = tmp_path / f"copy-{next(number)}"
        shutil.copytree(original, path)
        return HookedSession(path, **HEADLESS)

    return make


def test_a_kill_at_any_call_repeats_and_loses_nothing(queued, tmp_path):
    """From the flag to the end: delivered before the kill, after it, or both; the flag is gone."""
    _, steps = traced(queued(), tmp_path / "dry")
    assert [name for name, _ in steps].count("fdatasync") >= 2

    def killed_at(step):
        name, nth = step
        session = queued()
        inject = ("-e", f"inject={name}:signal=KILL:when={nth}")
        out, _ = traced(session, tmp_path / f"{name}-{nth}", *inject)
        said = [json.loads(out)["hookSpecificOutput"]["additionalContext"] if out else ""]
        for _ in range(2):
            if flag(session).exists():
                lease_ends(session)
            said.append(any_call(session).text)
        everything = "\n".join(said)
        problems = [
            what
            for what, is_so in {
                "lost": LINE.format("scout-1") not in everything,
                "message lost": "1 message from boss" not in everything,
                "never ends": said[2] != "" or flag(session).exists(),
            }.items()
            if is_so
        ]
        with closing(LocalBackend(str(session.state))) as backend:
            if waiting(backend) != ["boss"]:
                problems.append("left over")
        return problems and f"{name} {nth}: {problems} {said}"

    with ThreadPoolExecutor(2) as pool:
        assert [found for found in pool.map(killed_at, steps) if found] == []


def test_a_client_that_is_gone_has_been_told_nothing(session, backend):
    """An answer that nobody reads is no delivery."""
    notify(backend)
    session.reply(tokens_at(90), "toolu_a")
    process = session.start()
    process.stdout.close()
    process.stdin.write(encoded(session.payload("PostToolUse", tool_use_id="toolu_a")))
    process.stdin.close()
    assert process.wait() == 0
    process.stderr.close()
    assert "BrokenPipeError" in session.failures()[-1]
    assert any_call(session).text == ""
    lease_ends(session)
    assert lines(any_call(session)) == [LINE.format("scout-1")]
