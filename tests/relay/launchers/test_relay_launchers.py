"""What a relay starts: the command line, the environment, the hooks of one run."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hooked_session import HookedSession, tokens_at

from ultramon.context.ladder import Ladder, Rung
from ultramon.errors import ConfigurationError
from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.claude_code.install.commands import EVENTS
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.relay.launchers.claude_code import REFUSED_ARGUMENTS, ClaudeCodeLauncher
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.relay.launchers.hooked_launcher import MAX_PROMPT_BYTES, WORKER_VARIABLES
from ultramon.relay.launchers.outcome import COMPLETED, CUT_OFF, FAILED
from ultramon.relay.launchers.port import AgentLauncher, ContextCommand
from ultramon.relay.run_folder import run_directory

SESSION = "7d1f0a34-6a0b-4c6f-9c56-0d9f1a1f3c11"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user who has configured nothing."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "home" / ".claude"))
    (tmp_path / "home" / ".claude").mkdir(parents=True)
    return tmp_path / "home"


def launcher(tmp_path, **options):
    return ClaudeCodeLauncher("review", str(tmp_path / "state"), **options)


def program(tmp_path, text):
    """A program of one shell script, in the place of the client."""
    path = tmp_path / "claude"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


# --- Claude Code: the command line


def test_the_command_line_grants_nothing(tmp_path, home):
    """Every argument of ultramon is one of these, and the user's follow as they are."""
    command = launcher(tmp_path, arguments=["--permission-mode", "plan"]).command(
        "# Goal", cwd="/srv", session_id=SESSION, environ={}
    )
    *given, settings, mode, plan = command.arguments
    assert given == [
        "claude", "-p", "# Goal", "--output-format", "stream-json", "--verbose",
        "--session-id", SESSION, "--settings",
    ]  # fmt: skip
    assert list(json.loads(settings)) == ["hooks"]
    assert (mode, plan, command.cwd) == ("--permission-mode", "plan", "/srv")


def test_a_session_that_waited_for_a_limit_goes_on(tmp_path, home):
    """It is resumed by its name, with another prompt."""
    again = launcher(tmp_path).command(
        "Go on.", cwd="/srv", session_id=SESSION, environ={}, resumes=True
    )
    at = again.arguments.index("--resume")
    assert again.arguments[at + 1] == SESSION
    assert "--session-id" not in again.arguments


