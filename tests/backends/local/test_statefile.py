"""State files: what a reader accepts, what an owner sets aside, who may write."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest
from helpers import DATA
from helpers.fault_writer import AGENT, NOW, make_record, start
from helpers.requirements import NOBODY, require_root

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import (
    AgentNotFoundError,
    FencedError,
    StateCorruptError,
    StateDirectoryError,
    StateSchemaError,
    StateWriteError,
)
from ultramon.state.record import decode_state, encode_state
from ultramon.testing.clock import FakeClock

STATES = DATA / "states"
GOOD = encode_state(make_record(AGENT), AGENT)


@pytest.fixture
def files(tmp_path):
    directory = StateDirectory(str(tmp_path / "state"))
    directory.prepare()
    return directory


def write(files, record, *, timeout=1.0):
    with files.locked(record.agent_id, timeout):
        if record.agent_id in files.list_ids():
            files.check_generation(record)
        files.replace(record, durable=True)


def names(files, part=""):
    return sorted(name for name in os.listdir(files.folder) if part in name)


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def plant_foreign(path):
    require_root()
    path.write_bytes(GOOD)
    os.chown(path, NOBODY, NOBODY)


def plant_device(path):
    require_root()
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero


def plant_sparse(path):
    path.touch()
    os.truncate(path, 1 << 30)


PLANTS = {
    "empty": lambda path: path.write_bytes(b""),
    "NULs": lambda path: path.write_bytes(b"\0" * 2000),
    "another agent's state": lambda path: path.write_bytes(
        encode_state(make_record("other"), "other")
    ),
    "deeply nested": lambda path: path.write_bytes(b"[" * 100_000),
    "1 GB, sparse": plant_sparse,
    "directory": lambda path: path.mkdir(),
    "FIFO": os.mkfifo,
    "device": plant_device,
    "symlink to a file of root": lambda path: path.symlink_to("/etc/passwd"),
    "symlink to a good state": lambda path: (
        path.with_name("good").write_bytes(GOOD),
        path.symlink_to("good"),
    ),
    "dangling symlink": lambda path: path.symlink_to("nowhere"),
    "of somebody else": plant_foreign,
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_reader_refuses_what_is_no_state_and_sees_the_other_agents(files, plant):
    """Whatever lies in a state's place is a StateCorruptError, unread, and hides nobody."""
    plant(Path(files.file(AGENT)))
    write(files, make_record("neighbour"))
    before = bytes_read()
    with pytest.raises(StateCorruptError) as caught:
        files.read(AGENT)
    assert bytes_read() - before < 1_100_000
    assert caught.value.path == files.file(AGENT)
    listed = {agent.agent_id: agent for agent in LocalBackend(files.path).list_agents()}
    assert listed["neighbour"].record is not None
    assert listed[AGENT].record is None
    assert isinstance(listed[AGENT].problem, StateCorruptError)


def test_a_state_with_a_second_name_is_read_and_replaced(files):
    """A backup by hard links keeps the state of its time, and the owner continues."""
    path = Path(files.file(AGENT))
    path.with_name("copy").write_bytes(GOOD)
    os.link(path.with_name("copy"), path)
    assert files.read(AGENT).agent_id == AGENT
    start(LocalBackend(files.path), takeover=True)
    assert files.read(AGENT).generation == 2
    assert path.with_name("copy").read_bytes() == GOOD
    assert names(files, ".corrupt-") == []


def bytes_read():
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.removeprefix("rchar:"))


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_new_owner_sets_aside_what_is_no_state(files, plant):
    """The owner's start keeps the evidence under another name and writes a good state."""
    plant(Path(files.file(AGENT)))
    victim = Path("/etc/passwd").stat()
    start(LocalBackend(files.path))
    assert files.read(AGENT).generation == 1
    assert len(names(files, f"{AGENT}.json.corrupt-")) == 1
    assert mode_of(files.file(AGENT)) == 0o600
    assert Path("/etc/passwd").stat().st_mtime_ns == victim.st_mtime_ns


def test_a_state_cut_off_anywhere_is_corrupt(files):
    """No prefix of a state is taken for a state."""
    path = Path(files.file(AGENT))
    for length in range(len(GOOD) - 1):
        path.write_bytes(GOOD[:length])
        with pytest.raises(StateCorruptError):
            files.read(AGENT)
    path.write_bytes(GOOD[:-1])
    assert files.read(AGENT).agent_id == AGENT, "the last byte is a line end, no content"


def test_every_flipped_bit_is_noticed():
    """The checksum catches a change that is still valid JSON."""
    for position in range(len(GOOD) - 1):
        for bit in range(8):
            flipped = bytearray(GOOD)
            flipped[position] ^= 1 << bit
            with pytest.raises(StateCorruptError):
                decode_state(bytes(flipped), AGENT)


