"""Runs a command on the job of one seed, ends it with all that it started, and judges."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.fleet.supervise.process_group import ProcessGroup
from ultramon.relay.runs.context_process import end_left_over
from ultramon.system.git import OTHER_REPOSITORY
from ultramon.testing.bench.history import read_history
from ultramon.testing.bench.job import AGENT, ANSWER, CHECK, ITEMS, REPOSITORY, SCRATCH, BenchJob
from ultramon.testing.bench.judge import judge, read_answer
from ultramon.testing.bench.report import BenchRun

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GIVEN = {
    "items": ITEMS,
    "agent": AGENT,
    "check": CHECK,
    "answer": ANSWER,
    "scratch": SCRATCH,
}
"""By placeholder in a command the file of the job; as a variable ``BENCH_ITEMS`` and so on."""
HERE = "here"
"""The placeholder for the directory in which the bench was started: a command has another one."""
OUTPUT = "output"
TERMINATE_SECONDS = 5.0
"""From SIGTERM, at which an orchestrator may write its answer, to SIGKILL."""
_END_SECONDS = 5.0


class CommandError(Exception):
    """A command that cannot be started."""


@dataclass(frozen=True, slots=True)
class _Ending:
    code: int | None
    timed_out: bool
    seconds: float


def find_program(words: Sequence[str]) -> list[str]:
    """Return a command with the path of its program, as the command starts in another directory.

    Raises:
        CommandError: There is no such program.
    """
    path = os.pathsep.join(_program_folders())
    found = shutil.which(words[0], path=path)
    if found is None:
        raise CommandError(f"{words[0]}: there is no such program")
    return [os.path.abspath(found), *words[1:]]


def run_job(job: BenchJob, words: Sequence[str], *, timeout_seconds: float) -> BenchRun:
    """Make the job in its folder, have a command do it, and judge.

    Args:
        job: The job; its folder is new, or not there.
        words: The command; placeholders of `GIVEN` and `HERE` in it are replaced.
        timeout_seconds: After these it is asked to end, and then killed with all it has started.

    Raises:
        CommandError: It cannot be started.
        OSError: The job cannot be made.
    """
    job.create()
    values = {name: job.path(file) for name, file in GIVEN.items()} | {HERE: os.getcwd()}
    command = [_replaced(word, values) for word in words]
    ending = _run(job, command, _environ(values), timeout_seconds)
    answer = read_answer(job.path(ANSWER), job.items)
    tree = answer.tree or job.path(REPOSITORY)
    done = {item for item in job.items if job.is_done(tree, item)}
    verdict = judge(job.items, read_history(job.history_path), answer, done)
    return BenchRun(
        job.seed, verdict, answer.problems, ending.code, ending.timed_out, ending.seconds
    )


def _run(job: BenchJob, command: list[str], environ: Mapping[str, str], seconds: float) -> _Ending:
    began = time.monotonic()
    timed_out = False
    with open(job.path(OUTPUT), "wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=job.path(REPOSITORY),
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise CommandError(f"{command[0]}: {error}") from error
    group = ProcessGroup(process.pid)
    code: int | None = None
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(TERMINATE_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            group.send(signal.SIGKILL)
        process.wait()
        took = time.monotonic() - began
        # By the environment too: a process may have left the group, and would still change files.
        _end_all({"BENCH_SCRATCH": environ["BENCH_SCRATCH"]})
    return _Ending(code, timed_out, took)


def _end_all(marks: dict[str, str]) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while end_left_over(marks) and time.monotonic() < deadline:
        time.sleep(0.01)


def _environ(values: Mapping[str, str]) -> dict[str, str]:
    kept: dict[str, Any] = {
        name: value
        for name, value in os.environ.items()
        # The user's settings of ultramon, and a session or a repository that the bench is started
        # from, are no part of what is measured.
        if not name.startswith(("ULTRAMON_", "BENCH_")) and name not in OTHER_REPOSITORY
    }
    given = {f"BENCH_{name.upper()}": value for name, value in values.items()}
    return {**kept, **given, "PATH": os.pathsep.join(_program_folders())}


def _program_folders() -> list[str]:
    # The one of this interpreter has `ultramon`, also where its environment is not activated.
    own = os.path.dirname(sys.executable)
    return [*os.environ.get("PATH", os.defpath).split(os.pathsep), own]


def _replaced(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def shown(words: Sequence[str]) -> str:
    """Return a command for people."""
    return shlex.join(words)
