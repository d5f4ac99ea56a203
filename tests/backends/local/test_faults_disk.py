"""The disk fails: killed writers, no space, no permission, no descriptors, a directory gone."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest
from helpers.fault_writer import (
    AGENT,
    IMPATIENT,
    NOW,
    answer,
    finish,
    make_event,
    run_writer,
    start,
)
from helpers.requirements import (
    as_nobody,
    directory_of_nobody,
    require_root_mount,
    require_tool,
    unmount,
)
from helpers.supervised import effects, fill_disk, spawner

from ultramon import ContextConfig, Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import Journal
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateError, StateWriteError
from ultramon.testing.clock import FakeClock


@pytest.fixture
def disk(tmp_path):
    """A file system of 1 MiB of its own."""
    path = tmp_path / "disk"
    path.mkdir()
    require_root_mount(path)
    yield path
    unmount(path)


@pytest.fixture
def nobodys():
    with directory_of_nobody() as path:
        yield path


def temporaries(path):
    return [found.name for found in Path(path).rglob("*.tmp")]


class ReadingLoop(threading.Thread):
    """Reads the agent's state as fast as it can until it is asked to end."""

    def __init__(self, directory):
        super().__init__()
        self.files = StateDirectory(str(directory))
        self.reads = 0
        self.problems = []
        self.ending = threading.Event()

    def run(self):
        last = (0, 0)
        while not self.ending.is_set():
            try:
                record = self.files.read(AGENT)
            except AgentNotFoundError:
                if last != (0, 0):
                    self.problems.append("vanished")
                continue
            except StateError as error:
                self.problems.append(str(error))
                continue
            self.reads += 1
            now = (record.generation, record.seq)
            if now < last:
                self.problems.append(f"{now} after {last}")
            last = now


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [12, pytest.param(150, marks=pytest.mark.exhaustive)])
def test_a_writer_killed_at_any_moment_tears_nothing_and_loses_nothing(tmp_path, kills):
    """Readers see only whole states in order, and what was acknowledged is stored."""
    chance = random.Random(kills)
    reader = ReadingLoop(tmp_path)
    reader.start()
    try:
        for generation in range(1, kills + 1):
            writer = run_writer(tmp_path, "loop")
            for _ in range(chance.randint(1, 20)):
                acknowledged = answer(writer)
            writer.kill()
            writer.wait()
            acknowledged = max([acknowledged, *finish(writer)])
            record = reader.files.read(AGENT)
            assert record.generation == generation
            assert record.seq >= acknowledged
    finally:
        reader.ending.set()
        reader.join()
    assert reader.problems == []
    assert reader.reads > 10 * kills
    reader.files.sweep(2 * NOW)
    assert temporaries(tmp_path) == []
    start(LocalBackend(str(tmp_path)))
    assert reader.files.read(AGENT).generation == kills + 1


def fill(path):
    """Use up all space; return the file that holds it."""
    ballast = path / "ballast"
    fill_disk(ballast)
    return ballast


def test_a_full_disk_keeps_the_old_state_and_leaves_nothing_behind(disk):
    """No space is a StateWriteError, the old state stays, and with space again it works."""
    backend = LocalBackend(str(disk / "state"))
    record = start(backend)
    record.seq = 1
    backend.record(record, [make_event(n=1)], durable=True)
    ballast = fill(disk)
    for _ in range(20):
        record.seq += 1
        with pytest.raises(StateWriteError, match="No space left"):
            backend.record(record, [make_event(n=2)], durable=True)
    with pytest.raises(StateError):
        start(backend, "newcomer")
    assert backend.load(AGENT).record.seq == 1
    assert temporaries(disk) == []
    ballast.unlink()
    assert backend.record(record, [make_event(n=2)], durable=True) is True
    assert backend.load(AGENT).record.seq == record.seq
    assert [event["n"] for event in backend.events().events] == [1, 2]
    start(backend, "newcomer")
    backend.close()


def failure_of(journal, event):
    try:
        journal.append([event], 0.0)
    except StateWriteError as error:
        return error
    return None


