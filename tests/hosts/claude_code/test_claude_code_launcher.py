"""The launcher: what settings name, where it cannot be used, and what the doctor says of it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time

import pytest
from helpers.client_home import OTHER_HOOKS, ClientHome
from helpers.requirements import require_root_mount, unmount

from ultramon.hosts.claude_code.install.commands import (
    EVENTS,
    HOOK_SCRIPT,
    LAUNCHERS,
    STATUS_LINE_SCRIPT,
    script_path,
)
from ultramon.hosts.doctor_context import OK, PROBLEM, DoctorContext
from ultramon.hosts.examine.doctor import examine
from ultramon.hosts.install.hook_commands import RESIDENT, command_line


@pytest.fixture
def client(tmp_path, monkeypatch):
    return ClientHome(tmp_path).as_home(monkeypatch)


def commands(client):
    """The commands in the user's settings: of every hook, and of the status line."""
    settings = json.loads(client.settings.read_bytes())
    hooks = {
        hook["command"]
        for event in EVENTS
        for entry in settings["hooks"][event]
        for hook in entry["hooks"]
    }
    return hooks, settings["statusLine"]["command"]


def shell_commands(client, interpreter=sys.executable):
    """What stands in the settings where no launcher can be used."""
    installed = str(client.states / "claude-code.json")
    hook, line = (
        command_line(str(interpreter), script_path(script), installed, RESIDENT)
        for script in (HOOK_SCRIPT, STATUS_LINE_SCRIPT)
    )
    return {hook}, line


def launchers(client):
    """The two launchers: of the hook, and of the status line."""
    return client.states / LAUNCHERS[HOOK_SCRIPT], client.states / LAUNCHERS[STATUS_LINE_SCRIPT]


def run(command, client, event="SessionStart"):
    """Run a command as the client does, on a payload."""
    payload = {
        "session_id": "s1",
        "hook_event_name": event,
        "cwd": str(client.project),
        "transcript_path": str(client.home / "none.jsonl"),
    }
    return subprocess.run(
        ["sh", "-c", command],
        input=json.dumps(payload).encode(),
        capture_output=True,
        check=False,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )


def problems(client):
    seen = DoctorContext(str(client.project), str(client.states), time.time())
    return [finding for finding in examine(seen) if finding.status != OK]


def test_settings_name_a_launcher_of_this_user(client):
    """Settings hold one path; the file is the user's alone, and it works."""
    assert client.install().returncode == 0
    hook, line = launchers(client)
    assert commands(client) == ({f"exec {hook}"}, f"exec {line}")
    for path in (hook, line):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert path.read_text().startswith("#!/")
        assert path.read_text().splitlines()[0].endswith("python -IS")
    done = run(f"exec {hook}", client)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (client.states / "subagents" / "s1.json").exists()
    done = run(f"exec {line}", client)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ctx –\n".encode(), b"")
    assert problems(client) == []


def test_a_launcher_that_is_gone_harms_nothing(client):
    """The shell ends with 127, which blocks no tool and erases no prompt; the doctor says so."""
    client.put()
    hook, _ = launchers(client)
    hook.unlink()
    done = run(f"exec {hook}", client)
    assert (done.returncode, done.stdout) == (127, b"")
    (finding,) = problems(client)
    assert (finding.check, finding.status) == ("launcher", PROBLEM)
    assert finding.message == f"{hook}: No such file or directory: no hook runs"
    assert finding.cure == "ultramon install claude-code"
    plan = client.plan()
    assert plan.changes
    assert plan.diff() == ""
    plan.apply(time.time())
    assert not client.plan().changes
    assert problems(client) == []


@pytest.mark.parametrize("damage", ["torn", "not executable", "a link", "of an older ultramon"])
def test_a_damaged_launcher_is_a_problem_and_made_anew(client, damage):
    """Installing again repairs what the doctor found."""
    client.put()
    hook, _ = launchers(client)
    if damage == "torn":
        hook.write_bytes(hook.read_bytes()[:60])
    elif damage == "of an older ultramon":
        hook.write_text(
            hook.read_text().replace("claude_code.hook import", "claude_code.entry import")
        )
    elif damage == "a link":
        hook.rename(client.states / "elsewhere")
        hook.symlink_to(client.states / "elsewhere")
    else:
        hook.chmod(0o600)
    (finding,) = problems(client)
    assert (finding.check, finding.status) == ("launcher", PROBLEM)
    client.put()
    assert problems(client) == []


