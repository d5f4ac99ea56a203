"""Jobs of the bench for unreliable agents, and its agents as processes."""

import os
import signal
import subprocess
import sys

from helpers.program import environment
from ultramon.testing.bench.faults import draw_attempt, draw_context
from ultramon.testing.bench.history import read_history
from ultramon.testing.bench.job import AGENT, REPOSITORY, BenchJob

COUNT = 8
ALWAYS = 1.0
"""The ratio with which the first fault that is allowed comes in each attempt."""


def make_job(folder, *faults, seed=0, count=COUNT, ratio=ALWAYS, request_seconds=0.0):
    """Make the job of a seed, with these faults alone."""
    job = BenchJob(str(folder / f"seed-{seed}"), seed, count, faults, ratio, request_seconds)
    job.create()
    return job


def seed_where(accepts):
    """Return the first seed that a test can use."""
    return next(seed for seed in range(1_000) if accepts(seed))


def first_attempt(seed, item, *faults, number=1):
    """Return what happens in an attempt."""
    return draw_attempt(seed, item, number, faults, ALWAYS)


def first_context(seed, *faults):
    """Return what holds for the first context."""
    return draw_context(seed, 1, faults)


def start_agent(job, prompt, **given):
    """Start an agent as an orchestrator does."""
    return subprocess.Popen(
        [job.path(AGENT), prompt],
        cwd=job.path(REPOSITORY),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **given,
    )


def run_agent(job, prompt):
    """Run an agent to its end; return its exit code, its lines, and its errors."""
    process = start_agent(job, prompt)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output.splitlines(), errors


def facts(job, *kinds):
    """Return the facts of some kinds."""
    return [one for one in read_history(job.history_path) if one["fact"] in kinds]


def is_done(job, item):
    """Whether an item is done in the repository."""
    return job.is_done(job.path(REPOSITORY), item)


def ask_to_return(process):
    """Ask an agent to return; give its exit code and its lines."""
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.splitlines()


def bench(*arguments, cwd=None, **changes):
    """Run the bench as a program."""
    return subprocess.run(
        [sys.executable, "-m", "ultramon.testing.bench", "relay", *map(str, arguments)],
        cwd=cwd or os.getcwd(),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
