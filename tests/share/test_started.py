"""The process that shares: who starts it, one for each directory, and what ends it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers.resident_session import opened
from helpers.sharing import Machine, rows_of
from helpers.waiting import until

import ultramon
from ultramon.backends.postgres.admin.roles import MACHINE
from ultramon.errors import StateCorruptError
from ultramon.hosts.resident.sharing import Starter, is_running, try_start
from ultramon.share.choices import Choices, load_choices
from ultramon.share.report import findings

PACKAGE = Path(ultramon.__file__).parent


@pytest.fixture
def session(tmp_path):
    with opened(tmp_path) as session:
        yield session


def test_a_resident_starts_it_and_starts_it_again(session, login, server):
    """With the first session of a host after a boot, and in the place of one that was killed."""
    machine = Machine(session.state, login(MACHINE))
    session.begin()
    until(lambda: machine.status().get("sentAt"))
    first = machine.status()["pid"]
    session.call("UserPromptSubmit", prompt="Anna's prompt")
    until(lambda: rows_of(server, "agents", "count(*)") == [(1,)])
    os.kill(first, signal.SIGKILL)
    until(lambda: machine.status().get("isRunning") and machine.status()["pid"] != first)
    # It is no part of the resident, and lives on without it.
    os.kill(session.running()["pid"], signal.SIGTERM)
    until(lambda: session.place.running() is None)
    assert is_running(str(session.state))
    machine.choices._replace(is_on=False).save(str(session.state))
    until(lambda: not is_running(str(session.state)))
    assert session.failures() == []


def test_without_choices_none_is_started(session):
    """A resident of a person who shares nothing does nothing."""
    session.begin()
    assert try_start(Starter(str(session.state))) == ""
    assert not is_running(str(session.state))
    assert not (session.state / "share.lock").exists()


@pytest.mark.parametrize(
    "content", ["[]", "no JSON", '{"isOn":true}', '{"isOn":true,"command":["/no/program"]}']
)
def test_choices_that_cannot_be_read_start_nothing(tmp_path, content):
    """It is a line in the failure log, and no more."""
    path = tmp_path / "share.json"
    path.write_text(content)
    path.chmod(0o600)
    assert try_start(Starter(str(tmp_path))).startswith("agents are not shared: ")
    with pytest.raises(StateCorruptError, match="is no choice about sharing"):
        load_choices(str(tmp_path))


def test_no_password_of_the_environment_is_stored(tmp_path, monkeypatch):
    """Files that the driver reads are named; the secrets stay in them."""
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("PGPASSFILE", "/home/anna/.pgpass")
    Choices("postgresql:///?service=team", None).save(str(tmp_path))
    stored = (tmp_path / "share.json").read_text()
    assert "/home/anna/.pgpass" in stored
    assert "hunter2" not in stored
    assert (tmp_path / "share.json").stat().st_mode & 0o077 == 0


@pytest.mark.exhaustive
def test_code_that_was_replaced_is_begun_with(tmp_path, login, server):
    """After an upgrade the same process runs the new code, under its lock."""
    code = tmp_path / "code" / "ultramon"
    shutil.copytree(PACKAGE, code, ignore=shutil.ignore_patterns("__pycache__"))
    source = code / "share" / "process.py"
    source.write_text(source.read_text().replace("CODE_SECONDS = 30.0", "CODE_SECONDS = 0.1"))
    machine = Machine(tmp_path / "machine", login(MACHINE))
    machine.start(str(code / "share" / "program.py"))
    machine.wait_until(lambda: machine.status().get("sentAt"))
    first = machine.status()
    version = code / "version.py"
    version.write_text(version.read_text().replace("__version__ = ", "__version__ = 'new' + "))
    machine.wait_until(lambda: machine.status().get("version", "").startswith("new"))
    machine.wait_until(lambda: machine.status().get("sentAt"))
    assert machine.status()["pid"] == first["pid"]
    assert is_running(str(machine.directory))
    machine.end()


def test_the_doctor_says_why_a_process_has_ended(tmp_path, login, server):
    """It runs without a terminal: its last words are in its file."""
    machine = Machine(tmp_path / "machine", login(MACHINE))
    url_file = tmp_path / "url"
    url_file.write_text(f"{machine.choices.url}\n")
    url_file.chmod(0o644)
    machine.choices._replace(url=None, url_file=str(url_file)).save(str(machine.directory))
    machine.start()
    assert machine.process.wait() == 1
    [finding] = findings(str(machine.directory), time.time())
    assert finding.status == "warning"
    assert "no process sends agents" in finding.message
    assert "a file of mode 0600" in finding.message


def test_new_choices_are_followed_at_once(tmp_path, login, server):
    """Another database gets everything; the former one keeps what it has."""
    machine = Machine(tmp_path / "machine", login(MACHINE))
    machine.agent("scout-1", label="Anna's label").stop()
    machine.start()
    machine.wait_until(lambda: rows_of(server, "agents", "label") == [(None,)])
    machine.choices._replace(names=("labels",), machine_name="attic").save(str(machine.directory))
    machine.wait_until(lambda: rows_of(server, "agents", "label") == [("Anna's label",)])
    machine.wait_until(lambda: rows_of(server, "machines", "name") == [("attic",)])
    began = time.monotonic()
    machine.end()
    assert time.monotonic() - began < 10
