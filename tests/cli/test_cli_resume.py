"""`ultramon resume` after the client was killed, and `ultramon host hook` by hand."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from helpers.hooked_session import HookedSession
from helpers.program import PROGRAM, environment, run

from ultramon.backends.local.state_files import StateDirectory
from ultramon.system.processes import boot_seconds

LONG = 60.0
WAITS = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def client():
    """A process in the place of the client; ends with the test."""
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        yield process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def work(session):
    """A prompt, a tool, a subagent."""
    session.call("SessionStart", source="startup")
    session.call("UserPromptSubmit", prompt="mend the roof\nand the door")
    session.tool(50_000)
    session.call("SubagentStart", agent="a1")


def test_a_session_whose_client_was_killed_is_listed_with_the_way_back(tmp_path, client):
    session = HookedSession(tmp_path, CLAUDE_PID=str(client.pid))
    work(session)
    assert run("resume", "--state-dir", session.state).stdout == ""
    kill(client)
    shown = run("resume", "--state-dir", session.state)
    first, second = shown.stdout.splitlines()
    assert first.startswith("project: mend the roof and the door  (25 % full, last active ")
    assert first.endswith("last task: mend the roof and the door)")
    assert second == f"    cd {shlex.quote(str(session.project))} && claude --resume session"


def reboot(session):
    """Let a session have been left by the boot before this one, as its state tells it."""
    states = StateDirectory(str(session.state))
    record = states.read(session.ids()[0])
    _, _, namespace = record.boot_id.partition(":")
    record.boot_id, record.pid = f"an-earlier-boot:{namespace}", os.getpid()
    record.last_heartbeat -= boot_seconds() + 100
    with states.locked(record.agent_id, LONG):
        states.replace(record, durable=False)


def test_a_session_from_before_a_reboot_is_listed_until_it_is_resumed(tmp_path, client):
    """Its pid says nothing now: another process may have it."""
    session = HookedSession(tmp_path, CLAUDE_PID=str(client.pid))
    session.call("SessionStart", source="startup")
    session.call("UserPromptSubmit", prompt="mend the roof")
    reboot(session)
    assert "--resume session" in run("resume", "--state-dir", session.state).stdout
    assert (
        "LOST: the machine was started anew" in run("status", "--state-dir", session.state).stdout
    )
    session.call("SessionStart", source="resume")
    assert run("resume", "--state-dir", session.state).stdout == ""
    kill(client)
    assert "--resume session" in run("resume", "--state-dir", session.state).stdout


def test_a_session_that_a_signal_ended_in_a_turn_is_listed(tmp_path, client):
    """A shutdown signals every process: the client can still report its end then."""
    session = HookedSession(tmp_path, CLAUDE_PID=str(client.pid))
    session.call("SessionStart", source="startup")
    session.call("UserPromptSubmit", prompt="mend the roof")
    session.call("SessionEnd", reason="other")
    kill(client)
    assert session.record().outcome == "cancelled"
    assert "--resume session" in run("resume", "--state-dir", session.state).stdout


def test_what_ended_by_itself_is_listed_on_demand_only(tmp_path, client):
    session = HookedSession(tmp_path, CLAUDE_PID=str(client.pid))
    work(session)
    session.call("SessionEnd", reason="prompt_input_exit")
    kill(client)
    assert "no session was cut off" in run("resume", "--state-dir", session.state).stderr
    assert "--resume session" in run("resume", "--all", "--state-dir", session.state).stdout
    assert "--resume session" in run("resume", "sess", "--state-dir", session.state).stdout


def test_the_last_active_comes_first_and_json_has_the_command(tmp_path, client):
    for name in ("early", "late"):
        work(HookedSession(tmp_path, name, CLAUDE_PID=str(client.pid)))
    kill(client)
    listed = json.loads(run("resume", "--json", "--state-dir", tmp_path / "hooked").stdout)
    assert [one["agentId"] for one in listed["sessions"]] == ["late", "early"]
    assert listed["sessions"][0]["command"].endswith("&& claude --resume late")


def test_sessions_are_shown_and_found_by_short_ids(tmp_path):
    """Nobody chose the long ones; what the table shows can be typed."""
    session = HookedSession(tmp_path, "c0ffee00-1111-2222-3333-444455556666")
    work(session)
    table = run("status", "--state-dir", session.state, COLUMNS="160").stdout
    assert re.search(r"^project: mend the roof and t.* c0ffee00 *$", table, re.MULTILINE)
    assert re.search(r"^project: general-purpose .* c0ffee00\.a1$", table, re.MULTILINE)
    found = run("status", "c0ffee00.a1", "--json", "--state-dir", session.state).stdout
    assert [one["agentId"] for one in json.loads(found)["agents"]] == [f"{session.session_id}.a1"]


def test_the_beginning_of_an_id_that_several_sessions_share_is_refused(tmp_path):
    for name in ("session-1", "session-2"):
        work(HookedSession(tmp_path, name))
    asked = run("resume", "sess", "--state-dir", tmp_path / "hooked")
    assert asked.returncode == 4
    assert "prefix sess fits 4 agents" in asked.stderr


def test_a_hostile_folder_and_prompt_cannot_reach_the_shell_or_the_terminal(tmp_path, client):
    session = HookedSession(tmp_path, CLAUDE_PID=str(client.pid))
    folder = "/tmp/$(touch evil)'\x1b[31m"
    session.call("UserPromptSubmit", prompt="\x1b]8;;x\x07click", cwd=folder)
    kill(client)
    shown = run("resume", "--state-dir", session.state).stdout
    assert "\x1b" not in shown
    assert shlex.quote("/tmp/$(touch evil)'").removesuffix("'") in shown


def test_the_hook_can_be_tried_by_hand(tmp_path):
    """It answers as the installed one does, and keeps quiet on nonsense."""
    session = HookedSession(tmp_path)
    session.reply(140_000, "toolu_1")
    payload = session.payload("PostToolUse", tool_name="Bash", tool_use_id="toolu_1")
    env = environment(**session.environ, ULTRAMON_STATE_DIR=str(session.state))

    def by_hand(*verb, data):
        return subprocess.run(
            [PROGRAM, *verb], input=data, capture_output=True, env=env, check=False, timeout=60
        )

    answer = by_hand("hook", "claude-code", data=json.dumps(payload).encode())
    text = json.loads(answer.stdout)["hookSpecificOutput"]["additionalContext"]
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert "140,000 of 200,000 tokens (70 %)" in text
    nonsense = by_hand("hook", "claude-code", data=b"nonsense")
    assert (nonsense.returncode, nonsense.stdout, nonsense.stderr) == (0, b"", b"")
    line = by_hand("statusline", data=json.dumps(payload).encode())
    assert b"70%" in line.stdout
    assert os.path.exists(session.state / "claude-code.failures.jsonl")
