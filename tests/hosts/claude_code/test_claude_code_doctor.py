"""The doctor: what is wrong with an installation, one line each, with the cure."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from helpers.client_home import OTHER_HOOKS, ClientHome
from helpers.fault_writer import answer, finish, make_event, run_writer
from helpers.hooked_session import HookedSession, tokens_at
from helpers.requirements import NOBODY, read_only, require_root, require_root_mount, unmount

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import Journal
from ultramon.cli.exit_codes import ExitCode
from ultramon.hosts import failure_log
from ultramon.hosts.claude_code.examine.settings_checks import CHECKS
from ultramon.hosts.claude_code.install.commands import HOOK_SCRIPT, LAUNCHERS, script_path
from ultramon.hosts.doctor_context import OK, PROBLEM, WARNING, DoctorContext
from ultramon.hosts.examine.doctor import examine
from ultramon.state.record import encode_state
from ultramon.system.files import write_new_file
from ultramon.system.timestamps import format_time
from ultramon.testing.samples import make_record

CCLINE = {"type": "command", "command": "ccline"}


@pytest.fixture
def client(tmp_path, monkeypatch):
    client = ClientHome(tmp_path).as_home(monkeypatch)
    client.put()
    return client


def findings(client, now=None):
    """What the doctor finds that is not in order."""
    seen = DoctorContext(str(client.project), str(client.states), now or time.time())
    return [finding for finding in examine(seen) if finding.status != OK]


def only(client, **options):
    """The one thing that is not in order."""
    (finding,) = findings(client, **options)
    return finding


def save(client, agent_id, host="claude-code", **fields):
    """Store an agent's state as its owner would."""
    folder = client.states / "subagents"
    folder.mkdir(mode=0o700, exist_ok=True)
    fields = {"heartbeat_interval_seconds": None, "at": time.time(), **fields}
    record = make_record(agent_id, **fields)
    record.host = host
    path = str(folder / f"{agent_id}.json")
    write_new_file(path, encode_state(record, path))
    return Path(path)


def begin_session(client, begun, name="s1"):
    """Write a transcript as the client does when a session begins."""
    folder = client.home / ".claude" / "projects" / "-work-shop"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    lines = ({"type": "summary"}, {"type": "user", "timestamp": format_time(begun)})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    os.utime(path, (begun + 5, begun + 5))


def edit(path, change):
    settings = json.loads(path.read_bytes())
    change(settings)
    path.write_text(json.dumps(settings))


