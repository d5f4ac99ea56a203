"""A resident that is killed, stopped, replaced, planted or full: no crossing is lost by it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from helpers import ROOT
from helpers.hooked_session import said, tokens_at
from helpers.requirements import read_only
from helpers.resident_session import opened, until

from ultramon.system.processes import process_started_at


@pytest.fixture
def session(tmp_path):
    with opened(tmp_path) as session:
        # Where none runs, a hook starts none: one was started just now.
        os.close(os.open(session.state / "claude-code.resident-start", os.O_CREAT, 0o600))
        yield session


def has_ended(pid, mark):
    return process_started_at(pid) != mark


def crossing(session, name):
    """Bring another session to just before its first rung, and over it; return its hook."""
    one = session.beside(name)
    one.tool(tokens_at(60))
    one.reply(tokens_at(30), "toolu_x")
    return one.start(one.payload("PostToolUse", tool_name="Bash", tool_use_id="toolu_x"))


def test_a_killed_one_is_missed_by_nobody(session):
    """Its sessions continue by themselves, and the next one to start starts another.

    So does a session that lives, once in a while.
    """
    pid = session.begin()
    assert said(session, 60, 34) == [None, 66]
    os.kill(pid, signal.SIGKILL)
    assert said(session, 30, 24) == [None, 76]
    assert session.failures() == []
    other = session.beside("other")
    assert other.begin() != pid
    assert said(other, 60, 34) == [None, 66]
    os.kill(session.running()["pid"], signal.SIGKILL)
    assert said(session, 23) == [None]
    assert session.place.running() is None
    os.utime(session.state / "claude-code.resident-start", (1, 1))
    assert said(session, 22) == [None]
    third = session.running()["pid"]
    assert session.facts()["pid"] == third
    assert session.failures() == []


def test_none_is_started_where_it_would_end_with_the_hook(session):
    """In a sandbox of its own the hook cannot see the client."""
    pid = session.begin()
    os.kill(pid, signal.SIGKILL)
    os.utime(session.state / "claude-code.resident-start", (1, 1))
    session.environ["CLAUDE_PID"] = str(2**22 - 7)
    assert said(session, 60) == [None]
    assert os.stat(session.state / "claude-code.resident-start").st_mtime == 1
    del session.environ["CLAUDE_PID"]
    assert said(session, 59) == [None]
    assert session.running()["pid"] != pid


def test_a_stopped_one_costs_one_wait_and_no_crossing(session):
    """The call that waits in vain does all itself; those after it do not ask."""
    pid = session.begin()
    assert said(session, 60) == [None]
    os.kill(pid, signal.SIGSTOP)
    assert said(session, 34) == [66]
    assert session.place.is_paused
    began = time.monotonic()
    assert said(session, 30, 24) == [None, 76]
    assert time.monotonic() - began < 30
    before = session.memory()
    os.kill(pid, signal.SIGCONT)
    session.facts()
    session.settle()
    assert session.memory() == before
    assert said(session, 23) == [None]
    assert session.failures() == []
    assert len(session.events("context_threshold_reached")) == 2


def holds_a_lock(pid):
    """Whether a process holds the lock of a file, other than its own one."""
    with open("/proc/locks") as file:
        return sum(f" {pid} " in line for line in file) > 1


def stop(pid):
    """Stop a process, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped():
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"

    until(is_stopped, "it does not stop")


def test_one_that_is_stopped_within_a_lock_is_killed(session):
    """Its agent could not be stored for as long as it exists; so it must not exist."""
    pid = session.begin()
    assert said(session, 60) == [None]
    for number in range(400):
        one = session.ask("UserPromptSubmit", prompt=f"prompt {number}")
        for _ in range(200):
            if holds_a_lock(pid):
                break
        stop(pid)
        if is_held := holds_a_lock(pid):
            break
        os.kill(pid, signal.SIGCONT)
        one.words()
        one.close()
    assert is_held, "it was never seen to hold the lock"
    one.close()
    assert said(session, 34) == [66]
    assert any("was killed" in problem for problem in session.failures())
    assert session.place.running() is None


@pytest.mark.parametrize(
    ("number", "milliseconds"),
    [
        pytest.param(signal.SIGKILL, range(12), id="killed"),
        pytest.param(signal.SIGSTOP, range(0, 12, 4), id="stopped"),
        pytest.param(signal.SIGSTOP, range(12), id="stopped each ms", marks=pytest.mark.exhaustive),
    ],
)
def test_whenever_it_happens_the_call_says_its_warning(session, number, milliseconds):
    """Once, by the resident or by the process itself, at each moment; and nothing else fails."""
    for step in milliseconds:
        session.place.end_pause()
        session.beside(f"starter{step}").begin()
        process = crossing(session, f"s{step}")
        pid = session.running()["pid"]
        threading.Event().wait(step / 1000)
        os.kill(pid, number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err, out.count(b"(70 %)")) == (0, b"", 1), step
        with suppress(ProcessLookupError):  # one that held a lock was killed by the hook
            os.kill(pid, signal.SIGCONT)
    assert [one for one in session.failures() if "was killed" not in one] == []


