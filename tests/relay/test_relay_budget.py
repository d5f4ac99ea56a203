"""A relay and the user's budgets: the program, with the real Codex."""

import pytest
from helpers.client_relay import begin_project, plan, touch
from helpers.codex_client import Step
from helpers.relayed import finish
from helpers.transcript_lines import line, reply

from ultramon.cli.exit_codes import ExitCode

MANY_LINES = 2_000_000
"""One look does not read as many twice."""
CHECK = ("--verify", "test -e {item}")
SECONDS = 300


@pytest.fixture
def relay(tmp_path):
    return begin_project("codex", tmp_path)


def configured(relay, text):
    """Write the user's settings; return the variable that names them."""
    path = relay.directory / "own.toml"
    path.write_text(text)
    return {"ULTRAMON_CONFIG": str(path)}


def budget(limit_tokens, more="enforce = true"):
    return f'[budgets.job]\nlimit_tokens = {limit_tokens}\nperiod = "none"\nrun = "job"\n{more}\n'


def steps(name, *later):
    """One item is written, and the context ends."""
    todo = [(one, "pending") for one in later]
    return [
        Step(20_000, plan((name, "in_progress"), *todo)),
        Step(20_500, touch(name)),
        Step(21_000, plan((name, "completed"), *todo)),
        Step(21_500, text=f"{name} is written."),
    ]


WORK = [*steps("a", "b"), *steps("b")]


def test_no_further_context_begins_while_a_budget_is_used_up(relay):
    """The first one is not ended and keeps its work; a higher limit lets the run continue."""
    environ = configured(relay, budget(30_000))
    with relay.client.api({"MAIN": WORK}) as api:
        code, result, told = finish(relay.begin(*relay.items("a", "b"), *CHECK, **environ), SECONDS)
        assert (code, len(result["contexts"])) == (ExitCode.BUDGET, 1), told
        words = result["stop"]["words"]
        assert words.startswith("budget job is used up: 8"), words
        assert words.endswith(" of 30k tokens")
        assert "verified: a" in told
        asked = len(api.requests)
        code, result, told = finish(relay.relay("--resume", "job", **environ), SECONDS)
        assert (code, len(api.requests)) == (ExitCode.BUDGET, asked), "nothing begins"
        environ = configured(relay, budget(300_000))
        code, result, told = finish(relay.relay("--resume", "job", **environ), SECONDS)
    assert (code, api.left()) == (0, {}), told


def test_nothing_begins_before_it_is_known_what_a_budget_amounts_to(relay, tmp_path):
    """Transcripts that take several looks; all of them count."""
    claude = tmp_path / "claude"
    folder = claude / "projects" / "-home-dev-shop"
    folder.mkdir(parents=True)
    usage = {"input_tokens": 10_000, "output_tokens": 0}
    for session in "abc":
        paid = line(reply(f"m{session}", usage, sessionId=session, cwd="/home/dev/shop"))
        (folder / f"{session}.jsonl").write_bytes(paid + b"{}\n" * MANY_LINES)
    environ = configured(relay, budget(29_999).replace('run = "job"', ""))
    environ["CLAUDE_CONFIG_DIR"] = str(claude)
    with relay.client.api({"MAIN": WORK}) as api:
        code, result, told = finish(relay.begin(*relay.items("a", "b"), *CHECK, **environ), SECONDS)
        assert (code, result["contexts"], api.requests) == (ExitCode.BUDGET, [], []), told
    assert told.count("the next context begins after that") == 1
    assert result["stop"]["words"] == "budget job is used up: 30k of 30k tokens"


@pytest.mark.parametrize(
    "text",
    [budget(30_000, ""), budget(30_000).replace('run = "job"', 'run = "other"')],
    ids=["not enforced", "of another run"],
)
def test_a_budget_that_is_not_enforced_or_of_others_stops_nothing(relay, text):
    environ = configured(relay, text)
    with relay.client.api({"MAIN": WORK}) as api:
        code, _, told = finish(relay.begin(*relay.items("a", "b"), *CHECK, **environ), SECONDS)
    assert (code, api.left()) == (0, {}), told
