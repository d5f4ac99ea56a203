"""An orchestrator that has nothing but the files: what docs/state-file.md says is enough."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.fleet_worker import reap, start_worker, tell
from helpers.requirements import require_tool

from ultramon import Fleet
from ultramon.system.environment import state_directory

PAGE = (ROOT / "docs" / "state-file.md").read_text("utf-8")
LONG_SECONDS = 1_000


def block(language):
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def workers():
    """Three agents in processes of their own, which do what they are asked."""
    fleet = Fleet()
    workers = {name: start_worker(fleet, name, "obey") for name in ("scout-1", "two", "three")}
    for worker in workers.values():
        tell(worker, "start")
        tell(worker, "plan a b")
    yield workers
    for worker in workers.values():
        reap(worker)


@pytest.fixture
def orchestrate():
    """Start the program of the page, which imports nothing of ultramon, as a process."""
    started = []

    def orchestrate(grace_seconds, *names):
        arguments = [state_directory(), str(grace_seconds), *names]
        process = subprocess.Popen(
            [sys.executable, "-I", "-W", "error", "-c", block("py"), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield orchestrate
    for process in started:
        process.kill()
        process.communicate()


def said(process):
    """Wait until an orchestrator has an end for each of its agents; return them."""
    lines = process.communicate(timeout=100)[0].split("\n")[:-1]
    assert process.returncode == 0
    return dict(line.split() for line in lines)


def test_agents_return_on_a_request_and_are_seen_lost_after_a_kill(workers, orchestrate):
    """One hands off when it sees the request, one is killed with signal 9, one ends well."""
    process = orchestrate(LONG_SECONDS, *workers)
    tell(workers["scout-1"], "until_return")
    tell(workers["scout-1"], "hand_off")
    tell(workers["scout-1"], "stop returned")
    tell(workers["two"], "until_return")
    workers["two"].kill()
    tell(workers["three"], "until_return")
    tell(workers["three"], "stop")
    assert said(process) == {"scout-1": "returned", "two": "lost", "three": "completed"}


def test_an_agent_that_does_not_return_in_time_is_seen_expired(workers, orchestrate):
    """It lives on, and is not notified; one that left a handoff and lives is not expired."""
    tell(workers["two"], "hand_off")
    process = orchestrate(0, "scout-1", "two")
    assert process.stdout.readline() == "scout-1 expired\n"
    tell(workers["two"], "stop returned")
    assert said(process) == {"two": "returned"}
    assert workers["scout-1"].poll() is None


def test_the_lines_for_a_shell_ask_an_agent_to_return(workers):
    """Plain tools are enough; a request for another generation is ignored."""
    shell = require_tool("sh")
    subprocess.run([shell, "-eu", "-c", block("sh")], check=True, env={**os.environ})
    tell(workers["scout-1"], "until_return")
    path = Path(state_directory()) / "subagents" / "scout-1.request"
    assert path.stat().st_mode & 0o777 == 0o600
