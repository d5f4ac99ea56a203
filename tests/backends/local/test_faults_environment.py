"""Strange surroundings: no home, no working directory, no output, odd umasks and locales."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, IMPATIENT, finish, run_writer
from helpers.requirements import NOBODY, as_nobody, directory_of_nobody, require_python_as_nobody

from ultramon.backends.local.journal import JOURNAL
from ultramon.backends.local.state_files import StateDirectory


@pytest.fixture
def nobodys():
    with directory_of_nobody() as path:
        yield path


def check_session(state, said, *, owner=None):
    """A whole session succeeded and left only private files behind."""
    assert (said["raised"], said["log"]) == ({}, [])
    record = StateDirectory(str(state))
    assert (Path(record.folder) / f"{AGENT}.json").exists()
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [state, *state.rglob("*")]}
    for path, mode in modes.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
        assert owner is None or path.lstat().st_uid == owner
    if owner is None:
        assert record.read(AGENT).outcome == "completed"


ENVIRONMENTS = {
    "an ordinary one": {},
    "no HOME": {"HOME": None},
    "a HOME that is a file": {"HOME": "/etc/passwd"},
    "an empty PATH": {"PATH": ""},
    "no PATH": {"PATH": None},
    "LANG=C": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "a Turkish locale": {"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"},
    "another time zone": {"TZ": "Pacific/Chatham"},
}


@pytest.mark.parametrize("environ", ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_a_session_needs_little_of_its_environment(tmp_path, environ):
    """With a state directory named, no other variable is needed."""
    state = tmp_path / "state"
    (said,) = finish(run_writer(state, "verbs", "raise", env=environ))
    check_session(state, said)


@pytest.mark.parametrize("umask", ["000", "077", "777"])
def test_no_umask_changes_the_modes(tmp_path, umask):
    """Files are 0600 and directories 0700, those of missing parents too."""
    state = tmp_path / "missing" / "parents" / "state"
    (said,) = finish(run_writer(state, "verbs", "raise", f"umask={umask}"))
    check_session(state, said)
    assert stat.S_IMODE((tmp_path / "missing").stat().st_mode) == 0o700


def test_a_umask_that_takes_all_bits_does_not_lock_an_ordinary_user_out(nobodys):
    """Where root's rights do not help, the files are still readable for their owner."""
    state = nobodys / "missing" / "state"
    writer = run_writer(state, "verbs", "raise", "umask=777", before=as_nobody())
    check_session(state, finish(writer)[0], owner=NOBODY)


def test_during_a_session_nothing_is_open_to_others(tmp_path):
    """While an agent runs no file has a bit for group or others, SQLite's side files included."""
    writer = run_writer(tmp_path / "state", "verbs", "raise", "umask=000", "no-stop", "wait")
    said = json.loads(writer.stdout.readline())
    assert said["raised"] == {}
    found = list((tmp_path / "state").rglob("*"))
    assert {f"{JOURNAL}-wal", f"{JOURNAL}-shm", f"{AGENT}.hb"} <= {path.name for path in found}
    assert [path for path in found if path.lstat().st_mode & 0o077] == []
    finish(writer)


def test_a_deleted_working_directory_is_no_matter(tmp_path):
    """An agent whose working directory is gone is stored with none."""
    gone, report = tmp_path / "gone", tmp_path / "report"
    gone.mkdir()
    before = ["sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh"]
    state = tmp_path / "state"
    finish(run_writer(state, "verbs", "raise", f"report={report}", before=before, cwd=gone))
    check_session(state, json.loads(report.read_text()))
    assert StateDirectory(str(state)).read(AGENT).cwd is None


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_no_matter(tmp_path, closed):
    """No descriptor of ours is taken for standard output, and nobody writes to it."""
    report = tmp_path / "report"
    before = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    writer = run_writer(tmp_path / "state", "verbs", "raise", f"report={report}", before=before)
    assert finish(writer) == []
    assert writer.returncode == 0
    check_session(tmp_path / "state", json.loads(report.read_text()))


def test_the_default_directory_is_private_and_under_the_home(tmp_path):
    """Without a named directory the states lie in the user's own state directory."""
    home = tmp_path / "home"
    home.mkdir()
    (said,) = finish(run_writer("", "verbs", "raise", "umask=000", env={"HOME": str(home)}))
    check_session(home / ".local" / "state" / "ultramon", said)
    assert stat.S_IMODE((home / ".local").stat().st_mode) == 0o700


@pytest.mark.parametrize("home", ["/nonexistent", "/etc/passwd", "/proc"])
def test_a_home_that_cannot_be_written_degrades_to_one_warning(home):
    """The agent runs on unsaved, and the warning names the variable that helps."""
    require_python_as_nobody()
    environ = {"HOME": home, **IMPATIENT}
    (said,) = finish(run_writer("", "verbs", "log", before=as_nobody(), env=environ))
    assert said["raised"] == {}
    assert len(said["log"]) == 1
    assert "ULTRAMON_STATE_DIR" in said["log"][0]


def test_a_home_of_somebody_else_hides_no_configuration_error(nobodys):
    """A home that may not even be searched holds no configuration of ultramon."""
    home = nobodys / "home"
    home.mkdir(mode=0o700)
    (said,) = finish(
        run_writer(nobodys / "state", "verbs", "raise", before=as_nobody(), env={"HOME": str(home)})
    )
    check_session(nobodys / "state", said, owner=NOBODY)


def test_a_user_without_a_home_is_told_what_to_set(tmp_path):
    """A user id that no user database knows gets an error that names the variable."""
    require_python_as_nobody()
    before = [*as_nobody()[:1], "--reuid=12345", "--regid=12345", "--clear-groups"]
    writer = run_writer("", "verbs", "log", before=before, env={"HOME": None}, stderr=-1, cwd="/")
    _, err = writer.communicate()
    assert "ULTRAMON_STATE_DIR" in err
    assert "ConfigurationError" in err


@pytest.mark.parametrize("name", ["a#b", "a?b", "a%41b", "a b", "ä", "-a", "a:b"])
def test_a_state_directory_may_have_any_name(tmp_path, name):
    """The directory that was named is the one that is used, to the letter."""
    (said,) = finish(run_writer(tmp_path / name, "verbs", "raise"))
    check_session(tmp_path / name, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
