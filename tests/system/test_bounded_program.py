"""A program is run without a shell, and ended in time with everything that it started."""

import os
import sys
import threading

from helpers.waiting import until

from ultramon.system.bounded_program import run_program

LEAVES_A_CHILD = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
{rest}
"""


def run(*arguments, seconds=30, **options):
    environ = {"PATH": os.environ["PATH"]}
    return run_program(
        [sys.executable, "-c", *map(str, arguments)],
        environ=environ,
        cwd="/",
        seconds=seconds,
        **options,
    )


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_program_that_succeeds_says_nothing():
    end = run("print('x' * 1_000_000)")
    assert (end.code, end.problem) == (0, "")
    assert end.seconds > 0


def test_of_a_failure_the_last_line_is_kept():
    end = run(
        "import sys; print('x' * 300_000 + '\\nno \\x1b[31mdisplay', file=sys.stderr); exit(3)"
    )
    assert end.code == 3
    assert end.problem == r"exit code 3: no \x1b[31mdisplay"


def test_a_signal_is_named():
    assert run("import os; os.kill(os.getpid(), 15)").problem == "signal 15"


def test_a_program_that_is_not_there_is_a_problem():
    end = run_program(["ultramon-is-no-such"], environ={"PATH": "/bin"}, cwd="/", seconds=1)
    assert (end.code, end.problem) == (None, "ultramon-is-no-such: No such file or directory")


def test_a_program_that_takes_too_long_is_killed_with_what_it_started(tmp_path):
    source = LEAVES_A_CHILD.format(rest="import signal; signal.pause()")
    end = run(source, tmp_path / "pid", seconds=1)
    assert (end.code, end.problem) == (None, "took more than 1 s and was killed")
    assert 1 <= end.seconds < 10
    until(lambda: has_ended(int((tmp_path / "pid").read_text())))


def test_what_it_left_behind_ends_with_it(tmp_path):
    """Though it holds stderr open."""
    end = run(LEAVES_A_CHILD.format(rest=""), tmp_path / "pid")
    assert (end.code, end.problem) == (0, "")
    until(lambda: has_ended(int((tmp_path / "pid").read_text())))


def test_what_closes_its_stderr_is_bounded_too():
    end = run("import os, signal; os.close(2); signal.pause()", seconds=0.5)
    assert end.problem == "took more than 0.5 s and was killed"


def test_its_starter_can_give_it_up(tmp_path):
    given_up = threading.Event()
    ends = []
    source = LEAVES_A_CHILD.format(rest="import signal; signal.pause()")
    thread = threading.Thread(
        target=lambda: ends.append(run(source, tmp_path / "pid", is_given_up=given_up))
    )
    thread.start()
    until((tmp_path / "pid").exists)
    given_up.set()
    thread.join()
    assert ends[0].problem == "was ended with its starter and was killed"
