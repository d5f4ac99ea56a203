"""`ultramon relay --agent gemini|qwen` with the real clients, against a scripted model."""

import json

import pytest
from helpers import gemini_client
from helpers.client_relay import SETTINGS, begin_project, plan, touch
from helpers.program import as_a_process
from helpers.relayed import finish
from helpers.scripted_model import Step

from ultramon.errors import ConfigurationError
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED
from ultramon.hosts.qwen.configuration import DEFAULTS_VARIABLE
from ultramon.relay.launchers.gemini import REFUSED_ARGUMENTS as REFUSED_BY_GEMINI
from ultramon.relay.launchers.gemini import GeminiLauncher
from ultramon.relay.launchers.outcome import OVERFLOWED, RefusedCall
from ultramon.relay.launchers.qwen import REFUSED_ARGUMENTS as REFUSED_BY_QWEN
from ultramon.relay.launchers.qwen import QwenLauncher
from ultramon.relay.prompts import hand_over_note

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
FULL = {"gemini": 740_000, "qwen": 720_000}
"""Tokens above the rung where a context hands over."""


EACH = pytest.mark.parametrize("name", FULL)
REFUSALS = {
    "gemini": {**gemini_client.TOO_LONG},
    "qwen": {"code": "context_length_exceeded", "type": "invalid_request_error", "message":
             "This model's maximum context length is 131072 tokens. You requested 140000 tokens."},
}  # fmt: skip


@pytest.fixture
def relay(tmp_path, name):
    """A project, and a client; into Qwen Code nothing is installed."""
    return begin_project(name, tmp_path)


@pytest.mark.parametrize("name", ["gemini", pytest.param("qwen", marks=pytest.mark.exhaustive)])
def test_a_job_is_carried_into_a_second_context(relay, name):
    """It is asked to hand over; the second one has goal, rules, what is left, and the notes."""

    def keep(tokens, *steps):
        return Step(tokens, plan(*steps, agent=name))

    steps = [
        keep(20_000, ("a", "pending"), ("b b", "pending"), ("c", "pending")),
        Step(21_000, touch("a", "b b")),
        keep(FULL[name], ("a", "completed"), ("b b", "completed"), ("c", "pending")),
        Step(FULL[name] + 1_000, text="a and b b are written.\n# Goal\nc comes next."),
        keep(20_000, ("c", "in_progress")),
        Step(21_000, touch("c")),
        keep(22_000, ("c", "completed")),
        Step(23_000, text="All is written."),
    ]
    with relay.client.api({"MAIN": steps}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a", "b b", "c"), *CHECK, "--rule", "Write empty files."),
            SECONDS,
        )
    assert (code, api.left()) == (0, {}), told
    assert result["work"]["counts"]["verified"] == 3
    assert (result["work"]["lost"], result["work"]["repeated"]) == ([], [])
    assert [text.count(hand_over_note()) for text in api.told("MAIN")[3]] == [1]
    (prompt,) = [text for text in api.prompts[4] if "## Where the work stands" in text]
    assert "# Goal\nWrite every file.\n\n## Rules of the user\n1. Write empty" in prompt
    assert "> a and b b are written.\n> # Goal\n> c comes next." in prompt
    assert "## Items of this context (1)\n- c\n" in prompt
    assert relay.git("status", "--porcelain") == ""
    assert [record.agent_id for record in relay.client.records()] == ["job.1", "job.2"]
    assert relay.client.failures() == []


@pytest.mark.exhaustive
@EACH
def test_a_context_that_overflows_is_followed_by_another(relay, name):
    """The next context learns it."""
    steps = [
        Step(20_000, touch("a")),
        Step(0, error=REFUSALS[name]),
        Step(20_000, "echo more >> a"),
        Step(21_000),
    ]
    with relay.client.api({"MAIN": steps}) as api:
        code, result, told = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert code == 0, told
    assert result["contexts"][0]["end"] == OVERFLOWED
    said = "The one before ended: its window was full."
    assert any(said in text for prompts in api.prompts for text in prompts)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["qwen"])
def test_a_context_that_goes_on_is_ended_by_a_hook(relay, name):
    """Long before the relay would end its process; the next one does what is left."""
    full = [Step(950_000 + number, f"echo {number}") for number in range(20)]
    steps = [
        Step(20_000, plan(("a", "pending"), ("b", "pending"), agent=name)),
        Step(21_000, touch("a")),
        Step(22_000, plan(("a", "completed"), ("b", "pending"), agent=name)),
        *full,
    ]
    with relay.client.api({"MAIN": steps}) as api:
        begun = relay.begin(*relay.items("a", "b"), *CHECK, "--max-contexts", "1", "--grace", "1h")
        _, result, told = finish(begun, SECONDS)
    assert api.left()["MAIN"] > 5, told
    (record,) = relay.client.records()
    assert (record.outcome, record.exit["reason"]) == ("cancelled", NOT_RETURNED)
    assert result["work"]["counts"]["verified"] == 1


@pytest.mark.exhaustive
@EACH
def test_a_bad_key_ends_a_run(relay, name):
    """Another context would hear the same."""
    status = {"gemini": 403, "qwen": 401}[name]
    steps = [Step(0, error={"code": status, "message": "bad key", "type": "x"}, status=status)]
    with relay.client.api({"MAIN": steps}):
        code, result, _ = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert (code, len(result["contexts"])) == (1, 1)
    assert "bad key" in result["stop"]["words"]


