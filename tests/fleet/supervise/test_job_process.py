"""`Job.popen`: a process whose stderr is passed on, and remembered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from helpers.waiting import until

from ultramon.fleet.supervise import job_process
from ultramon.fleet.supervise.job_process import MAX_KEPT_BYTES
from ultramon.fleet.supervise.jobs import Job

JOB = Job("job.1", ("a",), None, {**os.environ, "MARK": "m"})

ORCHESTRATOR = """
import json, os, sys
from ultramon.fleet.supervise.jobs import Job
process = Job("job.1", (), None, dict(os.environ)).popen([sys.executable, "-c", sys.argv[1]])
if sys.argv[2] == "wait":
    process.wait()
    print(json.dumps(process.last_lines()))
else:
    print(process.pid, flush=True)
    sys.stdin.read()
"""


def orchestrate(code, then, **options):
    """Start a process that starts another one by `Job.popen`."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", ORCHESTRATOR, code, then]
    return subprocess.Popen(command, text=True, **pipes, **options)


def test_stderr_goes_where_ours_goes_and_its_end_is_kept():
    """All of it in order, also the last line before the end; 20 lines are kept."""
    code = (
        "import sys\nfor n in range(50): print('line', n, file=sys.stderr)\nsys.stderr.write('x')"
    )
    with orchestrate(code, "wait") as done:
        output, errors = done.communicate(timeout=60)
    assert errors == "".join(f"line {n}\n" for n in range(50)) + "x"
    assert json.loads(output) == [*(f"line {n}" for n in range(31, 50)), "x"]


def test_a_process_outlives_the_one_that_started_it():
    """It may print after that: no pipe breaks."""
    code = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "print('ready', flush=True)\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "print('late', file=sys.stderr)\n"
        "print('done')"
    )
    with orchestrate(code, "stay") as orchestrator:
        # Each of the two says its line when it gets to it.
        said = sorted(orchestrator.stdout.readline() for _ in range(2))
        assert said[1] == "ready\n"
        pid = int(said[0])
        orchestrator.kill()
        orchestrator.wait()
        os.kill(pid, signal.SIGUSR1)
        assert orchestrator.stdout.read() == "done\n"


def test_it_has_the_environment_of_the_job_and_a_group_of_its_own():
    """Unless the caller says otherwise."""
    code = "import os; print(os.environ['MARK'], os.getpgid(0) == os.getpid())"
    with JOB.popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.read() == "m True\n"
    with JOB.popen(["true"], stderr=subprocess.DEVNULL) as process:
        assert process.wait() == 0
        assert process.last_lines() == []


def test_the_file_of_a_talkative_process_stays_small(monkeypatch, capfd):
    """It is emptied when a megabyte was passed on; a line is kept by its beginning."""
    monkeypatch.setattr(job_process, "LOOK_SECONDS", 0.001)
    code = (
        "import sys, itertools\n"
        "for n in itertools.count():\n"
        "    sys.stderr.write('y' * 999 + '\\n')\n"
        "    if sys.stdin.read(1) == '': break"
    )
    with JOB.popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        passed_on = 0
        while passed_on < 2 * MAX_KEPT_BYTES:
            process.stdin.write(b"." * 100)
            process.stdin.flush()
            passed_on += len(capfd.readouterr().err)
            until(lambda: os.fstat(process._stderr_copy.descriptor).st_size <= 2 * MAX_KEPT_BYTES)
        process.stdin.close()
    _, *last = process.last_lines()  # the first one may have lost its beginning
    assert set(last) == {"y" * 500}
    assert len(last) < 20