def test_the_environment_is_the_relays(tmp_path, home):
    """The client learns where it is; what an outer client set for its own tools is gone."""
    outer = dict.fromkeys((*ClaudeCodeLauncher.outer_variables, *WORKER_VARIABLES), "1")
    given = {"PATH": "/bin", "ULTRAMON_AUDIENCE": "none", **outer}
    environ = launcher(tmp_path).command("x", cwd="/", session_id=SESSION, environ=given).environ
    assert environ == {
        "PATH": "/bin",
        "ULTRAMON_AUDIENCE": "agent",
        "ULTRAMON_RELAY": "review",
        "ULTRAMON_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.mark.parametrize("argument", [*REFUSED_ARGUMENTS, "--settings={}", "--resume=x"])
def test_arguments_that_a_relay_cannot_do_with_are_refused(tmp_path, argument):
    """Before anything is started, with the reason."""
    with pytest.raises(ConfigurationError, match="must be left out: "):
        launcher(tmp_path, arguments=["--model", "opus", argument])


@pytest.mark.parametrize("prompt", ["", "-x", "a\0b", "x" * (MAX_PROMPT_BYTES + 1)])
def test_a_prompt_that_is_no_argument_is_refused(tmp_path, home, prompt):
    """The system would refuse it later, or the client take it for an option."""
    with pytest.raises(ConfigurationError, match=r"^prompt="):
        launcher(tmp_path).command(prompt, cwd="/", session_id=SESSION, environ={})


def test_a_prompt_may_hold_any_name(tmp_path, home):
    """Half a character of a broken file name becomes a question mark; the longest prompt starts."""
    half = launcher(tmp_path).command("a\udcff", cwd="/", session_id=SESSION, environ={})
    assert half.arguments[2] == "a?"
    longest = launcher(tmp_path, program="true").command(
        "x" * MAX_PROMPT_BYTES, cwd="/", session_id=SESSION, environ=dict(os.environ)
    )
    assert longest.start(str(tmp_path / "out"), str(tmp_path / "err")).wait(timeout=60) == 0


# --- Claude Code: the hooks of one run


def test_the_hooks_of_the_run_warn_the_agent(tmp_path, home):
    """They are run as the client runs them, beside an installation that does nothing."""
    session = HookedSession(tmp_path)
    mine = ClaudeCodeLauncher("review", str(session.state), hand_over_note="End the turn then.")
    mine.prepare()
    settings = mine.settings()
    assert set(settings["hooks"]) == set(EVENTS)
    (entry,) = settings["hooks"]["PostToolUse"]
    environ = mine.command("x", cwd="/", session_id=SESSION, environ=session.environ).environ
    session.reply(tokens_at(20), "toolu_1")
    payload = session.payload(
        "PostToolUse", tool_name="Bash", tool_response={}, tool_use_id="toolu_1"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", entry["hooks"][0]["command"]],
        input=json.dumps(payload).encode(), env=environ, capture_output=True, check=True,
    )  # fmt: skip
    assert b"End the turn then." in done.stdout
    assert session.ids() == ["session"]
    assert session.tool(tokens_at(10), env=environ).stdout == b""
    assert session.failures() == []


def test_nothing_is_written_outside_of_the_runs_folder(tmp_path, home):
    """Preparing twice changes nothing, and the user's settings are not touched."""
    mine = launcher(tmp_path)
    mine.prepare()
    mine.prepare()
    assert list(home.rglob("*")) == [home / ".claude"]
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    folder = run_directory(str(tmp_path / "state"), "review")
    assert sorted(map(str, files)) == [
        f"{folder}/claude-code.json",
        f"{folder}/claude-code.ultramon-hook",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600, 0o700}


def test_the_users_rungs_hold_unless_the_relay_has_its_own(tmp_path, home):
    """Cap, rungs and the note for summaries are those of the installation; its audience is not."""
    user = InstalledChoices(choices_path(str(tmp_path / "state"), "claude-code"))
    user.audience, user.handoff_note, user.context_limit_tokens = "none", "Keep it.", 100_000
    user.ladder = Ladder((Rung("critical", 0.5, None, "force_return"),), round_percent=True)
    user.save()
    launcher(tmp_path).prepare()
    path = choices_path(run_directory(str(tmp_path / "state"), "review"), "claude-code")
    mine = InstalledChoices.load(path)
    assert (mine.audience, mine.handoff_note, mine.context_limit_tokens) == (
        "agent", "Keep it.", 100_000,
    )  # fmt: skip
    assert mine.ladder == user.ladder
    other = Ladder((Rung("critical", 0.6, None, "force_return"),), round_percent=True)
    launcher(tmp_path, ladder=other, context_limit_tokens=50_000).prepare()
    mine = InstalledChoices.load(path)
    assert (mine.ladder, mine.context_limit_tokens) == (other, 50_000)


def test_a_relay_that_enforces_says_so_in_its_own_choices(tmp_path, home):
    """The lowest rung that asks to return is the level; preparing again switches it on again."""
    path = choices_path(run_directory(str(tmp_path / "state"), "review"), "claude-code")
    launcher(tmp_path).prepare()
    assert InstalledChoices.load(path).enforce is None
    rungs = Rung("early", 0.5, None, "prepare_handoff"), Rung("late", 0.6, None, "force_return")
    mine = launcher(tmp_path, enforce=True, ladder=Ladder(rungs))
    mine.prepare()
    chosen = InstalledChoices.load(path)
    assert (chosen.enforce, chosen.enforce_dry_run) == ("late", False)
    switch = Path(chosen.switch_path)
    switch.write_text("{}")
    mine.prepare()
    assert not switch.exists()


def test_the_hooks_of_a_relay_that_enforces_end_a_context_that_goes_on(tmp_path):
    """And those of its user's installation, which do not, do nothing."""
    session = HookedSession(tmp_path)
    session.freeze()
    mine = ClaudeCodeLauncher(
        "review", str(session.state), context_limit_tokens=200_000, enforce=True
    )
    mine.prepare()
    session.environ |= mine.command(
        "x", cwd="/", session_id=SESSION, environ=session.environ
    ).environ
    session.installed = Path(session.state, "relay", "review", "claude-code.json")
    answers = [session.tool(tokens_at(20) + number) for number in range(REPLIES_TO_RETURN + 1)]
    assert "a hook ends this turn" in answers[0].text
    assert answers[-1].value["continue"] is False
    assert session.record().handoff is not None
    assert session.failures() == []


def test_where_no_launcher_can_be_run_the_hook_is_a_shell_command(tmp_path, home):
    """As an installation does: a first line cannot be longer than 127 bytes."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    python = deep / "python3"
    python.symlink_to(sys.executable)
    code = "import json; from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher as One"
    code += f"; one = One('review', {str(tmp_path / 'state')!r})"
    code += "; one.prepare(); print(json.dumps(one.settings()))"
    done = subprocess.run(
        [python, "-c", code], env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, check=True,
    )  # fmt: skip
    command = json.loads(done.stdout)["hooks"]["Stop"][0]["hooks"][0]["command"]
    assert " -I -S " in command
    folder = run_directory(str(tmp_path / "state"), "review")
    assert os.listdir(folder) == ["claude-code.json"]
    assert shlex.split(command)[-1] == f"{folder}/claude-code.json"


# --- Claude Code: is it there?


def test_a_client_that_is_there_says_its_version(tmp_path, home):
    """An older one than the tested one is used, with a word to the user."""
    path = program(tmp_path, "echo '2.1.330 (Claude Code)'")
    found = launcher(tmp_path, program=path).check(str(tmp_path))
    assert (found.program, found.version, found.warning) == (path, "2.1.330", None)
    old = program(tmp_path, "echo '2.0.9 (Claude Code)'")
    warning = launcher(tmp_path, program=old).check(str(tmp_path)).warning
    assert warning.startswith("Claude Code 2.0.9 is older than 2.1.330")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo hello", "it says 'hello'"),
        ("exit 3", "it exits with 3"),
        ("#", "it says ''"),
    ],
)
def test_a_program_that_is_no_claude_code_is_refused(tmp_path, home, script, problem):
    """Before the first context."""
    with pytest.raises(ConfigurationError, match=problem):
        launcher(tmp_path, program=program(tmp_path, script)).check(str(tmp_path))


def test_a_missing_client_is_an_error(tmp_path, home):
    """Not on PATH, or not a program for this machine."""
    with pytest.raises(ConfigurationError, match="must be Claude Code on this machine; --agent"):
        launcher(tmp_path, program="no-such-claude").check(str(tmp_path))
    broken = tmp_path / "claude"
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    with pytest.raises(ConfigurationError, match="it does not start: Exec format error"):
        launcher(tmp_path, program=str(broken)).check(str(tmp_path))


def test_a_client_that_runs_no_hooks_is_refused(tmp_path, home, monkeypatch):
    """A relay that sees nothing could neither warn nor hand over."""
    path = program(tmp_path, "echo '2.1.330 (Claude Code)'")
    (home / ".claude" / "settings.json").write_text('{"disableAllHooks": true}')
    with pytest.raises(ConfigurationError, match=r"disableAllHooks=True .* must be false"):
        launcher(tmp_path, program=path).check(str(tmp_path))
    (home / ".claude" / "settings.json").write_text("{")
    assert launcher(tmp_path, program=path).check(str(tmp_path)).version
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    with pytest.raises(ConfigurationError, match="must be unset for a relay"):
        launcher(tmp_path, program=path).check(str(tmp_path))


# --- starting


def test_a_context_outlives_whoever_started_it(tmp_path):
    """Its words are in files of this user alone; it has a group of its own and nothing to read."""
    script = "cat; echo said; echo wrong >&2; exec sleep 60"
    command = ContextCommand(("/bin/sh", "-c", script), {"PATH": os.environ["PATH"]}, "/")
    out, errors = tmp_path / "out", tmp_path / "errors"
    out.write_text("of an earlier context")
    process = command.start(str(out), str(errors))
    try:
        assert os.getpgid(process.pid) == process.pid
        while not errors.read_bytes():
            os.sched_yield()
        assert (out.read_text(), errors.read_text()) == ("said\n", "wrong\n")
        assert stat.S_IMODE(errors.stat().st_mode) == 0o600
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_context_that_cannot_start_leaves_no_process(tmp_path):
    """The system's own error says why."""
    command = ContextCommand(("/bin/true",), {}, str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError):
        command.start(str(tmp_path / "out"), str(tmp_path / "errors"))


# --- any program


def test_any_program_is_a_client(tmp_path):
    """It gets its work by its environment, and says by its exit code only how it ended."""
    launchers: list[AgentLauncher] = [
        CommandLauncher("review", ["sh", "-c", 'test "$ULTRAMON_RELAY$WORK" = reviewx']),
        launcher(tmp_path),
    ]
    any_program = launchers[0]
    assert os.path.isabs(any_program.check("/").program)
    any_program.prepare()
    command = any_program.command(
        "unused", cwd="/", session_id=SESSION, environ={"PATH": os.environ["PATH"], "WORK": "x"}
    )
    process = command.start(str(tmp_path / "out"), str(tmp_path / "errors"))
    assert process.wait(timeout=60) == 0
    ends = [any_program.read_outcome([], code).end for code in (0, 1, -9, None)]
    assert ends == [COMPLETED, FAILED, CUT_OFF, CUT_OFF]


def test_a_program_that_is_not_there_is_refused(tmp_path):
    """A path with a folder in it is meant from where the program will work."""
    with pytest.raises(ConfigurationError, match="a program that can be run"):
        CommandLauncher("review", ["no-such-program"]).check(str(tmp_path))
    with pytest.raises(ConfigurationError, match="a program and its arguments"):
        CommandLauncher("review", [])
    program(tmp_path, "")
    assert CommandLauncher("review", ["./claude"]).check(str(tmp_path)).program.endswith("claude")


def test_the_end_of_a_session_is_stored_where_its_hook_was_not_waited_for(tmp_path, home):
    """As the hook itself would have done; a second time changes nothing."""
    session = HookedSession(tmp_path)
    one = ClaudeCodeLauncher("review", str(session.state))
    one.prepare()
    folder = run_directory(str(session.state), "review")
    session.installed = choices_path(folder, "claude-code")
    session.environ |= {"ULTRAMON_STATE_DIR": str(session.state)}
    session.environ |= {"ULTRAMON_RELAY": "review", "ULTRAMON_AGENT_ID": "review.1"}
    session.tool(tokens_at(80))
    for _ in range(2):
        one.end_session("review.1", session.environ)
    (stopped,) = session.events("agent_stopped")
    assert (stopped["agentId"], stopped["outcome"]) == ("review.1", "completed")
    one.end_session("review.2", session.environ)
    assert session.ids() == ["review.1"]