def test_a_fresh_installation_is_in_order(client):
    """Nothing to say, exit code 0, and every line begins with ok."""
    assert findings(client) == []
    done = client.run("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) >= len(CHECKS)
    assert all(line.startswith("ok       ") for line in lines)


def test_nothing_installed_is_a_warning(tmp_path, monkeypatch):
    """A user of the SDK alone has no problem."""
    client = ClientHome(tmp_path).as_home(monkeypatch)
    finding = only(client)
    assert (finding.status, finding.message) == (WARNING, "are not installed")
    assert finding.cure.startswith("ultramon install claude-code or ultramon install codex or ")
    before = client.tree()
    done = client.run("doctor")
    assert (done.returncode, done.stderr) == (0, "1 warning, no problem\n")
    assert client.tree() == before


def test_json_holds_the_same(client):
    """--json gives every finding with its check, status, message and cure."""
    client.write({**json.loads(client.settings.read_bytes()), "disableAllHooks": True})
    done = client.run("doctor", "--json")
    assert done.returncode == ExitCode.FAILURE
    shown = json.loads(done.stdout)
    assert (shown["problems"], shown["warnings"]) == (1, 0)
    (problem,) = [one for one in shown["findings"] if one["status"] == PROBLEM]
    assert set(problem) == {"check", "status", "message", "cure"}
    assert problem["check"] == "disableAllHooks"


def test_settings_that_cannot_be_read_are_a_problem(client):
    """The client does not read them either; the line is named."""
    client.write(b'{\n  "model": opus\n}', "local")
    finding = only(client)
    assert (finding.check, finding.status) == ("local settings", PROBLEM)
    assert "line 2 column 12" in finding.message
    done = client.run("doctor")
    assert done.returncode == ExitCode.FAILURE
    assert done.stderr == "1 problem, 0 warnings\n"


def test_an_event_without_our_hook_is_a_warning(client):
    """An older installation, or a hook that somebody took out."""
    edit(client.settings, lambda settings: settings["hooks"].pop("PostCompact"))
    finding = only(client)
    assert finding.status == WARNING
    assert finding.message.endswith("no hook for PostCompact")


def test_hooks_in_two_layers_are_a_warning(client):
    """The cure names the layer to take them out of."""
    client.put("local")
    finding = only(client)
    assert (finding.check, finding.status) == ("layers", WARNING)
    assert finding.cure == "ultramon uninstall claude-code --local"


def test_the_home_directory_is_not_two_layers(client):
    """There the project's settings are the user's."""
    seen = DoctorContext(str(client.home), str(client.states), time.time())
    assert [finding for finding in examine(seen) if finding.status != OK] == []


@pytest.mark.parametrize(
    ("command", "check", "said"),
    [
        ("/gone/python -I -S {hook} {installed}", "interpreter", "/gone/python is gone"),
        ("/bin/false {hook} {installed}", None, None),
        ("{broken} -I -S {hook} {installed}", "interpreter", "cannot run the hook: broken"),
        ("/usr/bin/python3 -I -S /gone/ultramon/hosts/claude_code/hook.py {installed}",
         "hook script", "hook.py is gone"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_run_is_a_problem(client, tmp_path, command, check, said):
    """Interpreter gone, interpreter broken, script gone."""
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    broken.chmod(0o755)
    installed = client.states / "claude-code.json"
    command = command.format(hook=script_path(HOOK_SCRIPT), installed=installed, broken=broken)

    def change(settings):
        settings["hooks"]["Stop"][0]["hooks"][0]["command"] = command

    edit(client.settings, change)
    finding = only(client)
    if check is None:
        assert finding.message.endswith("no hook for Stop")
        return
    assert (finding.check, finding.status) == (check, PROBLEM)
    assert said in finding.message
    assert finding.cure == "ultramon install claude-code"


def test_hooks_of_another_ultramon_are_a_warning(client, tmp_path):
    """The one that runs is not the one that is asked."""
    package = tmp_path / "other" / "ultramon"
    source = Path(script_path(HOOK_SCRIPT)).parents[2]
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    launcher = client.states / LAUNCHERS[HOOK_SCRIPT]
    text = launcher.read_text()
    launcher.write_text(text.replace(repr(str(source.parent)), repr(str(package.parent))))
    finding = only(client)
    assert (finding.check, finding.status) == ("interpreter", WARNING)
    assert str(package.parent) in finding.message


def test_hooks_with_another_state_directory_are_a_warning(client, tmp_path):
    """What they write is not seen here."""
    now = time.time()
    other = tmp_path / "other-state"
    seen = DoctorContext(str(client.project), str(other), now)
    found = [finding for finding in examine(seen) if finding.status != OK]
    assert [finding.check for finding in found] == ["state directory", "choices"]
    assert str(client.states) in found[0].message
    assert not other.exists()


def test_the_choices_are_shown(client):
    """The rungs where they were put, not where rounding begins, and the owner's sentence."""
    client.put(critical_note="Write NOTES.md.")
    seen = DoctorContext(str(client.project), str(client.states), time.time())
    (choices,) = (one.message for one in examine(seen) if one.check == "choices")
    assert choices.endswith(
        ": audience agent, warning at 65%, critical at 75%,"
        ' critical note "Write NOTES.md.", resident'
    )


def test_choices_that_are_gone_or_torn_are_told(client):
    """Gone: the defaults hold. Torn: no agent is warned."""
    path = client.states / "claude-code.json"
    path.write_bytes(b"{torn")
    path.chmod(0o600)
    finding = only(client)
    assert (finding.check, finding.status) == ("choices", PROBLEM)
    path.unlink()
    finding = only(client)
    assert (finding.check, finding.status) == ("choices", WARNING)
    assert "is gone" in finding.message


def test_a_status_line_that_took_over_is_a_warning(client):
    """Another tool replaced ours, in this layer or a stronger one; or it was taken out."""
    edit(client.settings, lambda settings: settings.update(statusLine=CCLINE))
    finding = only(client)
    assert (finding.check, finding.status) == ("status line", WARNING)
    assert f"{client.settings}: another tool's" in finding.message
    edit(client.settings, lambda settings: settings.pop("statusLine"))
    assert "was taken out since" in only(client).message
    client.put()
    path = client.write({"statusLine": CCLINE}, "project")
    finding = only(client)
    assert str(path) in finding.message
    assert finding.cure.startswith("ultramon install claude-code --project")
    path.unlink()
    client.put(status_line="none")
    assert findings(client) == []


def test_ultramon_switched_off_is_told(client, monkeypatch):
    """ULTRAMON_DISABLED in the environment reaches the hooks of a client started from it."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    assert only(client).check == "environment"


def test_a_state_directory_that_others_may_write_to_is_a_problem(client):
    """Everybody could plant states there."""
    client.states.chmod(0o777)
    finding = only(client)
    assert (finding.check, finding.status) == ("state directory", PROBLEM)
    assert finding.cure == f"chmod 700 {client.states}"
    client.states.chmod(0o700)


def test_states_are_looked_at_one_by_one(client):
    """Unreadable, of a newer ultramon, and lost: each is named."""
    save(client, "well")
    save(client, "ended", active=False, outcome="completed")
    assert findings(client) == []
    path = save(client, "torn")
    path.write_bytes(path.read_bytes()[:-20])
    save(client, "newer", schema=2)
    save(client, "lost", pid=2**22 - 1, pid_started_at="1")
    save(client, "stale", heartbeat_interval_seconds=15.0, at=time.time() - 120)
    broken, newer, silent = findings(client)
    assert (broken.status, newer.status, silent.status) == (PROBLEM, WARNING, WARNING)
    assert broken.message.startswith("cannot be read: torn (")
    assert newer.message == "written by a newer ultramon: newer"
    assert silent.message == "ended without saying so: lost (lost), stale (stale)"


def test_only_a_few_of_many_are_named(client):
    """A line stays a line."""
    for number in range(5):
        save(client, f"lost-{number}", pid=2**22 - 1, pid_started_at="1")
    assert only(client).message.endswith("lost-2 (lost) and 2 more")


def test_a_state_of_somebody_else_is_a_problem(client):
    """It says whose it is."""
    require_root()
    os.chown(save(client, "planted"), NOBODY, NOBODY)
    finding = only(client)
    assert finding.status == PROBLEM
    assert f"planted (belongs to user {NOBODY})" in finding.message


def test_rows_that_are_passed_over_are_told(client):
    """A damaged row of the journal is counted, once, with the cure."""
    journal = Journal(str(client.states))
    journal.append([make_event(n=1)], 5.0)
    assert findings(client) == []
    with closing(journal), journal.transaction(5.0) as connection:
        connection.execute("UPDATE events SET payload = '{'")
    finding = only(client)
    assert (finding.check, finding.status) == ("journal", WARNING)
    assert "1 rows cannot be read" in finding.message
    assert "ultramon backend repair" in finding.cure


def test_what_was_set_aside_is_told(client):
    """The evidence of unreadable files lies about until somebody looks."""
    path = save(client, "a")
    path.rename(f"{path}.corrupt-20260101T000000")
    finding = only(client)
    assert (finding.check, finding.status) == ("set aside", WARNING)
    assert "a.json.corrupt-20260101T000000" in finding.message


def test_the_last_failures_of_hooks_are_shown(client):
    """What could not be said to the client is said here, with its time and event."""
    states = str(client.states)
    for number in range(5):
        failure = f"fault \x1b[31m{number}"
        failure_log.record(states, "claude-code", "PostToolUse", "s1", failure, now=1e9)
    finding = only(client)
    assert finding.status == WARNING
    assert finding.message.startswith("5 noted, the last: 2001-09-09T01:46:40.000Z PostToolUse")
    assert finding.message.count("fault") == 3
    shown = client.run("doctor").stdout
    assert "\x1b" not in shown
    assert "fault \\x1b[31m4" in shown


def test_a_busy_journal_is_no_finding(client, tmp_path):
    """Events that waited in the state file are stored by a later call: nothing was lost."""
    session = HookedSession(tmp_path)
    holder = run_writer(session.state, "hold_journal")
    assert answer(holder) == "held"
    session.tool(tokens_at(20))
    finish(holder)
    [noted] = failure_log.read(failure_log.log_path(str(session.state), "claude-code"))
    assert "database is locked" in noted["problem"]
    states = str(client.states)
    for problem in (noted["problem"], f"{failure_log.NOTICES_WAIT}x: database is locked"):
        failure_log.record(states, "claude-code", "Stop", "s1", problem, now=1e9)
    assert findings(client) == []
    failure = f"{failure_log.EVENTS_WAIT}x: disk I/O error"
    failure_log.record(states, "claude-code", "Stop", "s1", failure, now=1e9)
    assert only(client).message.startswith("1 noted")


def test_a_session_that_no_hook_told_of_is_a_problem(client):
    """It began after the installation, and no state is newer than that."""
    now = time.time()
    begin_session(client, now - 3600, "before")
    assert findings(client) == []
    begin_session(client, now + 60)
    finding = only(client, now=now + 120)
    assert (finding.check, finding.status) == ("sessions", PROBLEM)
    assert format_time(now + 60) in finding.message
    save(client, "s1", at=now + 61)
    assert findings(client, now=now + 120) == []


def test_old_sessions_say_nothing(client):
    """Their states may have been pruned."""
    begin_session(client, time.time() + 60)
    assert findings(client, now=time.time() + 8 * 86_400) == []


@pytest.mark.parametrize(
    "content", [b"", b"\xff\n{}\n[1]\n", b"[" * 100_000, b'{"timestamp": 5}\n']
)
def test_a_transcript_of_any_content_stops_nobody(client, content):
    """What has no time is passed over."""
    begin_session(client, time.time() + 60)
    (path,) = client.home.rglob("s1.jsonl")
    path.write_bytes(content)
    assert findings(client) == []


def test_a_session_that_is_never_measured_is_told(client):
    """Registered to be warned, active for minutes, and no reading; silent where none is wanted."""
    now = time.time()
    save(client, "blind", at=now - 600, last_activity=now, measured_at=None)
    save(client, "fresh", at=now, measured_at=None)
    save(client, "sdk", at=now - 600, last_activity=now, measured_at=None, host="sdk")
    finding = only(client)
    assert (finding.check, finding.status) == ("readings", WARNING)
    assert finding.message == "registered, but never measured: blind"
    client.put(audience="orchestrator")
    assert findings(client) == []


def test_a_plugin_is_examined_like_settings(client, tmp_path):
    """Its commands are those of an installation too."""
    folder = tmp_path / "plugin"
    client.install("--plugin", str(folder))
    assert findings(client) == []
    hooks = folder / "hooks" / "hooks.json"
    hooks.write_text(hooks.read_text().replace(str(client.states), "/gone"))
    finding = only(client)
    assert (finding.check, finding.status) == ("launcher", PROBLEM)
    assert finding.message.startswith(f"/gone/{LAUNCHERS[HOOK_SCRIPT]}: ")


def test_the_doctor_changes_nothing(client):
    """Looking repairs nothing and leaves nothing."""
    save(client, "lost", pid=2**22 - 1, pid_started_at="1")
    begin_session(client, time.time() + 60)
    before = client.tree()
    client.run("doctor")
    assert client.tree() == before


# --- a state directory that takes nothing


def test_a_read_only_state_directory_is_a_problem(client):
    """A probe is written; the agents are warned without a store, and no other process sees them."""
    with read_only(client.states):
        finding = only(client)
        done = client.run("doctor")
    assert (finding.check, finding.status) == ("state directory", PROBLEM)
    assert finding.message == (
        f"{client.states} takes no file (Read-only file system): no state is kept"
    )
    assert done.returncode == ExitCode.FAILURE


def test_a_full_state_directory_is_a_problem(client):
    """The folder of the states counts, and the probe leaves nothing behind."""
    folder = client.states / "subagents"
    folder.mkdir(mode=0o700)
    require_root_mount(folder, "size=64k,mode=700")
    try:
        assert findings(client) == []
        with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))
        finding = only(client)
        assert finding.message.startswith(f"{folder} takes no file (No space left on device)")
        assert os.listdir(folder) == ["ballast"]
    finally:
        unmount(folder)


def test_a_state_directory_that_cannot_be_made_is_a_problem(client):
    """It would lie below a file."""
    (client.home / "file").write_text("")
    seen = DoctorContext(str(client.project), str(client.home / "file" / "state"), time.time())
    messages = [one.message for one in examine(seen) if one.check == "state directory"]
    assert f"{client.home}/file/state cannot be made in {client.home}/file: no state is kept" in (
        messages
    )


# --- sessions that nobody hears of


def test_a_blind_session_is_found_although_others_report(client):
    """Each session that began since has a state of its own, or is named."""
    now = time.time()
    for name in ("s1", "s2", "s3"):
        begin_session(client, now + 60, name)
    save(client, "s1", at=now + 61)
    save(client, "s3", at=now + 100)
    finding = only(client, now=now + 120)
    assert (finding.check, finding.status) == ("sessions", PROBLEM)
    assert finding.message == (
        f"no hook has written anything of: s2 (began {format_time(now + 60)})"
    )


def test_a_session_whose_state_was_pruned_is_not_blind(client):
    """Its events are left, and say that it reported itself."""
    now = time.time()
    begin_session(client, now + 60)
    record = make_record("s1", at=now + 61)
    with closing(LocalBackend(str(client.states))) as backend:
        backend.append_events([record.event("agent_started", source="agent:s1", at=now + 61, n=0)])
    assert findings(client, now=now + 120) == []


def test_sessions_without_our_hooks_are_not_blind(tmp_path, monkeypatch):
    """Installed for one project, the sessions of other projects need not report."""
    client = ClientHome(tmp_path).as_home(monkeypatch)
    client.put("local")
    now = time.time()
    begin_session(client, now + 60)
    assert findings(client, now=now + 120) == []
    own = client.home / ".claude" / "projects" / re.sub("[^A-Za-z0-9]", "-", str(client.project))
    (client.home / ".claude" / "projects" / "-work-shop").rename(own)
    assert only(client, now=now + 120).check == "sessions"


# --- an installation that was overwritten


def gone(client):
    """The one problem that the doctor and its exit code name."""
    finding = only(client)
    assert (finding.check, finding.status) == ("hooks", PROBLEM)
    assert client.run("doctor").returncode == ExitCode.FAILURE
    return finding


def test_hooks_that_were_overwritten_are_a_problem_with_a_name(client):
    """The commands that stand there now, and were not there before, say who it was."""
    client.take_out()
    client.write(OTHER_HOOKS.encode())
    client.put()
    settings = json.loads(OTHER_HOOKS)
    settings["hooks"]["Stop"] = [{"hooks": [{"type": "command", "command": "/opt/rival --on"}]}]
    client.write(settings)
    at = format_time(client.settings.stat().st_mtime)
    finding = gone(client)
    assert finding.message == (
        f"{client.settings}: ultramon's hooks were installed here, and it was overwritten at {at}"
        " with other hooks: /opt/rival --on"
    )
    assert finding.cure == (
        "ultramon install claude-code; or, if that was meant, ultramon uninstall claude-code"
    )
    client.put()
    assert findings(client) == []


def test_settings_that_were_put_back_are_a_problem(client):
    """Dotfiles that were restored hold what stood there before the installation."""
    client.take_out()
    client.write(OTHER_HOOKS.encode())
    client.put(status_line="none")
    client.write(OTHER_HOOKS.encode())
    assert gone(client).message.endswith("with what stood there before")
    client.write({"model": "opus"})
    assert gone(client).message.endswith("without them")
    client.settings.unlink()
    assert gone(client).message.endswith("the file was deleted since")


def test_an_installation_that_was_meant_to_go_is_forgotten_by_uninstall(client):
    """Afterwards it is the warning of a user who never installed."""
    client.write({"model": "opus"})
    assert gone(client)
    client.take_out()
    assert (only(client).status, only(client).message) == (WARNING, "are not installed")


def test_a_project_that_was_deleted_needs_no_hooks(client, tmp_path, monkeypatch):
    """Nor does a plugin folder that somebody removed."""
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    client.project, project = other, client.project
    client.put("local")
    client.install("--plugin", str(tmp_path / "plugin"))
    client.project = project
    monkeypatch.chdir(project)
    shutil.rmtree(other)
    shutil.rmtree(tmp_path / "plugin")
    assert findings(client) == []
