"""Names of holders, judged by real processes: gone is only what provably is."""

import os
import signal
import subprocess
import sys

import pytest
from helpers import IMPORT_PATH
from helpers.requirements import require_root, require_tool

from ultramon.backends.lease_holder import is_gone, name_holder
from ultramon.system.processes import MachineIdentity, this_machine

NAME = (
    "from ultramon.backends.lease_holder import name_holder; "
    "print(name_holder(), flush=True); input()"
)


def another_process(*before):
    """A process that says its name and waits."""
    return subprocess.Popen(
        [*before, sys.executable, "-c", NAME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": IMPORT_PATH},
    )


def changed(name, **parts):
    """A name with other parts."""
    keys = ("unique", "pid", "started_at", "boot_id", "hostname")
    return " ".join({**dict(zip(keys, name.split(" ", 4), strict=True)), **parts}.values())


def test_no_two_names_are_the_same():
    """Two holders of one process are distinguished, and both live."""
    names = {name_holder() for _ in range(100)}
    assert len(names) == 100
    assert not any(is_gone(name) for name in names)


def test_a_process_is_gone_when_it_has_ended():
    """Not while it runs or is stopped; killed it is, also before anybody has waited for it."""
    with another_process() as process:
        name = process.stdout.readline().strip()
        assert not is_gone(name)
        process.send_signal(signal.SIGSTOP)
        assert os.waitid(os.P_PID, process.pid, os.WSTOPPED).si_status == signal.SIGSTOP
        assert not is_gone(name)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(name)
        process.wait()
        assert is_gone(name)


def test_a_reused_pid_is_another_process():
    """The pair of pid and start decides."""
    assert is_gone(changed(name_holder(), started_at="1"))


@pytest.mark.parametrize(
    "parts",
    [
        {"hostname": "elsewhere"},
        {"boot_id": "another-boot:[4026531836]"},
        {"boot_id": this_machine().boot_id.partition(":")[0] + ":[1]"},
        {"started_at": "unknown"},
    ],
    ids=str,
)
def test_what_cannot_be_proved_is_not_gone(parts):
    """Another machine, boot or namespace, and a start that nobody knew, prove nothing."""
    ended = changed(name_holder(), pid=str(2**22 + 1))
    assert is_gone(ended)
    assert not is_gone(changed(ended, **parts))


@pytest.mark.parametrize("boot_id", ["", "a-boot", ":[4026531836]"])
def test_a_host_that_does_not_tell_its_boot_and_namespace_proves_nothing(boot_id):
    """Another machine of the same name would look the same."""
    machine = MachineIdentity("localhost", boot_id)
    assert not is_gone(changed(name_holder(machine), pid=str(2**22 + 1)), machine)


@pytest.mark.parametrize("name", ["", "fleet-1", "4711-0123456789abcdef", "a b c d e", "a  b c d"])
def test_a_foreign_name_is_not_gone(name):
    """A holder that calls itself otherwise keeps its lease."""
    assert not is_gone(name)


def test_without_its_own_proc_a_process_proves_nothing():
    """Where /proc shows the pids of another namespace, its marks belong to other processes."""
    require_root()
    with another_process(require_tool("unshare"), "--pid", "--fork") as process:
        name = process.stdout.readline().strip()
        assert name.split(" ")[1:3] == ["1", "unknown"]
        process.communicate("")
