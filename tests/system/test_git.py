"""Git as a program that may be slow, missing, or set up for another repository."""

import os
import subprocess
import threading

import pytest

from ultramon.system.git import read_status, run_git
from ultramon.system.processes import process_started_at


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", "-b", "main", str(tmp_path)], check=True)
    return str(tmp_path)


def test_a_repository_that_the_environment_names_is_not_the_one_that_is_asked(
    repository, tmp_path, monkeypatch
):
    """A hook of git sets these variables for all that it starts."""
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", "-b", "side", str(other)], check=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert read_status(repository, seconds=60).branch == "main"


def test_a_git_that_takes_too_long_is_killed_with_what_it_started(repository, tmp_path):
    """A child that holds the pipes cannot hold the caller."""
    pid = tmp_path / "pid"
    os.mkfifo(pid)
    alias = f"alias.wait=!sleep 600 & echo $! > {pid}; wait"
    found = []
    reader = threading.Thread(target=lambda: found.append(int(pid.read_text())))
    reader.start()
    assert run_git(repository, "-c", alias, "wait", seconds=1) is None
    reader.join()
    while process_started_at(found[0]) is not None:
        os.sched_yield()


def test_without_git_there_is_no_status(repository, monkeypatch):
    """And no error."""
    monkeypatch.setenv("PATH", repository)
    assert run_git(repository, "version", seconds=60) is None
    assert read_status(repository, seconds=60) is None


def test_variables_of_the_call_count(repository):
    """On top of all others."""
    named = {"GIT_AUTHOR_NAME": "Relay", "GIT_AUTHOR_EMAIL": "relay@example.org"}
    done = run_git(repository, "var", "GIT_AUTHOR_IDENT", seconds=60, environ=named)
    assert done.stdout.startswith(b"Relay <relay@example.org>")
