"""Processes that are known for certain: found by environment, signalled by pid and start."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys

import pytest

from ultramon.system.process_search import KnownProcess, processes_with
from ultramon.system.processes import process_started_at

# No program of the system: macOS hides the environments of those.
WAITER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def marked():
    """A process that waits, with two marks in its environment."""
    env = {**os.environ, "MARK_ONE": "a b", "MARK_TWO": f"of {os.getpid()}"}
    with subprocess.Popen(WAITER, stdin=subprocess.PIPE, env=env) as process:
        yield process
        process.kill()


def marks(**more):
    return {"MARK_ONE": "a b", "MARK_TWO": f"of {os.getpid()}", **more}


def test_a_process_is_found_by_all_of_its_marks(marked):
    """One mark that differs makes it another's."""
    (found,) = processes_with(marks())
    assert (found.pid, found.runs) == (marked.pid, True)
    assert processes_with(marks(MARK_ONE="a")) == []
    assert processes_with(marks(MARK_THREE="c")) == []


def test_this_process_and_one_that_has_ended_are_not_found(marked):
    """A zombie holds nothing any more."""
    (found,) = processes_with(marks())
    marked.kill()
    os.waitid(os.P_PID, marked.pid, os.WEXITED | os.WNOWAIT)
    assert (processes_with(marks()), found.runs) == ([], False)
    name, value = next(iter(os.environ.items()))
    assert os.getpid() not in {process.pid for process in processes_with({name: value})}


def test_a_pid_with_another_start_is_a_stranger(marked):
    """It was given away again; so is a start that the system does not tell apart."""
    for started_at in ("1", "unknown", None):
        stranger = KnownProcess(marked.pid, started_at)
        assert not stranger.runs
        stranger.send(signal.SIGKILL)
    marked.stdin.close()
    assert marked.wait() == 0


def test_a_suspended_process_takes_its_sigterm(marked):
    """It is continued for that."""
    marked.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, marked.pid, os.WSTOPPED | os.WNOWAIT)
    KnownProcess(marked.pid, process_started_at(marked.pid)).send(signal.SIGTERM)
    assert marked.wait() == -signal.SIGTERM


def test_a_search_without_descriptors_is_no_empty_answer(marked):
    """Else a process that runs would be taken for one that has ended."""
    code = """if True:
        import os, resource
        from ultramon.errors import StateError
        from ultramon.system.process_search import processes_with
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        while True:
            try:
                os.open("/", os.O_RDONLY)
            except OSError:
                break
        try:
            print(processes_with({"MARK_ONE": "a b"}))
        except StateError as error:
            print(error)
    """
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", code], preexec_fn=limit, capture_output=True, text=True, check=True
    )
    assert "/proc: cannot be searched: Too many open files" in done.stdout
