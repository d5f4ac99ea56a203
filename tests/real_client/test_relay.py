"""Contexts as a relay starts them: its hooks for one run, the user's beside them, what is said."""

import json
import os
import shlex
import signal
import subprocess
import threading
import uuid
from dataclasses import dataclass

import pytest

from real_client.api import Refusal, Reply, bash, marked
from real_client.client import MODEL, RUN_SECONDS
from real_client.watch import notes
from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERLOADED,
    RATE,
    STOPPED,
    ProviderLimit,
    RefusedCall,
)
from ultramon.relay.workspace_opening import open_workspace

pytestmark = pytest.mark.real_client

NOTE = "This context hands over now: end your turn."


@dataclass
class Relay:
    """A relay of one context."""

    launcher: ClaudeCodeLauncher
    client: object
    path: object
    directory: str

    def start(self, prompt, session_id, *, resumes=False, **environ):
        command = self.launcher.command(
            prompt,
            cwd=self.directory,
            session_id=session_id,
            environ=self.client.environment(**environ),
            resumes=resumes,
        )
        return command.start(str(self.path / "output"), str(self.path / "errors"))

    def outcome(self, process):
        code = process.wait(timeout=RUN_SECONDS)
        with (self.path / "output").open("rb") as lines:
            return self.launcher.read_outcome(lines, code)

    def run(self, prompt, session_id=None, **options):
        return self.outcome(self.start(prompt, session_id or str(uuid.uuid4()), **options))


@pytest.fixture
def relay(client, states, tmp_path):
    """A relay whose contexts hand over at 75 %."""
    launcher = ClaudeCodeLauncher(
        "review",
        str(states.directory),
        program=str(client.program),
        arguments=["--model", MODEL],
        hand_over_note=NOTE,
    )
    launcher.prepare()
    return Relay(launcher, client, tmp_path, str(client.project))


def test_hooks_of_the_run_and_of_the_user_work_and_an_installation_stands_down(
    install, relay, states, api, monkeypatch
):
    """The agent is asked once, by the relay; nothing of the user's settings has changed."""
    answer = {"hookEventName": "PostToolUse", "additionalContext": "somebody else was here"}
    says = f"echo {shlex.quote(json.dumps({'hookSpecificOutput': answer}))}"
    client = relay.client
    settings = json.loads(client.settings.read_text())
    settings["hooks"] = {"PostToolUse": [{"hooks": [{"type": "command", "command": says}]}]}
    client.settings.write_text(json.dumps(settings))
    install("--critical-note", "Said by the installation.")
    before = client.settings.read_bytes()
    # Two calls beyond the rung: the client may write a reply down after the hook of its call, and a
    # jump this large is not waited for.
    beyond = bash(155_000, "echo 2"), bash(155_500, "echo 3")
    api.play(bash(20_000, "echo 1"), *beyond, Reply(156_000, "Handed over."))
    session_id = str(uuid.uuid4())
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(client.configuration))
    assert relay.launcher.check(str(client.project)).version
    outcome = relay.run(marked("do the work"), session_id)
    assert (outcome.end, outcome.session_id) == (COMPLETED, session_id)
    assert outcome.last_text == "Handed over."
    assert outcome.cost_usd > 0
    assert set(states.all()) == {session_id}
    last = api.turns()[-1]
    assert last.count("somebody else was here") == 3
    assert (len(notes(last)), last.count(NOTE)) == (1, 1)
    assert last.count("Said by the installation.") == 0
    assert client.settings.read_bytes() == before
    # The same installation speaks where no relay runs.
    api.play(*beyond, Reply(156_000, "Done."))
    client.run(marked("by hand"))
    assert api.turns()[-1].count("Said by the installation.") == 1


def test_a_relay_grants_no_permission(relay, api):
    """What the user has not allowed is refused, and the relay knows what."""
    relay.client.settings.write_text("{}")
    api.play(bash(20_000, "touch made"), Reply(21_000, "I could not."))
    outcome = relay.run(marked("make a file"))
    assert (outcome.end, outcome.refused) == (COMPLETED, (RefusedCall("Bash", "touch made"),))
    assert os.listdir(relay.client.project) == []


def test_a_turn_that_a_hook_ends_is_known(relay, api):
    """Exit code 0, no text: the result's reason says it."""
    stop = json.dumps({"continue": False, "stopReason": "hand over"})
    hook = {"type": "command", "command": f"echo {shlex.quote(stop)}"}
    settings = json.loads(relay.client.settings.read_text())
    relay.client.settings.write_text(
        json.dumps({**settings, "hooks": {"PostToolUse": [{"hooks": [hook]}]}})
    )
    api.play(bash(20_000, "echo 1"))
    outcome = relay.run(marked("do the work"))
    assert (outcome.end, outcome.exit_code) == (STOPPED, 0)


@pytest.mark.parametrize(
    ("refusal", "end", "limit"),
    [
        (Refusal("Slower.", 429, "rate_limit_error"), LIMITED, ProviderLimit(RATE)),
        (Refusal("Overloaded", 529, "overloaded_error"), LIMITED, ProviderLimit(OVERLOADED)),
        (Refusal("Your credit balance is too low.", 400), FAILED, None),
    ],
)
def test_a_provider_that_refuses_is_known_and_the_session_goes_on_later(
    relay, api, refusal, end, limit
):
    """The same session is resumed, with all that was said in it."""
    session_id = str(uuid.uuid4())
    api.play(bash(20_000, "echo 1"))
    api.whenever(Refusal(refusal.message, refusal.status, refusal.kind, (("retry-after", "1"),)))
    outcome = relay.run(marked("do the work"), session_id, CLAUDE_CODE_MAX_RETRIES="1")
    assert (outcome.end, outcome.limit, outcome.exit_code) == (end, limit, 1)
    api.whenever(Reply(22_000, "Done."))
    outcome = relay.run("Go on.", session_id, resumes=True)
    assert (outcome.end, outcome.session_id) == (COMPLETED, session_id)
    assert api.turns()[-1].count("do the work") == 1


def test_a_client_that_is_killed_leaves_no_result(relay, api):
    """Its session is known all the same."""
    session_id = str(uuid.uuid4())
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Never.", gate=threading.Event()))
    process = relay.start(marked("do the work"), session_id)
    api.wait_for_turns(2)
    os.killpg(process.pid, signal.SIGKILL)
    outcome = relay.outcome(process)
    assert (outcome.end, outcome.session_id, outcome.exit_code) == (CUT_OFF, session_id, -9)


def test_in_the_worktree_the_projects_own_settings_hold(relay, api):
    """The client takes those that are in no commit from the user's tree: nothing is refused."""
    project = relay.client.project
    relay.client.settings.write_text("{}")
    (project / ".claude").mkdir()
    for name, tool in (("settings.json", "mkdir"), ("settings.local.json", "touch")):
        rules = {"permissions": {"allow": [f"Bash({tool} *)"]}}
        (project / ".claude" / name).write_text(json.dumps(rules))
    (project / ".gitignore").write_text("*.local.json\n")
    git = ["git", "-C", str(project), "-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *arguments], check=True)
    workspace = open_workspace(
        "review", cwd=str(project), state_directory=str(relay.path / "state")
    )
    relay.directory = workspace.path
    api.play(bash(20_000, "touch made"), bash(21_000, "mkdir dir"), Reply(22_000, "Done."))
    outcome = relay.run(marked("do the work"))
    assert (outcome.end, outcome.refused) == (COMPLETED, ())
    assert workspace.summarise().dirty_files == ("made",)
    assert not (project / "made").exists()
