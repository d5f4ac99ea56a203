"""What the system says about processes, in each way in which it may be asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ultramon.system import libproc, processes, ps_program
from ultramon.system.process_search import (
    KnownProcess,
    all_pids,
    processes_with,
    runs_in,
    shows_environments,
)
from ultramon.system.processes import (
    ancestors,
    boot_seconds,
    command_words,
    is_process_gone,
    parent_of,
    process_started_at,
    resident_bytes,
    sees_processes,
    shares_processes,
    started_at_boot_seconds,
    this_machine,
)

SCRIPT = "import os; os.write(1, os.read(0, 1)); os.read(0, 1)"
PROGRAM = os.path.basename(sys.executable)[:15]
IS_LINUX = sys.platform == "linux"


@pytest.fixture
def waiting(tmp_path):
    """A process that waits in a directory of its own, with a mark in its environment."""
    env = {**os.environ, "MARK": f"of {os.getpid()}"}
    # No program of the system: macOS hides the environments of those.
    args = [sys.executable, "-c", SCRIPT, "a b"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
    with subprocess.Popen(args, env=env, cwd=tmp_path, **pipes) as one:
        # Until it works, its words are another program's.
        one.stdin.write(b"x")
        assert one.stdout.read(1) == b"x"
        yield one
        one.kill()


def test_a_process_has_one_start_until_it_ends(process_way, waiting):
    """A zombie does not run any more."""
    started_at = process_started_at(waiting.pid)
    assert started_at.isdecimal()
    assert {process_started_at(waiting.pid) for _ in range(20)} == {started_at}
    assert not is_process_gone(waiting.pid, started_at)
    waiting.kill()
    os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOWAIT)
    assert process_started_at(waiting.pid) is None
    assert is_process_gone(waiting.pid, started_at)
    waiting.wait()
    assert process_started_at(waiting.pid) is None


def test_a_pid_that_was_given_away_again_is_another_process(process_way, waiting):
    """Its number alone proves nothing."""
    stranger = KnownProcess(waiting.pid, "1")
    assert is_process_gone(waiting.pid, "1")
    stranger.send(signal.SIGKILL)
    assert KnownProcess(waiting.pid, process_started_at(waiting.pid)).runs
    waiting.stdin.close()
    assert waiting.wait() == 0


def test_the_processes_above_are_known(process_way, waiting):
    """Each with its start, the nearest first."""
    above = ancestors(waiting.pid)
    assert above[0] == (os.getpid(), process_started_at(os.getpid()))
    assert above[1:] == ancestors()
    assert above[1][0] == os.getppid() == parent_of(os.getpid())
    assert parent_of(waiting.pid) == os.getpid()


def test_a_machine_is_one_of_its_boot_and_namespace(process_way):
    """A system without ``/proc`` has one namespace for all its processes."""
    machine = this_machine()
    assert machine.hostname == os.uname().nodename
    boot, _, namespace = machine.boot_id.partition(":")
    if process_way == "proc":
        assert namespace == os.readlink("/proc/self/ns/pid")[4:]
    else:
        assert namespace == ("[all]" if boot else "")
    # Without a boot no end of a process is proven: Linux has no key of that name.
    assert bool(boot) == (process_way != "ps" or not IS_LINUX)
    assert (this_machine().boot_id, sees_processes()) == (machine.boot_id, True)


def test_all_processes_are_listed(process_way, waiting):
    """This one and its children among them."""
    assert {os.getpid(), waiting.pid} <= set(all_pids())


def test_an_environment_is_whole_or_not_shown(process_way, waiting):
    """What `ps` prints of one cannot be told apart where a value has blanks."""
    found = processes_with({"MARK": f"of {os.getpid()}"})
    assert shows_environments() == (process_way != "ps")
    assert [one.pid for one in found] == [waiting.pid] * shows_environments()
    assert processes_with({"MARK": "of"}) == []


def test_words_and_places_are_whole_or_not_shown(process_way, waiting, tmp_path):
    """A place that is not shown may be the one that is asked about."""
    is_shown = process_way != "ps"
    assert command_words(waiting.pid) == ([sys.executable, "-c", SCRIPT, "a b"] if is_shown else [])
    if IS_LINUX:  # on macOS a Python may run under the name of its framework
        assert runs_in(PROGRAM, os.path.realpath(tmp_path))
    assert runs_in(PROGRAM, os.path.realpath(tmp_path / "other")) != is_shown
    assert runs_in("dog", os.path.realpath(tmp_path)) != is_shown


def test_a_process_shares_the_numbers_of_this_one(process_way, waiting):
    """One that has ended is not to be seen."""
    assert shares_processes(waiting.pid)
    waiting.kill()
    waiting.wait()
    assert not shares_processes(waiting.pid)


def test_the_memory_of_this_process_is_known(process_way):
    """To a few pages: that of a Python with pytest."""
    assert 10_000_000 < resident_bytes() < 2_000_000_000


def test_a_start_is_on_the_clock_of_the_boot(process_way, waiting):
    """To 10 ms, or not at all: then it is now."""
    at = started_at_boot_seconds(waiting.pid, process_started_at(waiting.pid))
    now = boot_seconds()
    if process_way == "ps":
        assert now - at < 0.5
    assert now - 30 < at <= now
    waiting.kill()
    waiting.wait()
    for odd in (None, "unknown", "0", "99999999999"):
        assert boot_seconds() - 5 < started_at_boot_seconds(waiting.pid, odd) <= boot_seconds()


def test_the_clock_of_the_boot_counts_on_through_sleep():
    """The first is not on macOS, where `time.monotonic` stands still while the machine sleeps."""
    assert processes._BOOT_CLOCKS[0] == "CLOCK_BOOTTIME"
    assert getattr(time, processes._BOOT_CLOCKS[not IS_LINUX]) == processes._BOOT_CLOCK


def test_without_any_way_a_pid_alone_is_known(monkeypatch, waiting):
    """Nothing is proven by it, and no process has the pid 0."""
    assert process_started_at(0) is None
    monkeypatch.setattr(processes, "PROC", "/nowhere")
    monkeypatch.setattr(processes, "_chosen", [])
    monkeypatch.setattr(ps_program, "PS", "/nowhere/ps")
    monkeypatch.setattr(libproc, "LIBRARY", "/nowhere/library")
    libproc.forget()
    assert (process_started_at(waiting.pid), sees_processes()) == ("unknown", False)
    assert (this_machine().boot_id, all_pids(), processes_with({})) == ("", [], [])
    assert not is_process_gone(waiting.pid, "unknown")
    assert ancestors() == [(os.getppid(), "unknown")]
    assert (shares_processes(waiting.pid), resident_bytes()) == (False, 0)
    assert not KnownProcess(waiting.pid, "unknown").runs
    waiting.kill()
    waiting.wait()
    assert is_process_gone(waiting.pid, "unknown")


def test_a_ps_that_fails_says_nothing_about_a_process(monkeypatch, tmp_path, waiting):
    """A sandbox may forbid it from one moment to the next; the process still runs."""
    monkeypatch.setattr(processes, "PROC", "/nowhere")
    monkeypatch.setattr(processes, "_chosen", [ps_program])
    started_at = process_started_at(waiting.pid)
    broken = tmp_path / "ps"
    monkeypatch.setattr(ps_program, "PS", str(broken))
    for script in ("exit 1", "exit 0", "kill -9 $$", "echo 1 S today", None):
        if script is None:
            broken.unlink()
        else:
            broken.write_text(f"#!/bin/sh\n{script}\n")
            broken.chmod(0o755)
        assert process_started_at(waiting.pid) == "unknown"
        assert not is_process_gone(waiting.pid, started_at)


@pytest.mark.parametrize(
    ("printed", "at"),
    [
        ("Nov 27 07:28:11 2026", 1_795_764_491),
        ("Jan  1 00:00:00 1970", 0),
        ("Feb 29 23:59:59 2028", 1_835_481_599),
        ("Feb 29 23:59:59 2027", None),
        ("27 Nov 07:28:11 2026", None),
        ("Nov 27 07:28 2026", None),
        ("Nov 2026", None),
    ],
)
def test_the_time_that_ps_prints(printed, at):
    """In the C locale Linux and macOS print the same."""
    assert ps_program.parse_start(printed.split()) == at


@pytest.mark.parametrize(
    ("found", "words", "variables"),
    [
        (b"/bin/x\0\0\0a\0b c\0A=1\0B=\0\0ptr=\0", [b"a", b"b c"], [b"A=1", b"B="]),
        (b"/bin/x\0a\0\0A=1\0\0", [b"a", b""], [b"A=1"]),
        (b"/bin/x\0a\0b\0", [b"a", b"b"], []),  # macOS leaves its own programs' variables out
        (b"", [], []),
    ],
)
def test_what_macos_keeps_of_a_start(found, words, variables):
    """An empty variable ends the list: behind it the system's own ones stand."""
    count = len(words).to_bytes(4, sys.byteorder)
    assert libproc.parse_arguments(count + found) == (words, variables)


def test_macos_is_not_believed_before_it_is_right(monkeypatch, mac_library):
    """A library whose answers mean something else would have processes taken for ended."""
    monkeypatch.setattr(libproc, "LIBRARY", mac_library and str(mac_library))
    libproc.forget()
    assert libproc.knows_this_process()
    monkeypatch.setattr(libproc, "_PARENT_AT", 20)
    assert not libproc.knows_this_process()
    monkeypatch.setattr(libproc, "_PARENT_AT", 16)
    monkeypatch.setattr(libproc, "_BSD_INFO_BYTES", 144)
    assert not libproc.knows_this_process()
    monkeypatch.setattr(libproc, "_BSD_INFO_BYTES", 136)
    monkeypatch.setattr(libproc, "LIBRARY", None)
    libproc.forget()
    assert libproc.knows_this_process() != IS_LINUX
