"""What a context of opencode said at its end, and how one is started.

The refusal is a recording of 1.18.33 against a stand-in API; the others have its lines.
"""

import json

import pytest
from helpers import DATA
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.relay.launchers.opencode import (
    CONFIGURATION,
    REFUSED_ARGUMENTS,
    OpencodeLauncher,
    read_outcome,
)
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    RATE,
    STOPPED,
    ProviderLimit,
    SpentTokens,
)

REFUSED = (DATA / "exec_json" / "opencode-1.18.33" / "overflow.jsonl").read_bytes().splitlines()
SESSION = "ses_dee12ad71ffe2j1LIWGsf93adT"


def line(kind, **more):
    return json.dumps({"type": kind, "sessionID": SESSION, **more}).encode()


def text(said):
    return line("text", part={"type": "text", "text": said})


def error(name, **data):
    return line("error", error={"name": name, "data": data})


CALLED = line("tool_use", part={"type": "tool", "tool": "bash"})
STEP = {"input": 1_000, "output": 5, "reasoning": 2, "cache": {"read": 300, "write": 40}}
NEXT = line("step_finish", part={"reason": "tool-calls", "tokens": STEP, "cost": 0.25})
OVER = line("step_finish", part={"reason": "stop", "tokens": STEP, "cost": 0.5})


def test_a_plain_run():
    """The last words are those behind the last tool; each request is paid for."""
    outcome = read_outcome([text("first"), CALLED, NEXT, text("All"), text("done."), OVER], 0)
    assert (outcome.end, outcome.session_id, outcome.error) == (COMPLETED, SESSION, None)
    assert outcome.last_text == "All\ndone."
    assert outcome.spent == SpentTokens(2_000, 80, 600, 14)
    assert (outcome.cost_usd, outcome.skipped_lines) == (0.75, 0)


def test_a_recorded_refusal_is_an_overflow():
    """What was spent before it counts."""
    outcome = read_outcome(REFUSED, 1)
    assert (outcome.end, outcome.session_id) == (OVERFLOWED, SESSION)
    assert "maximum context length" in outcome.error
    assert outcome.spent == SpentTokens(60_000, 0, 0, 40)


def test_a_failure_that_a_later_reply_has_mended_is_none():
    """After a compaction the work ends well, and the client exits with 1 all the same."""
    lines = [NEXT, error("ContextOverflowError", message="too long"), NEXT, text("done"), OVER]
    assert read_outcome(lines, 1).end == COMPLETED
    assert read_outcome([NEXT, OVER], 1).end == FAILED
    assert read_outcome(lines, 2).end == FAILED


@pytest.mark.parametrize(
    ("lines", "exit_code", "end"),
    [
        ([], 0, CUT_OFF),
        ([NEXT], -9, CUT_OFF),
        ([NEXT, error("MessageAbortedError", message="Aborted")], 1, STOPPED),
        ([error("ProviderAuthError", message="no key")], 1, FAILED),
        ([error("APIError", message="slow down", statusCode=429)], 1, LIMITED),
        (
            [error("APIError", message="prompt is too long: 9 tokens > 8 maximum")],
            1,
            OVERFLOWED,
        ),
    ],
)
def test_how_it_ended(lines, exit_code, end):
    """By its error, else by the reason of its last step."""
    outcome = read_outcome(lines, exit_code)
    assert outcome.end == end
    assert outcome.limit == (ProviderLimit(RATE) if end == LIMITED else None)


@given(st.lists(st.binary(max_size=30) | st.sampled_from([*REFUSED, NEXT, OVER, CALLED])))
def test_nothing_that_was_printed_raises(lines):
    """Whatever it is."""
    read_outcome([*lines, b'{"type":"error","error":5}', b'{"type":"text","part":[]}'], 0)


@pytest.fixture
def launcher(tmp_path):
    return OpencodeLauncher("job", str(tmp_path / "state"), arguments=("-m", "fake/fake-1"))


def test_a_context_is_a_run_with_a_plugin_of_its_own(launcher, tmp_path, monkeypatch):
    """Beside those that the user names the same way; a session is continued by its id."""
    monkeypatch.setenv(CONFIGURATION, '{"plugin": ["mine"], "share": "disabled"}')
    launcher.prepare()
    (file,) = (tmp_path / "state").rglob("ultramon.js")
    assert str(file.parent / "opencode.json") in file.read_text()
    command = launcher.command(
        "go", cwd=str(tmp_path), session_id="ses_1", environ={}, resumes=True
    )
    assert command.arguments == (
        "opencode", "run", "--format", "json", "-m", "fake/fake-1", "--session", "ses_1", "go",
    )  # fmt: skip
    given = json.loads(command.environ[CONFIGURATION])
    assert given == {"plugin": ["mine", file.as_uri()], "share": "disabled"}
    new = launcher.command("go", cwd=str(tmp_path), session_id="ses_1", environ={})
    assert "--session" not in new.arguments
    assert "denied" in launcher.describe_permissions()


def test_what_keeps_the_plugin_out_is_refused(launcher, tmp_path, monkeypatch):
    """By an argument, by a variable, and by a configuration that cannot be added to."""
    for argument in REFUSED_ARGUMENTS:
        with pytest.raises(ConfigurationError, match="left out"):
            OpencodeLauncher("job", str(tmp_path), arguments=(argument,))
    monkeypatch.setenv(CONFIGURATION, "// none")
    with pytest.raises(ConfigurationError, match="JSON object"):
        launcher.check_settings(str(tmp_path))
    monkeypatch.setenv("OPENCODE_PURE", "1")
    with pytest.raises(ConfigurationError, match="no hook runs"):
        launcher.check_settings(str(tmp_path))