def test_a_journal_on_a_full_disk_is_sound_and_goes_on_later(disk):
    """SQLite without space stores nothing, stays consistent, and works once space is freed."""
    import sqlite3

    journal = Journal(str(disk))
    journal.append([make_event(n=0)], 0.0)
    ballast = fill(disk)
    stored = 1
    while (problem := failure_of(journal, make_event(n=stored, padding="x" * 4000))) is None:
        stored += 1
    assert "full" in str(problem)
    assert len(journal.tail(None, 1000)[0]) == stored
    ballast.unlink()
    journal.append([make_event(n=stored)], 0.0)
    assert [event["n"] for event in journal.tail(None, 1000)[0]] == list(range(stored + 1))
    journal.close()
    connection = sqlite3.connect(disk / "journal.sqlite3")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_an_agent_runs_on_with_a_full_disk_and_is_saved_later(disk):
    """A monitor counts on without space; the first save afterwards has everything, once."""
    clock = FakeClock()
    backend = LocalBackend(str(disk / "state"))
    config = ContextConfig(context_limit_tokens=1000)
    monitor = create_context_monitor(AGENT, config, backend=backend, clock=clock).start()
    ballast = fill(disk)
    assert monitor.report_usage(input_tokens=900).should_return
    clock.advance(120)
    assert backend.load(AGENT).record.threshold_status != "critical"
    ballast.unlink()
    clock.advance(60)
    assert backend.load(AGENT).record.threshold_status == "critical"
    monitor.stop()
    kinds = [event["type"] for event in backend.events().events]
    assert kinds == ["agent_started", "context_threshold_reached", "agent_stopped"]
    assert backend.load(AGENT).record.pending is None
    backend.close()


def test_a_read_only_disk_keeps_the_old_state(disk):
    """A disk that became read-only is a typed error for writers, and no matter for readers."""
    backend = LocalBackend(str(disk / "state"))
    record = start(backend)
    backend.close()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    record.seq = 5
    with pytest.raises(StateWriteError, match="Read-only file system"):
        backend.record(record, [make_event()], durable=True)
    with pytest.raises(StateError):
        start(backend, "newcomer")
    with pytest.raises(StateWriteError, match="Read-only file system"):
        backend.heartbeat([(AGENT, 1)], NOW)
    assert backend.load(AGENT).record.seq == 0
    backend.close()


@pytest.mark.parametrize("on_error", ["log", "raise"])
@pytest.mark.parametrize("fault", ["full disk", "read-only disk"])
def test_no_verb_hurts_the_agent_when_the_disk_refuses(disk, fault, on_error):
    """With ``log`` nothing raises and one warning is logged, with ``raise`` the start says so."""
    state = disk / "state"
    if fault == "full disk":
        fill(disk)
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    (said,) = finish(run_writer(state, "verbs", on_error, env=IMPATIENT))
    check_degraded(said, on_error)


def check_degraded(said, on_error):
    if on_error == "raise":
        assert list(said["raised"]) == ["start"]
        return
    assert said["raised"] == {}
    assert len(said["log"]) == 1
    assert "is not saved, it runs on" in said["log"][0]
    assert said["level"] == "force_return"


@pytest.mark.parametrize("on_error", ["log", "raise"])
def test_no_verb_hurts_the_agent_when_the_directory_is_forbidden(nobodys, on_error):
    """A directory that may not be written degrades to one warning, or raises at the start."""
    nobodys.chmod(0o500)
    state = nobodys / "state"
    (said,) = finish(run_writer(state, "verbs", on_error, before=as_nobody(), env=IMPATIENT))
    check_degraded(said, on_error)
    assert list(nobodys.iterdir()) == []


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_a_forbidden_folder_keeps_the_old_state(nobodys, mode):
    """A folder that lost its permissions is a typed error, and nothing in it changes."""
    owner = run_writer(nobodys, "once", "event", before=as_nobody())
    assert finish(owner) == ["ready", ["stored", "True"]]
    folder = nobodys / "subagents"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    folder.chmod(mode)
    writer = run_writer(nobodys, "verbs", "log", before=as_nobody(), env=IMPATIENT)
    check_degraded(finish(writer)[0], "log")
    folder.chmod(0o700)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_one_agent_that_cannot_beat_does_not_silence_the_others(nobodys):
    """A refused heartbeat is reported after all the others have beaten."""
    beats = [nobodys / "subagents" / f"{name}.hb" for name in ("a", "b", "c")]
    writer = run_writer(nobodys, "beats", "a", "b", "c", before=as_nobody())
    assert answer(writer) == "started"
    os.chown(beats[1], 0, 0)
    assert finish(writer) == [["StateWriteError", "cannot beat: Operation not permitted"]]
    assert [path.stat().st_mtime - NOW for path in beats] == [15, 0, 15]


