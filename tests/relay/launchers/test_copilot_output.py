"""What a context of Copilot CLI said at its end, and how one is started.

Files are recordings of 1.0.102 against a stand-in API; the other lines have their form.
"""

import json
import re

import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.hosts.copilot.setup import ENFORCING_EVENTS, EVENTS
from ultramon.relay.launchers.copilot import REFUSED_ARGUMENTS, CopilotLauncher, read_outcome
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    OVERLOADED,
    RATE,
    STOPPED,
    USAGE,
    ProviderLimit,
    RefusedCall,
)

RECORDED = DATA / "exec_json" / "copilot-1.0.102"
SESSION = "11111111-2222-4333-8444-555555555555"


def recorded(name):
    return (RECORDED / f"{name}.jsonl").read_bytes().splitlines()


def line(kind, data=None, **more):
    return json.dumps({"type": kind, "data": data or {}, **more}).encode()


SAID = line("assistant.message", {"content": "All done.", "toolRequests": []})
RESULT = line("result", sessionId=SESSION, exitCode=0)
ENDED = line("tool.execution_complete", {"toolCallId": "1", "error": {"code": "rejected"}})


def failed(message, **more):
    return line("session.error", {"errorType": "query", "message": message, **more})


def test_a_window_that_is_full_ends_a_context():
    """Of a subagent alone it does not."""
    outcome = read_outcome(recorded("overflow"), 1)
    assert (outcome.end, outcome.session_id) == (OVERFLOWED, SESSION)
    assert "maximum context length" in outcome.error
    outcome = read_outcome(recorded("subagent_failed"), 0)
    assert (outcome.end, outcome.last_text, outcome.error) == (COMPLETED, "Joined.", None)


def test_calls_that_no_person_allowed_are_named():
    """With an argument that would allow each."""
    outcome = read_outcome(recorded("denied"), 0)
    assert (outcome.end, outcome.refused_count) == (COMPLETED, 2)
    file = RefusedCall("create", "/home/user/project/n.txt")
    assert set(outcome.refused) == {RefusedCall("bash", "touch made"), file}
    launcher = CopilotLauncher("job", "/nowhere")
    told = {launcher.describe_refused(call) for call in outcome.refused}
    assert told == {"--allow-tool 'shell(touch:*)'", "--allow-tool write"}


@pytest.mark.parametrize(
    ("lines", "exit_code", "end"),
    [
        ([SAID, RESULT], 0, COMPLETED), ([SAID, RESULT], -15, COMPLETED),
        ([SAID, RESULT], 1, FAILED), ([SAID], 0, CUT_OFF), ([], 1, CUT_OFF),
        ([SAID, ENDED, RESULT], 0, STOPPED), ([ENDED, SAID, RESULT], 0, COMPLETED),
    ],
)  # fmt: skip
def test_an_end_is_what_was_printed_last(lines, exit_code, end):
    """A hook that denied a call has ended the turn where nothing followed."""
    assert read_outcome(lines, exit_code).end == end


@pytest.mark.parametrize(
    ("error", "end", "limit"),
    [
        (failed("429 slow down", statusCode=429), LIMITED, ProviderLimit(RATE)),
        (failed("overloaded", statusCode=529), LIMITED, ProviderLimit(OVERLOADED)),
        (failed("used up", errorType="quota"), LIMITED, ProviderLimit(USAGE)),
        (failed("no such model", statusCode=404), FAILED, None),
        (failed("", statusCode="x"), FAILED, None),
    ],
)
def test_a_failure_is_told_by_its_status(error, end, limit):
    """Without one it is no limit."""
    outcome = read_outcome([SAID, error, RESULT], 1)
    assert (outcome.end, outcome.limit) == (end, limit)


@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(recorded("denied")))))
def test_any_output_has_an_end(lines):
    """Nothing is raised, whatever was printed."""
    assert read_outcome(lines, 1).end in (CUT_OFF, FAILED, COMPLETED, STOPPED)


@pytest.mark.parametrize("argument", [*REFUSED_ARGUMENTS, "--resume=x"])
def test_arguments_that_a_relay_cannot_do_with_are_refused(tmp_path, argument):
    """Before anything is started, with the reason."""
    with pytest.raises(ConfigurationError, match="must be left out: "):
        CopilotLauncher("job", str(tmp_path), arguments=[argument])


@pytest.mark.parametrize("enforce", [False, True])
def test_the_plugin_is_for_the_run_alone(tmp_path, enforce):
    """It holds hooks by the run's choices; an argument names its folder."""
    launcher = CopilotLauncher("job", str(tmp_path), arguments=["--allow-all"], enforce=enforce)
    launcher.prepare()
    command = launcher.command("go", cwd=str(tmp_path), session_id=SESSION, environ={})
    folder = tmp_path / "relay" / "job" / "copilot.plugin"
    assert command.arguments == (
        "copilot", "--allow-all", "--plugin-dir", str(folder), "--output-format", "json",
        "--session-id", SESSION, "--prompt", "go",
    )  # fmt: skip
    hooks = json.loads((folder / "hooks.json").read_text())["hooks"]
    assert set(hooks) == {*EVENTS, *(ENFORCING_EVENTS if enforce else ())}
    assert str(tmp_path / "relay" / "job" / "copilot.json") in json.dumps(hooks)
    assert json.loads((folder / "plugin.json").read_text())["hooks"] == "hooks.json"
    resumed = launcher.command("go", cwd="/", session_id=SESSION, environ={}, resumes=True)
    assert resumed.arguments[-4:-2] == ("--resume", SESSION)


def test_permissions_are_the_users():
    """And the client's version is in its own words."""
    asked = CopilotLauncher("job", "/nowhere").describe_permissions()
    assert asked.endswith("what would prompt is denied")
    free = CopilotLauncher("job", "/nowhere", arguments=["--allow-all"]).describe_permissions()
    assert free.endswith("by your argument --allow-all")
    said = "GitHub Copilot CLI 1.0.102.\nRun 'copilot update' to check for updates."
    assert re.match(CopilotLauncher.version_pattern, said).groups() == ("1", "0", "102")
