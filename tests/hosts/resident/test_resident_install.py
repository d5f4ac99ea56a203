"""The resident as a person meets it: installed, shown by `status` and `doctor`, taken out."""

import json
import os
import signal
import subprocess
from contextlib import closing

import pytest
from helpers.client_home import ClientHome
from helpers.resident_session import ResidentSession, until

from ultramon.hosts.claude_code.install.commands import HOOK_SCRIPT, LAUNCHERS
from ultramon.hosts.install.hook_commands import RESIDENT, command_line


class Installed(ResidentSession):
    """A session of what `ultramon install` has installed, run as the settings say."""

    def __init__(self, path, client):
        self.client = client
        super().__init__(path)
        self.environ |= {"HOME": str(client.home)}

    def freeze(self, **choices):
        """Leave the choices as the installation stored them."""

    def command(self):
        """The command in the client's settings."""
        settings = json.loads(self.client.settings.read_text())
        return ["sh", "-c", settings["hooks"]["PostToolUse"][0]["hooks"][0]["command"]]


@pytest.fixture
def client(tmp_path):
    client = ClientHome(tmp_path)
    client.states = tmp_path / "hooked"
    return client


@pytest.fixture
def session(tmp_path, client):
    assert client.install().returncode == 0
    with closing(Installed(tmp_path, client)) as session:
        yield session


def doctor(session, *options, **changes):
    """What the doctor says of the resident, as status and message."""
    done = session.client.run(
        "doctor", "--json", *options, XDG_RUNTIME_DIR=session.environ["XDG_RUNTIME_DIR"], **changes
    )
    found = json.loads(done.stdout)["findings"]
    return [(one["status"], one["message"]) for one in found if one["check"] == "resident"]


def test_what_is_installed_starts_it_and_asks_it(session):
    """By the launcher that the settings name; installing again without a word keeps it so."""
    pid = session.begin()
    session.tool(1_000)
    assert session.facts()["calls"] == 1
    assert session.facts()["pid"] == pid
    assert session.client.install().returncode == 0
    assert session.client.installed()["resident"] is True


def chosen(client):
    """What is stored, and whether the launcher asks a resident."""
    stored = client.installed()
    asks = b", 'resident'])" in (client.states / LAUNCHERS[HOOK_SCRIPT]).read_bytes()
    assert asks is stored["resident"]
    return asks, stored["residentChoice"]


def test_it_is_the_default_and_a_choice_stays(client):
    """Also where nothing more is said of it later, until something else is chosen."""
    assert client.install("--no-resident").returncode == 0
    assert chosen(client) == (False, False)
    assert client.install().returncode == 0
    assert chosen(client) == (False, False)
    done = client.install("--resident")
    assert "one process answers for all sessions, unless --no-resident" in done.stderr
    assert chosen(client) == (True, True)


@pytest.mark.parametrize(("before", "choice"), [(False, None), (True, True)])
def test_an_older_installation_gets_it_when_it_is_made_again(client, before, choice):
    """Where none was chosen it was not there; the tool calls of old settings waited."""
    assert client.install("--no-resident").returncode == 0
    stored = client.installed()
    del stored["residentChoice"]
    stored["resident"] = before
    (client.states / "claude-code.json").write_text(json.dumps(stored))
    settings = json.loads(client.settings.read_text())
    (hook,) = settings["hooks"]["PreToolUse"][0]["hooks"]
    assert hook.pop("async") is True
    hook["timeout"] = 7
    client.settings.write_text(json.dumps(settings))
    found = client.run("doctor", "--json").stdout
    assert "waits for PreToolUse, which says nothing" in found
    shown = client.install("--dry-run")
    assert '"async": true' in shown.stdout
    assert client.install().returncode == 0
    assert chosen(client) == (True, choice)
    (hook,) = json.loads(client.settings.read_text())["hooks"]["PreToolUse"][0]["hooks"]
    assert (hook["async"], hook["timeout"]) == (True, 7)
    assert client.install().stdout == ""


