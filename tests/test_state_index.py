"""Lists with an index of what earlier ones read say the same as lists without."""

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from helpers.program import run
from helpers.state_kinds import write_states

from ultramon.backends.local import state_index
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.local.state_index import FOLDER, HEADS, TEXTS, StateIndex
from ultramon.cli import agent_list, tmux_line
from ultramon.testing import FakeClock
from ultramon.testing.clock import START

COUNT = 275
RUNS = (None, "b")

WRITER = """
import sys, threading
from ultramon.backends.local.state_files import StateDirectory
from ultramon.testing import make_record

files, number = StateDirectory(sys.argv[1]), 0
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.is_set():
    number += 1
    for agent in range(0, 270, 3):
        record = make_record(f"agent-{agent:05}", label=str(number), usage_ratio=number / 1e6)
        record.cumulative_chars = record.tasks_completed = number
        files.replace(record, durable=False)
    print(number, flush=True)
"""


class CountingDirectory(StateDirectory):
    """Knows which states were read."""

    __slots__ = ("reads",)

    def __init__(self, path):
        super().__init__(path)
        self.reads = Counter()

    def read_head(self, agent_id, mark):
        self.reads[agent_id] += 1
        return super().read_head(agent_id, mark)


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """A store with states of every kind, which count as old enough for an index."""
    clock = FakeClock()
    for module in (agent_list, tmux_line):
        monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    monkeypatch.setattr(state_index, "_RACY_NANOSECONDS", -(10**15))
    write_states(str(tmp_path / "subagents"), COUNT, START)
    os.chmod(tmp_path, 0o700)
    backend = LocalBackend(str(tmp_path))
    backend.directory = CountingDirectory(str(tmp_path))
    yield backend
    backend.close()


def listed(backend, *, indexed=True, run=None, show_all=False):
    """All that a list of whole states says."""
    index = StateIndex(backend.directory, TEXTS) if indexed else None
    found = agent_list.AgentList(backend, run, show_all=show_all, with_news=False, index=index)
    texts = list(found.stream())
    return texts, found.unreadable, found.hidden, found.left_out, +found.verdicts


def line(backend, *, indexed=True, run=None):
    """All that the line of a status bar says."""
    with StateIndex(backend.directory if indexed else None, HEADS) as index:
        survey = tmux_line._survey(backend, run, index.look(backend, run))
        index.finish()
    return list(tmux_line._parts(*survey))


def index_file(backend, name=TEXTS):
    return Path(backend.directory.path, FOLDER, name)


@pytest.mark.parametrize("show_all", [False, True])
def test_a_list_by_an_index_is_the_same(backend, show_all):
    """The first list, which writes it, and later ones, of all agents or of a run."""
    for run_name in (*RUNS, *RUNS):
        expected = listed(backend, indexed=False, run=run_name, show_all=show_all)
        for _ in range(2):
            assert listed(backend, run=run_name, show_all=show_all) == expected
    expected = listed(backend, indexed=False, show_all=not show_all)
    assert listed(backend, show_all=not show_all) == expected


def test_a_line_by_an_index_is_the_same(backend):
    for run_name in (*RUNS, *RUNS):
        expected = line(backend, indexed=False, run=run_name)
        assert [line(backend, run=run_name) for _ in range(2)] == [expected] * 2


@pytest.mark.parametrize("read", [listed, line])
def test_only_what_changed_is_read_again(backend, read):
    """An unreadable state, and one without a text to keep, is read each time; all others once."""
    read(backend)
    backend.directory.reads.clear()
    read(backend)
    again = set(backend.directory.reads)
    assert len(again) < COUNT * 0.5
    backend.directory.reads.clear()
    record = backend.load("agent-00000").record
    record.tasks_completed += 1
    backend.directory.replace(record, durable=False)
    assert read(backend) == read(backend, indexed=False)
    assert set(backend.directory.reads) >= again | {"agent-00000"}


def test_an_index_is_private(backend):
    listed(backend)
    line(backend)
    folder = index_file(backend).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        HEADS: 0o600,
        TEXTS: 0o600,
    }


def test_a_damaged_index_is_no_index(backend):
    """Cut anywhere, or with another byte anywhere, it changes nothing of what is shown."""
    chance = random.Random(20261123)
    expected = listed(backend, indexed=False), line(backend, indexed=False)
    listed(backend)
    line(backend)
    paths = index_file(backend), index_file(backend, HEADS)
    whole = [path.read_bytes() for path in paths]
    for number in range(24):
        for path, data in zip(paths, whole, strict=True):
            at = number if number < 4 else len(data) - 1 - chance.randrange(len(data) >> number % 8)
            changed = data[:at] + (bytes([data[at] ^ 0x55]) + data[at + 1 :] if number % 3 else b"")
            path.write_bytes(changed)
        assert (listed(backend), line(backend)) == expected, number


