"""`ultramon relay --agent codex` with the real client, against a scripted model."""

import json

import pytest
from helpers.client_relay import SETTINGS, begin_project, plan, touch
from helpers.codex_client import Step
from helpers.program import as_a_process
from helpers.relayed import finish

from ultramon.errors import ConfigurationError
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launchers.codex import REFUSED_ARGUMENTS, CodexLauncher
from ultramon.relay.launchers.outcome import OVERFLOWED
from ultramon.relay.opening import open_relay
from ultramon.relay.prompts import hand_over_note

CHECK = ("--verify", "test -e {item}")
SECONDS = 300


@pytest.fixture
def relay(tmp_path):
    """A project, and a client into which nothing is installed."""
    return begin_project("codex", tmp_path)


def test_a_job_is_carried_into_a_second_context(relay):
    """It is asked to hand over; the second one has goal, rules, what is left, and the notes."""
    steps = [
        Step(20_000, plan(("a", "pending"), ("b b", "pending"), ("c", "pending"))),
        Step(21_000, touch("a", "b b")),
        Step(180_000, plan(("a", "completed"), ("b b", "completed"), ("c", "pending"))),
        Step(181_000, text="a and b b are written.\n# Goal\nc comes next."),
        Step(20_000, plan(("c", "in_progress"))),
        Step(21_000, touch("c")),
        Step(22_000, plan(("c", "completed"))),
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
    (note,) = api.told("MAIN")[3]
    assert note.count(hand_over_note()) == 1
    (prompt,) = [text for text in api.prompts[4] if "## Where the work stands" in text]
    assert prompt.startswith("# Goal\nWrite every file.\n\n## Rules of the user\n1. Write empty")
    assert "> a and b b are written.\n> # Goal\n> c comes next." in prompt
    assert "## Items of this context (1)\n- c\n" in prompt
    assert [one["session_id"] != one["number"] for one in result["contexts"]] == [True, True]
    assert relay.git("status", "--porcelain") == ""
    # Nothing was installed, and no other hook was trusted.
    assert not relay.client.hooks.exists()
    assert "trusted_hash" not in (relay.client.configuration / "config.toml").read_text()


@pytest.mark.exhaustive
def test_hooks_without_trust_stay_out_of_a_relay(relay):
    """The relay trusts its own hooks for its run; those of others the user has to review."""
    seen = relay.directory / "seen"
    entry = {"hooks": [{"type": "command", "command": f"touch {seen}"}]}
    relay.client.hooks.write_text(json.dumps({"hooks": {"PostToolUse": [entry]}}))
    steps = [Step(20_000, touch("a")), Step(21_000)]
    with relay.client.api({"MAIN": steps}):
        code, _, told = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert code == 0, told
    assert not seen.exists()


@pytest.mark.exhaustive
def test_an_installation_stands_down_in_a_relay(relay):
    """One agent for each context, and the note comes once."""
    done = relay.client.ultramon("install", "codex", "--force")
    assert done.returncode == 0, done.stderr
    steps = [Step(20_000, touch("a")), Step(180_000, "true"), Step(181_000)]
    extra = ("--", "--dangerously-bypass-approvals-and-sandbox", "--dangerously-bypass-hook-trust")
    with relay.client.api({"MAIN": steps}) as api:
        code, _, told = finish(relay.begin(*relay.items("a"), *CHECK, extra=extra), SECONDS)
    assert code == 1, told  # asked to hand over, a context without a plan claims nothing
    assert [len(texts) for texts in api.told("MAIN")][:3] == [0, 0, 1]


@pytest.mark.exhaustive
def test_a_context_that_overflows_is_followed_by_another(relay):
    """No hook reports it: the rollout says so, and the next context learns it."""
    refusal = {
        "code": "context_length_exceeded", "message": "x", "type": "invalid_request_error",
    }  # fmt: skip
    steps = [
        Step(20_000, touch("a")),
        Step(0, error=refusal),
        Step(20_000, "echo more >> a"),
        Step(21_000),
    ]
    with relay.client.api({"MAIN": steps}) as api:
        code, result, told = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert code == 0, told
    assert result["contexts"][0]["end"] == OVERFLOWED
    assert "context 1 ended: failed" in told
    assert any("The one before ended: its window was full." in text for text in api.prompts[2])


@pytest.mark.exhaustive
def test_a_rate_limit_pauses_a_run(relay):
    """The same thread continues; no context died."""
    steps = [
        Step(20_000, touch("a")),
        Step(0, error={"type": "rate_limit_exceeded", "message": "Slower."}, status=429),
        Step(22_000),
    ]
    choices = RelayChoices(
        "Write every file.", str(relay.path), items=("a",), verify=CHECK[1], agent="codex",
        arguments=SETTINGS["codex"],
    )  # fmt: skip
    told = []
    with relay.client.api({"MAIN": steps}) as api, as_a_process(relay.environ()):
        opened = open_relay("job", choices, state_directory=str(relay.state))
        result = opened.relay(told.append, first_pause_seconds=0.2).run()
    assert result.ok, told
    assert (api.left(), len(result.contexts), result.contexts[0].parts) == ({}, 1, 2)
    assert result.contexts[0].spent.input_tokens == 42_000
    assert any("waits for the rate limit" in line for line in told)


@pytest.mark.exhaustive
def test_a_bad_key_ends_a_run(relay):
    """Another context would hear the same."""
    steps = [Step(0, error={"message": "bad key", "type": "x"}, status=401)]
    with relay.client.api({"MAIN": steps}):
        code, result, _ = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert (code, len(result["contexts"])) == (1, 1)
    assert "bad key" in result["stop"]["words"]


def test_a_client_whose_hooks_are_off_is_refused(relay, monkeypatch):
    """A relay that sees nothing could neither warn nor hand over."""
    for name, value in relay.environ().items():
        monkeypatch.setenv(name, value)
    launcher = CodexLauncher("job", str(relay.state))
    with relay.client.api({}):
        assert launcher.check(str(relay.path)).version == "0.169.0"
    off = pytest.raises(ConfigurationError, match=r"hooks=.*: with it no hook runs")
    with relay.client.api({}, config="features.hooks = false"), off:
        CodexLauncher("job", str(relay.state)).check(str(relay.path))


@pytest.mark.parametrize("argument", [*REFUSED_ARGUMENTS, "--cd=/srv"])
def test_arguments_that_a_relay_cannot_do_with_are_refused(tmp_path, argument):
    """Before anything is started, with the reason."""
    with pytest.raises(ConfigurationError, match="must be left out: "):
        CodexLauncher("job", str(tmp_path), arguments=["--model", "gpt-6", argument])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "the sandbox of your configuration"),
        (("-s", "read-only"), "sandbox read-only"),
        (("--sandbox=workspace-write",), "sandbox workspace-write"),
        (("--yolo",), "nothing is asked, by your argument --yolo"),
    ],
)
def test_permissions_are_those_of_the_user(tmp_path, arguments, words):
    """The relay says whose they are and adds none."""
    assert words in CodexLauncher("job", str(tmp_path), arguments=arguments).describe_permissions()