def test_of_several_that_are_started_at_once_one_stays(session):
    """The others end at once, and leave its socket alone."""
    started = [session.start_another() for _ in range(4)]
    running = session.running()["pid"]
    for process in started:
        if process.pid != running:
            assert process.wait(timeout=30) == 0
    assert session.facts()["pid"] == running
    os.kill(running, signal.SIGTERM)
    (winner,) = [process for process in started if process.pid == running]
    assert winner.wait(timeout=30) == 0
    assert session.place.running() is None


@contextmanager
def listening(path, act):
    """Something else at the place of the resident, which does as it likes with a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(path)
        os.chmod(path, 0o600)
        server.listen()

        def serve():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                act(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()
    os.unlink(path)


@pytest.mark.parametrize(
    "words",
    [b"", b"+", b"+A000", b"+Axxxxxxxx", b"+A99999999", b"+Z", b"HTTP/1.1 400 \r\n", b"\0" * 99],
)
def test_what_says_something_odd_is_not_believed(session, words):
    """The process continues with the payload that it has read."""

    def say(connection):
        connection.recv(1 << 16)
        connection.sendall(words)

    session.environ["ULTRAMON_NO_RESIDENT"] = "0"
    assert said(session, 60) == [None]
    with listening(session.place.socket, say):
        assert said(session, 34) == [66]
    assert session.failures() == []


@pytest.mark.parametrize("kind", ["file", "link", "open to others", "of somebody else", "nobody"])
def test_what_is_no_socket_of_this_user_alone_is_not_asked(session, tmp_path, kind):
    """The one who put it there could read the payload, and say something to the agent."""
    path = session.place.socket
    assert said(session, 60) == [None]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with server:
        if kind == "file":
            open(path, "w").close()
        else:
            place = path + ".own" if kind == "link" else path
            server.bind(place)
            os.chmod(place, 0o666 if kind == "open to others" else 0o600)
            if kind == "link":
                os.symlink(place, path)
            if kind == "of somebody else":
                if os.geteuid() != 0:
                    pytest.skip("only root gives files away")
                os.chown(path, 12_345, 12_345)
            if kind != "nobody":
                server.listen()
                server.setblocking(False)
        assert said(session, 34) == [66]
        if kind not in ("file", "nobody"):
            with pytest.raises(BlockingIOError):
                server.accept()


CODE = """
import os, sys
sys.path.insert(0, sys.argv[1])
from ultramon.hosts.resident.served_hosts import ServedHosts
from ultramon.hosts.resident.service import Resident
hosts = ServedHosts(sys.argv[2], "claude-code")
resident = Resident(sys.argv[2], hosts, idle_seconds=0.2, tick_seconds=0.02)
os._exit(resident.run(int(sys.argv[3])))
"""


@pytest.fixture
def hasty(session):
    """Start a resident that looks often whether it is needed, for a client's process."""
    started = []

    def start(client_pid):
        package = str(ROOT)
        command = [sys.executable, "-I", "-c", CODE, package, str(session.state), str(client_pid)]
        environ = {n: session.environ[n] for n in ("HOME", "XDG_RUNTIME_DIR")}
        started.append(subprocess.Popen(command, env=environ))
        session.running()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_ends_some_time_after_the_last_session(session, hasty):
    """While the client of one lives it stays, however long nothing is called."""
    client = subprocess.Popen(["sleep", "600"])
    resident = hasty(client.pid)
    threading.Event().wait(0.6)
    assert resident.poll() is None
    client.kill()
    client.wait()
    assert resident.wait(timeout=30) == 0
    assert session.place.running() is None
    assert os.listdir(session.environ["XDG_RUNTIME_DIR"]) == []


@pytest.mark.parametrize("what", ["choice", "socket", "lock", "signal"])
def test_it_ends_when_it_is_not_wanted_or_not_found(session, hasty, what):
    """It leaves what is not its own any more."""
    resident = hasty(os.getpid())
    if what == "choice":
        session.freeze(resident=False, installed_at=1.0)
    elif what == "signal":
        resident.terminate()
    else:
        os.unlink(getattr(session.place, what))
    assert resident.wait(timeout=30) == 0


def test_a_disk_that_takes_nothing_does_not_silence_it(session):
    """Far from a rung nobody sees it; at a rung the agent is warned by the transcript."""
    session.begin()
    assert said(session, 60) == [None]
    with read_only(session.state):
        assert said(session, 55, 34) == [None, 66]
    assert said(session, 33) == [67]
