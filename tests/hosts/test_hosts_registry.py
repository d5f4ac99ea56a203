"""Hosts of other distributions: a real one, a worked example, found by its metadata."""

import json
import re
import subprocess
import sys
import time

import pytest
from helpers import ROOT
from helpers.distributions import EXTENSIONS, write_distribution
from helpers.program import environment

from ultramon.backends.local.state_files import StateDirectory
from ultramon.cli.exit_codes import ExitCode
from ultramon.errors import ConfigurationError
from ultramon.hosts.port import Dialect, Setup, Transcripts
from ultramon.hosts.registry import find_host, find_hosts, host_names
from ultramon.system.timestamps import format_time

PAGE = (ROOT / "docs" / "hosts.md").read_text(encoding="utf-8")
ACME = EXTENSIONS / "host" / "ultramon_acme"


class Place:
    """A project, a state directory, and a folder of distributions beside ultramon."""

    def __init__(self, path):
        self.packages, self.project, self.states = path / "packages", path / "project", path / "s"
        self.packages.mkdir()
        self.project.mkdir()
        self.log = self.project / "log.jsonl"

    def distribute(self, name, module, code, entry):
        """Install a distribution that offers a host."""
        write_distribution(self.packages, name, "ultramon.hosts", code, entry, module=module)

    def run(self, *arguments, stdin=None):
        """Run ultramon in the project."""
        return subprocess.run(
            [sys.executable, "-m", "ultramon", *arguments],
            input=stdin if stdin is None else json.dumps(stdin),
            capture_output=True,
            encoding="utf-8",
            cwd=self.project,
            env=environment(
                ULTRAMON_STATE_DIR=str(self.states),
                PYTHONPATH=str(self.packages),
                HOME=str(self.project),
            ),
            check=False,
            timeout=60,
        )

    def reply(self, tokens):
        """The client notes a reply."""
        at = format_time(time.time())
        entry = {"acme": 1, "at": at, "model": "acme-1", "input": tokens, "output": 5}
        with self.log.open("a") as file:
            file.write(json.dumps(entry | {"window": 100_000}) + "\n")

    def hook(self, event, **fields):
        """The client calls its hook; return what it reads."""
        payload = {"event": event, "conversation": "c1", "log": str(self.log), **fields}
        done = self.run("hook", "acme", stdin=payload)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout) if done.stdout else None


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.fixture
def acme(place):
    place.distribute("ultramon-acme", "ultramon_acme", ACME, "acme = ultramon_acme:ACME")
    return place


def test_a_foreign_host_is_handled_like_any_other(acme):
    """Its hook call makes a state, warns the agent in the client's own words, and ends it."""
    assert acme.hook("open", folder=str(acme.project)) is None
    acme.reply(30_000)
    assert acme.hook("tool-done") is None
    acme.reply(80_000)
    assert acme.hook("ask", text="count the files") is None, "the client would not show it"
    text = acme.hook("tool-done")["say"]
    assert "80,000 of 100,000 tokens (80 %)" in text
    record = StateDirectory(str(acme.states)).read("c1")
    assert (record.host, record.run, record.context_window) == ("acme", "acme", 100_000)
    assert (record.threshold_status, record.current_task) == ("critical", "count the files")
    assert record.extra["acme"]["transcriptPath"] == str(acme.log)
    acme.hook("close")
    assert StateDirectory(str(acme.states)).read("c1").outcome == "completed"
    assert not (acme.states / "acme.failures.jsonl").exists()