@pytest.mark.parametrize("folder", ["a b", "é", "x" * 120])
def test_an_interpreter_that_no_first_line_can_name_runs_in_a_shell_command(client, folder):
    """A space, another alphabet or more than 127 bytes: the command is one for the shell."""
    interpreter = client.home / folder / "snake"
    interpreter.parent.mkdir()
    interpreter.symlink_to(os.path.realpath(sys.executable))
    client.put(interpreter=interpreter)
    assert commands(client) == shell_commands(client, interpreter)
    assert not any(path.exists() for path in launchers(client))
    for command in (*commands(client)[0], commands(client)[1]):
        assert run(command, client).returncode == 0
    assert (client.states / "subagents" / "s1.json").exists()


def test_a_mount_without_programs_gets_a_shell_command(client):
    """Where ``noexec`` forbids launchers the settings name none."""
    client.states.mkdir(mode=0o700)
    require_root_mount(client.states, "size=1m,mode=700,noexec")
    try:
        client.put()
        assert commands(client) == shell_commands(client)
        (command,) = commands(client)[0]
        assert run(command, client).returncode == 0
        assert problems(client) == []
    finally:
        unmount(client.states)


def test_a_mount_that_forbids_programs_later_is_a_problem(client):
    """The launcher is there and may not be run: no hook runs, and the doctor says why."""
    client.states.mkdir(mode=0o700)
    require_root_mount(client.states, "size=1m,mode=700")
    try:
        client.put()
        remount = ["mount", "-o", "remount,noexec", str(client.states)]
        subprocess.run(remount, check=True, capture_output=True)
        assert run(f"exec {launchers(client)[0]}", client).returncode == 126
        (finding,) = problems(client)
        assert "a mount with noexec: no hook runs" in finding.message
        client.put()
        assert commands(client) == shell_commands(client)
        assert problems(client) == []
    finally:
        unmount(client.states)


@pytest.mark.parametrize("name", ["snake", "python3.13t", "conda-run", "py thon"])
def test_an_interpreter_of_any_name_is_recognised(client, name):
    """By install, which changes nothing then, by the doctor, and by uninstall."""
    interpreter = client.home / "bin" / name
    interpreter.parent.mkdir()
    interpreter.symlink_to(os.path.realpath(sys.executable))
    client.write(OTHER_HOOKS.encode())
    before = client.tree()
    client.put(interpreter=interpreter)
    assert not client.plan(interpreter=interpreter).changes
    assert problems(client) == []
    client.take_out()
    assert client.tree() == before


def test_earlier_settings_are_brought_up_to_date(client):
    """The shell commands of an earlier installation become launchers, where they stand."""
    client.write(OTHER_HOOKS.encode())
    before = client.tree()
    client.put()
    today = client.settings.read_bytes()
    hook, line = launchers(client)
    (earlier,), earlier_line = shell_commands(client, "/opt/app/bin/snake")
    text = today.decode().replace(json.dumps(f"exec {hook}"), json.dumps(earlier))
    text = text.replace(json.dumps(f"exec {line}"), json.dumps(earlier_line))
    client.settings.write_text(text)
    hook.unlink()
    line.unlink()
    client.put()
    assert client.settings.read_bytes() == today
    client.settings.write_text(text)  # both forms are taken out
    client.take_out()
    assert client.tree() == before


def test_the_newest_installation_decides_what_the_launcher_runs(client):
    """Two layers name the same launcher: a newer interpreter serves both."""
    other = client.home / "snake"
    other.symlink_to(os.path.realpath(sys.executable))
    client.put(interpreter=other)
    client.put("local")
    assert launchers(client)[0].read_text().startswith(f"#!{sys.executable} ")
    client.take_out("local")
    assert all(path.exists() for path in launchers(client))
    client.take_out()
    assert not client.states.exists()