def test_at_most_three_corrupt_states_are_kept_and_the_newest_are(files):
    """Evidence does not fill the disk, however fast a file breaks."""
    path = Path(files.file(AGENT))
    for number in range(8):
        path.write_bytes(b"broken %d" % number)
        with files.locked(AGENT, 1.0):
            kept = files.quarantine(AGENT)
        assert Path(kept).exists()
    contents = {Path(files.folder, name).read_bytes() for name in names(files, ".corrupt-")}
    assert contents == {b"broken 5", b"broken 6", b"broken 7"}


def test_an_agent_named_like_evidence_is_not_deleted_as_evidence(files):
    """Setting states of one agent aside never removes another agent's files."""
    write(files, make_record("a.json.corrupt-1"))
    for _ in range(5):
        Path(files.file("a")).write_bytes(b"")
        files.quarantine("a")
    assert files.read("a.json.corrupt-1").agent_id == "a.json.corrupt-1"


def test_a_save_sets_a_corrupt_state_aside(files):
    """The owner's next save repairs what somebody broke under it."""
    record = make_record(AGENT, seq=1)
    write(files, record)
    Path(files.file(AGENT)).write_bytes(GOOD[:100])
    record.seq = 2
    write(files, record)
    assert files.read(AGENT).seq == 2
    assert len(names(files, ".corrupt-")) == 1


def test_only_the_stored_generation_may_write(files):
    """An older and a newer generation are both refused and change nothing."""
    write(files, make_record(AGENT, generation=2, seq=1))
    for generation in (1, 3):
        with pytest.raises(FencedError):
            write(files, make_record(AGENT, generation=generation, seq=9))
    assert files.read(AGENT).seq == 1


def test_a_write_never_creates_an_agent(files):
    """Where nothing is stored any more, the writer gets an error and writes nothing."""
    with files.locked(AGENT, 1.0), pytest.raises(FencedError) as caught:
        files.check_generation(make_record(AGENT))
    assert caught.value.current_generation is None
    assert files.list_ids() == []


def test_files_and_directories_are_private(files):
    """Files have mode 0600, directories 0700."""
    write(files, make_record(AGENT))
    files.beat(AGENT, NOW)
    assert {mode_of(Path(files.folder, name)) for name in names(files)} == {0o600}
    assert {mode_of(files.path), mode_of(files.folder)} == {0o700}


def test_a_lock_is_exclusive_and_gives_up(files):
    """A second writer gets a StateWriteError that names the lock, not a place in a queue."""
    with (
        files.locked(AGENT, 1.0),
        pytest.raises(StateWriteError, match="locked by another process"),
        files.locked(AGENT, 0.0),
    ):
        pytest.fail("two writers hold one lock")
    with files.locked(AGENT, 0.0):
        assert names(files) == [f"{AGENT}.lock"]


def test_a_lock_on_a_pruned_file_is_not_believed(files):
    """When the lock file is replaced while it is awaited, the new one is locked."""
    with files.locked(AGENT, 1.0):
        os.unlink(files.file(AGENT, ".lock"))
        with files.locked(AGENT, 1.0):
            held = os.lstat(files.file(AGENT, ".lock")).st_ino
            with pytest.raises(StateWriteError), files.locked(AGENT, 0.0):
                pytest.fail("the new file is not locked")
            assert os.lstat(files.file(AGENT, ".lock")).st_ino == held


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_a_planted_lock_is_refused(files, kind):
    """A lock is never taken through a link, and its target stays untouched."""
    victim = Path(files.path, "victim")
    victim.write_text("mine")
    path = Path(files.file(AGENT, ".lock"))
    path.symlink_to(victim) if kind == "symlink" else path.mkdir()
    with pytest.raises(StateWriteError, match="cannot be locked"):
        write(files, make_record(AGENT))
    assert victim.read_text() == "mine"


def test_a_planted_heartbeat_link_leaves_its_target_alone(files):
    """A beat changes the time of the link, never of what it points to."""
    victim = Path(files.path, "victim")
    victim.write_text("mine")
    os.utime(victim, (1, 1))
    Path(files.file(AGENT, ".hb")).symlink_to(victim)
    files.beat(AGENT, NOW)
    assert victim.stat().st_mtime == 1


def test_orphans_are_swept_after_a_minute_and_nothing_else(files):
    """Only ultramon's temporary files, and only old ones, are deleted."""
    young, old = (Path(files.folder, f".{AGENT}.{name}.tmp") for name in ("young", "old"))
    foreign = Path(files.folder, "notes.tmp")
    for path in (young, old, foreign):
        path.touch()
        os.utime(path, (NOW, NOW - 61 if path == old else NOW))
    assert files.sweep(NOW) == [old.name]
    assert all(path.exists() for path in (young, foreign))


def test_the_first_start_of_a_process_sweeps_orphans(files):
    """What killed writers left is gone after the next start."""
    orphan = Path(files.folder, f".{AGENT}.dead.tmp")
    orphan.touch()
    os.utime(orphan, (0, 0))
    start(LocalBackend(files.path))
    assert not orphan.exists()


def test_a_deleted_directory_is_made_again_and_private(files):
    """A running agent survives that somebody deletes its state directory."""
    write(files, make_record(AGENT, seq=1))
    shutil.rmtree(files.path)
    write(files, make_record(AGENT, seq=2))
    assert files.read(AGENT).seq == 2
    assert {mode_of(files.path), mode_of(files.folder)} == {0o700}