@pytest.mark.exhaustive
@EACH
def test_denied_calls_are_counted(relay, name):
    """With the argument that would allow them."""
    steps = [Step(20_000, "echo hi"), Step(21_000, text="I may not.")] * 3
    with relay.client.api({"MAIN": steps}):
        begun = relay.begin(*relay.items("a"), *CHECK, extra=("--", *SETTINGS[name][1:]))
        code, result, told = finish(begun, SECONDS)
    assert code == 6, told
    assert result["contexts"][0]["refused_count"] == 1
    assert {"gemini": "--policy", "qwen": "--allowed-tools"}[name] in str(result["stop"])


@pytest.mark.exhaustive
@EACH
def test_a_session_that_the_agent_begins_is_not_seen(relay, name):
    """It inherits the hooks; the relay counts its own sessions only."""
    inner = f"{relay.client.program} {' '.join(SETTINGS[name])} -p '[[INNER]] look'"
    steps = [Step(20_000, f"{inner} && touch a"), Step(21_000)]
    with relay.client.api({"MAIN": steps, "INNER": [Step(9_000, "true"), Step(10_000)]}) as api:
        code, _, told = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert (code, api.left()) == (0, {}), told
    assert [record.agent_id for record in relay.client.records()] == ["job.1"]


@pytest.mark.parametrize("name", ["gemini"])
def test_gemini_without_hooks_is_refused(relay, name, tmp_path):
    """It takes hooks from its settings only, so they have to be installed."""
    launcher = GeminiLauncher("job", str(relay.state))
    with as_a_process(relay.environ()):
        assert launcher.check(str(relay.path)).version == gemini_client.VERSION
        relay.client.settings.write_text(json.dumps(gemini_client.HEADLESS))
        with pytest.raises(ConfigurationError, match="`ultramon install gemini`"):
            launcher.check(str(relay.path))


def test_qwen_keeps_the_defaults_of_the_machine(tmp_path):
    """The file of the run has them, and the hooks and the task list."""
    machine = tmp_path / "machine.json"
    hook = {"hooks": [{"type": "command", "command": "true"}]}
    machine.write_text(json.dumps({"ui": {"theme": "x"}, "hooks": {"Stop": [hook]}}))
    launcher = QwenLauncher("job", str(tmp_path / "state"))
    with as_a_process({DEFAULTS_VARIABLE: str(machine)}):
        launcher.prepare()
        launcher.prepare()
    path = launcher.variables("s")[DEFAULTS_VARIABLE]
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    assert written["ui"] == {"theme": "x"}
    assert written["tools"] == {"todoWrite": {"enabled": True}}
    assert written["hooks"]["Stop"][0] == hook
    assert [len(written["hooks"][event]) for event in ("Stop", "PostToolUse")] == [2, 1]
    machine.write_text(json.dumps({"tools": {"todoWrite": {"enabled": False}}}))
    with as_a_process({DEFAULTS_VARIABLE: str(machine)}):
        launcher.prepare()
    with open(path, encoding="utf-8") as file:
        assert json.load(file)["tools"] == {"todoWrite": {"enabled": True}}


@pytest.mark.parametrize(
    ("launcher", "argument"),
    [
        *((GeminiLauncher, one) for one in REFUSED_BY_GEMINI),
        *((QwenLauncher, one) for one in [*REFUSED_BY_QWEN, "--resume=x"]),
    ],
)
def test_arguments_that_a_relay_cannot_do_with_are_refused(tmp_path, launcher, argument):
    """Before anything is started, with the reason."""
    with pytest.raises(ConfigurationError, match="must be left out: "):
        launcher("job", str(tmp_path), arguments=["--model", "x", argument])


@pytest.mark.parametrize(
    ("launcher", "arguments", "words"),
    [
        (GeminiLauncher, (), "your settings and policies"),
        (GeminiLauncher, ("--approval-mode", "auto_edit"), "approval mode auto_edit"),
        (GeminiLauncher, ("-y",), "nothing is asked, by your argument -y"),
        (GeminiLauncher, ("--approval-mode", "yolo"), "nothing is asked, by your argument"),
        (QwenLauncher, (), "your settings and arguments"),
        (QwenLauncher, ("--approval-mode=yolo",), "nothing is asked, by your argument --approval"),
    ],
)
def test_permissions_are_those_of_the_user(tmp_path, launcher, arguments, words):
    """The relay says whose they are and adds none."""
    assert words in launcher("job", str(tmp_path), arguments=arguments).describe_permissions()


@pytest.mark.parametrize(
    ("launcher", "call", "words"),
    [
        (GeminiLauncher, ("write_file", "a"), "--approval-mode auto_edit"),
        (GeminiLauncher, ("run_shell_command", "make"), "--policy FILE"),
        (
            QwenLauncher,
            ("run_shell_command", "make x"),
            "--allowed-tools 'run_shell_command(make)'",
        ),
        (QwenLauncher, ("edit", ""), "--allowed-tools edit"),
    ],
)
def test_a_refused_call_names_what_would_allow_it(tmp_path, launcher, call, words):
    """An argument to put behind the two hyphens."""
    assert launcher("job", str(tmp_path)).describe_refused(RefusedCall(*call)) == words