def test_a_foreign_host_is_installed_examined_and_taken_out(acme):
    """The commands know it by its name, and its choices count in its hooks."""
    finding = "warning  acme: no hooks in this project; ultramon install acme"
    assert finding in acme.run("doctor").stdout
    hooks = acme.project / "acme-hooks.json"
    dry = acme.run("install", "acme", "--dry-run")
    assert (dry.returncode, hooks.exists()) == (0, False)
    assert acme.run("install", "acme", "--warning", "0.2").returncode == 0
    assert "ultramon host hook acme" in hooks.read_text()
    assert "is up to date" in acme.run("install", "acme").stderr
    assert f"ok       acme: {hooks}: hooks of ultramon" in acme.run("doctor").stdout
    acme.reply(30_000)
    assert "(30 %)" in acme.hook("tool-done")["say"]
    assert json.loads(acme.run("uninstall", "acme", "--json").stdout)["changed"] is True
    assert not hooks.exists()
    assert not (acme.states / "acme.json").exists()
    assert "holds nothing of ultramon" in acme.run("uninstall", "acme").stderr


def test_options_of_another_host_are_refused(acme):
    """Only Claude Code has plugins and a status line."""
    done = acme.run("install", "acme", "--status-line", "own")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "acme has no --status-line" in done.stderr


def test_transcripts_of_a_foreign_host_are_replayed(acme):
    """They are recognised by their host."""
    acme.reply(30_000)
    acme.reply(90_000)
    done = acme.run("replay", str(acme.log), "--json")
    assert '"acme"' in done.stdout
    assert "90000" in done.stdout


OWN = "from ultramon.hosts.port import Host\n"
BROKEN = {
    "an import": ("import nowhere_to_be_found", "ModuleNotFoundError"),
    "no host": ("HOST = 5", "TypeError"),
    "another name": (f"{OWN}HOST = Host('else', __name__)", "calls itself 'else'"),
    "a field of the state": (
        f"{OWN}HOST = Host('rotten', __name__)\nHOST.memory_field = 'ladder'",
        "uses 'ladder'",
    ),
    "no dialect": (f"{OWN}HOST = Host('rotten', __name__)", "No module named 'rotten.dialect'"),
    "a dialect of another kind": (
        f"{OWN}HOST = Host('rotten', __name__)\nHOST.dialect = 5",
        "has no Dialect",
    ),
}


@pytest.mark.parametrize(("code", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_a_host_that_cannot_be_used_breaks_nothing(acme, code, problem):
    """The doctor names its distribution; others continue."""
    acme.distribute("rotten-tools", "rotten", code, "rotten = rotten:HOST")
    (line,) = [line for line in acme.run("doctor").stdout.splitlines() if "rotten" in line]
    assert line.startswith("warning  hosts: rotten of rotten-tools ")
    assert problem in line
    done = acme.run("hook", "rotten", stdin={})
    assert done.returncode == ExitCode.USAGE
    assert "rotten-tools" in done.stderr
    acme.reply(80_000)
    assert acme.hook("tool-done")["say"]


def test_a_built_in_host_cannot_be_replaced(place):
    """A distribution that offers another Claude Code is not asked."""
    code = "raise SystemExit('loaded')"
    place.distribute("impostor", "impostor", code, "claude-code = impostor:HOST")
    done = place.run("hook", "claude-code", stdin={"session_id": "s", "hook_event_name": "Stop"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert StateDirectory(str(place.states)).read("s").host == "claude-code"


def test_the_built_in_hosts_are_complete():
    """Each has its name and a field of its own; an unknown name is an error that lists them."""
    assert {"claude-code", "codex", "copilot", "gemini", "opencode", "qwen"} <= set(host_names())
    fields = {host.name: host.memory_field for host in find_hosts().usable}
    assert fields["claude-code"] == "claudeCode"
    assert len(set(fields.values())) == len(fields)
    with pytest.raises(ConfigurationError, match=", ".join(host_names())):
        find_host("nobody")


def test_every_method_of_the_port_is_on_the_page():
    """docs/hosts.md names what a host answers."""
    table = PAGE[PAGE.index("| of `Dialect`") :]
    parts = (Dialect, Transcripts, Setup)
    names = {name for part in parts for name in vars(part) if not name.startswith("_")}
    assert len(names) > 20
    assert names <= set(re.findall(r"[a-z_]+", table))