def test_a_directory_deleted_under_a_running_agent_is_made_again(tmp_path):
    """The next save recreates it, private, and the agent is not taken for fenced."""
    clock = FakeClock()
    state = tmp_path / "state"
    backend = LocalBackend(str(state))
    monitor = create_context_monitor(AGENT, backend=backend, clock=clock).start()
    shutil.rmtree(state)
    clock.advance(61)
    monitor.track_content("more")
    clock.advance(61)
    record = backend.load(AGENT).record
    assert (record.generation, record.active) == (1, True)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (state, state / "subagents")} == {0o700}
    monitor.stop()
    assert backend.load(AGENT).record.outcome == "completed"
    backend.close()


@pytest.mark.parametrize("rounds", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_failures_for_want_of_descriptors_lose_none(tmp_path, rounds):
    """After many saves that failed for lack of descriptors as many are open as before."""
    (said,) = finish(run_writer(tmp_path, "descriptors", rounds))
    assert said["after"] == said["before"]
    assert set(said["kinds"]) <= {"stored", "pending", "StateWriteError"}
    assert said["kinds"]["StateWriteError"] >= rounds // 4
    assert list(tmp_path.rglob("*.corrupt-*")) == []
    record = StateDirectory(str(tmp_path)).read(AGENT)
    assert (record.generation, record.seq) == (1, rounds)
    numbers = [event["n"] for event in LocalBackend(str(tmp_path)).events(limit=10_000).events]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("on_error", ["log", "raise"])
def test_no_verb_hurts_the_agent_without_descriptors(tmp_path, on_error):
    """With ``log`` nothing raises and all is stored in the end, with ``raise`` saves do."""
    limit = ["prlimit", "--nofile=64"]
    require_tool("prlimit")
    writer = run_writer(tmp_path, "verbs", on_error, "no-descriptors", before=limit)
    (said,) = finish(writer)
    assert writer.returncode == 0
    if on_error == "raise":
        assert set(said["raised"].values()) == {"StateWriteError"}
    else:
        assert said["raised"] == {}
        assert len(said["log"]) == 1
    record = StateDirectory(str(tmp_path)).read(AGENT)
    assert (record.generation, record.active, record.outcome) == (1, False, "completed")


def test_nobody_is_lost_for_want_of_descriptors(tmp_path):
    """A judge that cannot look a process up does not call its agent lost."""
    backend = LocalBackend(str(tmp_path))
    start(backend)
    (said,) = finish(run_writer(tmp_path, "judge_without_descriptors"))
    assert said == "alive"


@pytest.mark.timeout(600)
def test_a_disk_that_is_full_for_a_moment_repeats_no_done_item(tmp_path, monkeypatch):
    """The next item waits until the done one is stored: a kill in it repeats that one alone."""
    disk = tmp_path / "disk"
    disk.mkdir()
    require_root_mount(disk, "size=14m,mode=700")
    try:
        monkeypatch.setenv("ULTRAMON_STATE_DIR", str(disk / "state"))
        items = ["one", "fill", "kill", "two"]
        with closing(Fleet("job", poll_interval_seconds=0.1)) as fleet:
            result = fleet.supervise(spawner(tmp_path, "fills"), items)
        assert effects(tmp_path) == ["one", "fill", "kill", "two"]
        assert (result.ok, result.killed) == (True, 1)
        # Where the disk is too slow, nothing knows that the killed item was begun.
        assert result.repeated == result.begun_again
        assert result.begun_again in ((), ("kill",))
    finally:
        unmount(disk)