def test_a_state_too_large_to_read_back_is_not_written(files):
    """A writer refuses what readers would refuse, and the old state stays."""
    write(files, make_record(AGENT, seq=1))
    with pytest.raises(StateWriteError, match="1,048,576"):
        write(files, make_record(AGENT, seq=2, label="x" * (1 << 20)))
    assert files.read(AGENT).seq == 1
    assert names(files, ".tmp") == []


@pytest.mark.parametrize("list_all", [StateDirectory.list_ids, lambda files: files.below("a")])
def test_a_directory_that_cannot_be_listed_is_a_typed_error(files, list_all):
    """A file in the folder's place is a StateDirectoryError, a missing folder is no agents."""
    os.rmdir(files.folder)
    assert list_all(files) == []
    Path(files.folder).touch()
    with pytest.raises(StateDirectoryError, match="cannot be listed"):
        list_all(files)


def test_the_subagents_of_a_session_are_found_by_their_names(files):
    """Neither the session, nor one whose name only begins like it, nor another file of theirs."""
    for name in ("a", "a.b", "a.b.c", "a.json", "ab.c", "b", "b.a"):
        write(files, make_record(name))
    Path(files.folder, "a.x.hist").touch()
    assert files.below("a") == ["a.b", "a.b.c", "a.json"]
    assert files.below("c") == []


@pytest.mark.parametrize("kind", ["symlink", "file", "group may write", "foreign"])
def test_a_directory_that_is_not_safe_is_refused(tmp_path, kind):
    """A state directory that others control is a StateDirectoryError that says why."""
    path = tmp_path / "state"
    if kind == "symlink":
        (tmp_path / "real").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "real")
    elif kind == "file":
        path.touch()
    elif kind == "foreign":
        require_root()
        path.mkdir(mode=0o700)
        os.chown(path, NOBODY, NOBODY)
    else:
        path.mkdir()
        path.chmod(0o770)
    with pytest.raises(StateDirectoryError) as caught:
        start(LocalBackend(str(path)))
    said = {
        "symlink": "a symlink",
        "file": "not a directory",
        "group may write": "others may write",
        "foreign": "belongs to user 65534",
    }
    assert said[kind] in str(caught.value)
    assert not path.is_dir() or list(path.iterdir()) == []


def stored(files, name):
    shutil.copy(STATES / f"{name}.json", files.folder)
    os.chmod(files.file(name), 0o600)
    return LocalBackend(files.path)


@pytest.mark.parametrize("name", ["schema-1", "schema-1-ended", "schema-1-unknown-fields"])
def test_every_released_state_is_read_and_taken_over(files, name):
    """States of each released schema are read whole, and a new owner comes after them."""
    backend = stored(files, name)
    before = backend.load(name).record
    assert (before.generation, before.seq, before.estimated_tokens) == (3, 17, 142_300)
    clock = FakeClock(NOW + 86_400)
    with create_context_monitor(name, ContextConfig(), backend=backend, clock=clock) as monitor:
        assert monitor.get_state().generation == 4
        assert monitor.get_state().epoch == (1 if before.active else 2)
    assert backend.load(name).record.outcome == "completed"


def test_unknown_fields_survive_a_rewrite_by_a_new_owner(files):
    """What another version stored is still there after this version wrote the state."""
    name = "schema-1-unknown-fields"
    backend = stored(files, name)
    clock = FakeClock(NOW + 86_400)
    with create_context_monitor(name, ContextConfig(), backend=backend, clock=clock) as monitor:
        monitor.update_heartbeat()
    assert backend.load(name).record.extra == {"colour": "green", "nested": {"deep": [1, 2, None]}}


@pytest.mark.parametrize("name", ["schema-2", "schema-2-changed"])
def test_a_newer_schema_is_never_written_or_set_aside(files, name):
    """Start and save refuse a state of a newer ultramon by telling so, and leave it alone."""
    backend = stored(files, name)
    before = Path(files.file(name)).read_bytes()
    with pytest.raises(StateSchemaError, match="schema 2 was written by a newer ultramon"):
        create_context_monitor(name, backend=backend, takeover=True).start()
    with pytest.raises(StateSchemaError, match="newer ultramon"):
        backend.record(make_record(name, generation=3), [], durable=True)
    assert Path(files.file(name)).read_bytes() == before
    assert names(files, ".corrupt-") == []


def test_a_newer_schema_is_read_as_far_as_it_is_known(files):
    """Older readers still list agents that a newer ultramon runs."""
    (agent,) = stored(files, "schema-2").list_agents()
    assert agent.record.schema == 2
    assert agent.record.threshold_status == "warning"


def test_no_state_is_not_a_corrupt_state(files):
    """A missing file is AgentNotFoundError."""
    with pytest.raises(AgentNotFoundError):
        files.read(AGENT)
    assert files.heartbeat_at(AGENT) is None
    assert files.quarantine(AGENT) is None