def test_only_what_says_nothing_is_not_waited_for(client, monkeypatch):
    """An enforcement counts the calls that run, so that it waits; a choice by hand stays."""
    client.as_home(monkeypatch)

    def waits():
        hooks = json.loads(client.settings.read_text())["hooks"]
        return {name: one[0]["hooks"][0].get("async") for name, one in hooks.items()}

    def install(*options):
        assert client.install(*options).returncode == 0
        return {name for name, value in waits().items() if value is not None}

    assert install() == {"PreToolUse"}
    assert install("--enforce", "critical") == set()
    assert install("--enforce", "none") == {"PreToolUse"}
    settings = json.loads(client.settings.read_text())
    for event, value in (("PreToolUse", False), ("PostToolUse", True)):
        settings["hooks"][event][0]["hooks"][0]["async"] = value
    client.settings.write_text(json.dumps(settings))
    assert "PostToolUse is async: what it says to the agent is lost" in client.run("doctor").stdout
    assert install() == {"PreToolUse"}
    assert waits()["PreToolUse"] is False


def test_a_shell_command_says_it_too():
    """Where the system runs no launcher."""
    command = command_line("/usr/bin/python3", "/p/hook.py", "/s/c.json", RESIDENT)
    assert command.endswith("exec /usr/bin/python3 -I -S /p/hook.py /s/c.json resident")


def test_the_doctor_says_why_there_is_none(client):
    """Somebody has chosen so, or an older version did."""
    assert client.install("--no-resident").returncode == 0
    why = "none, each hook does everything itself: --no-resident was chosen"
    assert why in client.run("doctor", "--json").stdout


def test_the_doctor_says_how_it_does(session):
    """None yet, one that answers, one that hangs, one that others cannot find."""
    assert doctor(session) == [("ok", "none runs; the next session starts one")]
    pid = session.begin()
    session.tool(1_000)
    ((status, message),) = doctor(session)
    assert status == "ok"
    assert message.startswith(f"process {pid} since ")
    assert ": 1 sessions, 1 calls, 0 of them answered at once, 0 refused, " in message
    ((status, message),) = doctor(session, ULTRAMON_NO_RESIDENT="1")[:1]
    assert (status, "ask none" in message) == ("warning", True)
    os.kill(pid, signal.SIGSTOP)
    assert doctor(session) == [("warning", f"process {pid} does not answer")]
    session.tool(2_000)
    ((status, message),) = doctor(session)
    assert (status, "is not asked for a minute" in message) == ("warning", True)
    elsewhere = session.client.run("doctor", "--json", XDG_RUNTIME_DIR="/nowhere")
    assert "hooks started from here ask /nowhere/" in elsewhere.stdout


def test_the_doctor_says_where_no_socket_can_be_made(session):
    """A session there continues without."""
    done = session.client.run("doctor", "--json", XDG_RUNTIME_DIR="/nowhere")
    assert "its socket cannot be made in /nowhere" in done.stdout
    session.environ["XDG_RUNTIME_DIR"] = "/nowhere"
    session.call("SessionStart", source="startup")
    until(session.failures, "nothing is said of it")
    assert "the resident does not run" in session.failures()[0]
    assert session.tool(150_000).text


def test_status_names_it_while_it_runs(session):
    """For people on stderr, for programs in a member that is missing without one."""
    assert "resident" not in json.loads(session.client.run("status", "--json").stdout)
    pid = session.begin()
    shown = session.client.run("status")
    assert f"hooks are answered by process {pid} since " in shown.stderr
    assert json.loads(session.client.run("status", "--json").stdout)["resident"]["pid"] == pid


def test_uninstall_leaves_nothing_of_it(session):
    """It ends by itself as soon as it sees that it is not wanted."""
    session.begin()
    session.call("SessionEnd", reason="other")
    assert session.client.uninstall().returncode == 0
    until(lambda: not os.path.exists(session.place.lock), "it does not end")
    assert session.place.running() is None
    left = [path.name for path in session.state.iterdir()]
    assert [name for name in left if name.startswith(("resident", "claude-code"))] == []
    assert os.listdir(session.environ["XDG_RUNTIME_DIR"]) == []


def test_a_package_that_is_gone_harms_nothing(session, tmp_path):
    """The launcher ends with 0, whether it would have asked a resident or not."""
    launcher = session.client.states / LAUNCHERS[HOOK_SCRIPT]
    gone = launcher.read_text().replace("PACKAGE, CHOICES = '", "PACKAGE, CHOICES = '/gone")
    launcher.write_text(gone)
    done = subprocess.run([launcher], input=b"{}", capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