def test_an_index_of_another_version_is_replaced(backend, monkeypatch):
    expected = listed(backend)
    with monkeypatch.context() as other:
        other.setattr(state_index, "_IDENTITY", b"ultramon index 0\n")
        assert listed(backend) == expected
    before = index_file(backend).read_bytes()
    assert before.startswith(b"ultramon index 0\n")
    assert listed(backend) == expected
    assert not index_file(backend).read_bytes().startswith(b"ultramon index 0\n")


@pytest.mark.parametrize("obstacle", ["file", "link", "folder", "foreign"])
def test_where_no_index_can_be_there_is_none(backend, tmp_path, obstacle):
    """Something else in its place, or somebody else's, is neither read nor an error."""
    expected = listed(backend)
    path = index_file(backend)
    if obstacle == "foreign":
        if os.geteuid():
            pytest.skip("only root can give a file away")
        os.chown(path, 12345, 12345)
    elif obstacle == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
        path.parent.rmdir()
        if obstacle == "file":
            path.parent.write_text("in the way")
        else:
            path.parent.symlink_to(tmp_path / "subagents")
    assert listed(backend) == expected
    assert listed(backend) == expected


def test_a_full_disk_is_no_error(backend, monkeypatch):
    """What cannot be written is left out; nothing of it stays."""
    expected = listed(backend, indexed=False)
    nowhere = os.open("/dev/full", os.O_WRONLY)
    with monkeypatch.context() as full:
        full.setattr(state_index, "create_private", lambda path: os.dup(nowhere))
        assert listed(backend) == expected
    os.close(nowhere)
    assert not index_file(backend).exists()


def test_a_state_of_this_moment_is_not_entered(backend, monkeypatch):
    """Within a tick of the clock a state can be replaced by one that looks the same."""
    monkeypatch.setattr(state_index, "_RACY_NANOSECONDS", 10**15)
    listed(backend)
    line(backend)
    assert not index_file(backend).parent.exists()


def test_a_small_directory_gets_no_index(backend, monkeypatch):
    monkeypatch.setattr(state_index, "MIN_AGENTS", COUNT + 10)
    listed(backend)
    assert not index_file(backend).parent.exists()


def test_texts_beyond_the_bound_are_left_out(backend, monkeypatch):
    monkeypatch.setattr(state_index, "MAX_TEXT_BYTES", 100_000)
    expected = listed(backend, indexed=False)
    assert listed(backend) == expected
    size, written = index_file(backend).stat().st_size, index_file(backend).stat().st_ino
    assert size < 300_000
    assert listed(backend) == expected
    assert index_file(backend).stat().st_ino == written, "not written in vain"


def test_a_list_that_is_not_read_to_its_end_leaves_nothing(backend):
    index = StateIndex(backend.directory, TEXTS)
    found = agent_list.AgentList(backend, None, show_all=True, with_news=False, index=index)
    stream = found.stream()
    next(stream)
    assert len(list(index_file(backend).parent.iterdir())) == 1
    stream.close()
    assert list(index_file(backend).parent.iterdir()) == []


def test_prune_deletes_the_index_and_what_killed_writers_left(backend):
    listed(backend)
    orphan = index_file(backend).with_suffix(".abc.tmp")
    orphan.touch()
    os.utime(orphan, (1, 1))
    run("prune", "--state-dir", backend.directory.path, "--dry-run")
    assert index_file(backend).exists()
    run("prune", "--state-dir", backend.directory.path)
    assert not index_file(backend).parent.exists()


def test_lists_are_right_while_agents_write(backend, tmp_path):
    """Each text is one state that was written, never older than one that was shown before."""
    states = str(tmp_path)
    shown: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, states], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        for _ in range(6):
            writer.stdout.readline()
            texts, *_ = listed(backend, show_all=True)
            for text in texts:
                members = dict(
                    item.strip().rstrip(b",").split(b": ", 1)
                    for item in text.splitlines()
                    if b": " in item
                )
                if not members[b'"label"'].strip(b'"').isdigit():
                    continue
                agent_id, number = members[b'"agentId"'], int(members[b'"tasksCompleted"'])
                assert members[b'"cumulativeChars"'] == members[b'"tasksCompleted"']
                assert int(members[b'"label"'].strip(b'"')) == number
                assert shown.get(agent_id, 0) <= number
                shown[agent_id] = number
            line(backend)
        writer.communicate(b"")
    assert len(shown) == 90
    assert listed(backend) == listed(backend, indexed=False)
    assert line(backend) == line(backend, indexed=False)


def test_the_commands_use_an_index(backend, monkeypatch):
    """`status --json` and the line for a status bar print the same with it, and write it."""
    states = backend.directory.path
    commands = (
        ("status", "--json", "--state-dir", states),
        ("watch", "--format", "tmux", "--state-dir", states),
    )
    first = [run(*command) for command in commands]
    assert index_file(backend).exists()
    assert index_file(backend, HEADS).exists()
    assert [(done.stdout, done.stderr) for done in first] == [
        (done.stdout, done.stderr) for done in (run(*command) for command in commands)
    ]
