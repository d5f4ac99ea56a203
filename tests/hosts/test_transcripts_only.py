"""Hosts that call no hooks: their files alone are read, and commands say so."""

import json

import pytest
from helpers.program import run

from ultramon.hosts.port import Dialect, Host, Setup
from ultramon.hosts.registry import find_hosts

_MOVED = dict.fromkeys(
    (
        "XDG_DATA_HOME",
        "MIMOCODE_HOME",
        "KIMI_SHARE_DIR",
        "KIMI_CODE_HOME",
        "GOOSE_PATH_ROOT",
        "CRUSH_GLOBAL_DATA",
    ),
    "/nowhere",
)
HOSTS = [host for host in find_hosts().usable if not host.has_hooks]


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_a_host_without_hooks_has_transcripts_alone(host):
    """The other two parts are those that do nothing."""
    assert (type(host.dialect), type(host.setup)) == (Dialect, Setup)
    assert list(host.transcripts.transcript_files(_MOVED)) == []


def test_a_host_with_hooks_needs_a_dialect():
    """A module that is missing by mistake is no host without hooks."""
    with pytest.raises(ModuleNotFoundError):
        _ = Host("acme", "ultramon.hosts.kilo").dialect


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.name)
def test_commands_say_that_there_is_nothing_to_install(host, tmp_path):
    """`install` and `uninstall` refuse, `doctor` finds nothing wrong."""
    home = {"HOME": str(tmp_path)}
    for command in ("install", "uninstall"):
        done = run(command, host.name, **home)
        assert done.returncode == 1
        assert "of the others it reads transcripts only" in done.stderr
    done = run("doctor", host.name, **home)
    assert f"{host.name}: transcripts only" in done.stdout
    assert "not installed" not in done.stdout


def test_a_list_of_hosts_has_them_last(tmp_path):
    """With what can be done."""
    lines = run("install", HOME=str(tmp_path)).stdout.splitlines()
    own = [line for line in lines if line.endswith("transcripts only: ultramon report")]
    assert [line.split()[0] for line in own] == sorted(host.name for host in HOSTS)
    assert own == lines[-len(own) :]
    rows = json.loads(run("install", "--json", HOME=str(tmp_path)).stdout)
    assert {row["name"] for row in rows if row["transcriptsOnly"]} == {one.name for one in HOSTS}
