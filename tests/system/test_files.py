"""Files are replaced as a whole or not at all, and nothing planted is followed."""

import fcntl
import os
import stat

import pytest
from helpers.requirements import require_root_mount, unmount

from ultramon.backends.local.journal import Journal
from ultramon.errors import StateWriteError
from ultramon.system.files import NewFile, replace_file, sync_directory
from ultramon.testing.samples import make_event


def test_a_replaced_file_is_whole_private_and_alone(tmp_path):
    """Whatever it was before, it is one plain file of its owner, under every umask."""
    path = tmp_path / "file"
    path.write_text("before, and longer")
    path.chmod(0o644)
    before = os.umask(0o777)
    try:
        replace_file(str(path), b"after")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    """Its victim keeps what it has."""
    victim, path = tmp_path / "victim", tmp_path / "file"
    victim.write_text("precious")
    path.symlink_to(victim)
    replace_file(str(path), b"ours")
    assert (victim.read_text(), path.read_bytes(), path.is_symlink()) == (
        "precious",
        b"ours",
        False,
    )


def test_a_directory_in_its_place_stays(tmp_path):
    """The system refuses; no temporary file is left behind."""
    path = tmp_path / "file"
    path.mkdir()
    with pytest.raises(StateWriteError, match="cannot be written: Is a directory"):
        replace_file(str(path), b"ours")
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_directory_is_a_typed_error(tmp_path):
    """It names the file that was wanted, not the temporary one."""
    path = str(tmp_path / "missing" / "file")
    with pytest.raises(StateWriteError, match="No such file") as caught:
        replace_file(path, b"ours")
    assert caught.value.path == path


def test_a_full_disk_keeps_what_was_there(tmp_path):
    """The old content, and no temporary file that takes the last space."""
    require_root_mount(tmp_path, "size=64k")
    try:
        path = tmp_path / "file"
        replace_file(str(path), b"before")
        with pytest.raises(StateWriteError, match="No space left"):
            replace_file(str(path), b"x" * 100_000)
        assert path.read_bytes() == b"before"
        assert os.listdir(tmp_path) == ["file"]
    finally:
        unmount(tmp_path)


def test_a_block_that_fails_leaves_no_temporary_file(tmp_path):
    """Another error than the system's is raised as it is."""
    temporary = tmp_path / "temporary"

    def fail():
        with NewFile(str(temporary), "path", b"ours"):
            assert temporary.read_bytes() == b"ours"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert os.listdir(tmp_path) == []


def test_a_temporary_file_that_is_there_is_not_overwritten(tmp_path):
    """Its name was guessed, or it is somebody else's."""
    temporary = tmp_path / "temporary"
    victim = tmp_path / "victim"
    victim.write_text("precious")
    temporary.symlink_to(victim)
    with pytest.raises(StateWriteError), NewFile(str(temporary), "path", b"ours"):
        pass
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("command", [fcntl.F_GETFD, 9_999])
def test_a_disk_that_is_not_told_to_write_is_no_error(tmp_path, monkeypatch, command):
    """Where macOS' order to empty the cache of a disk is known, it is given; some refuse it."""
    given = []
    real = fcntl.fcntl
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", command, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, order: given.append(order) or real(fd, order))
    sync_directory(str(tmp_path))
    assert given == [command]


def test_the_journal_asks_for_a_whole_sync(tmp_path):
    """SQLite leaves that out on macOS else; here it is only known to be asked for."""
    journal = Journal(str(tmp_path))
    journal.append([make_event("a")], 5.0)
    assert journal.select(0, "PRAGMA fullfsync") == [(1,)]
    journal.close()
