"""Whole relays with the real client: hand-over, verification, limits, refusals, kills."""

import signal
import threading

import pytest
from helpers.program import as_a_process
from helpers.relayed import end_contexts, ended_at_last

from real_client.api import Refusal, Reply, bash
from real_client.client import MODEL, until
from real_client.relaying import (
    GOAL,
    RUN,
    RelayedProject,
    complete,
    create,
    finish,
    touch,
)
from ultramon.hosts.calls.enforcement import REPLIES_TO_RETURN
from ultramon.prices.cost import dollars
from ultramon.relay.choices import RelayChoices, read_items
from ultramon.relay.launchers.outcome import COMPLETED, STOPPED
from ultramon.relay.opening import open_relay
from ultramon.relay.prompts import hand_over_note

pytestmark = pytest.mark.real_client

CHECK = ("--verify", "test -e {item}")


@pytest.fixture
def project(client, tmp_path):
    return RelayedProject(client, tmp_path)


def test_a_job_is_carried_into_a_second_context(project, api, states):
    """It is asked to hand over; the second one has goal, rules, what is left, and the notes."""
    api.play(
        create(20_000, "a", "b b", "c", "d"),
        touch(21_000, "a", "b b"),
        # Two calls beyond the rung: the client may write a reply down after the hook of its call.
        complete(140_000, 1),
        complete(140_500, 2),
        Reply(141_000, "a and b b are written.\n# Goal\nc comes next."),
        create(20_000, "c", "d"),
        touch(21_000, "c", "d"),
        complete(22_000, 1, 2),
        Reply(23_000, "All is written."),
    )
    code, result, told = project.run(
        GOAL, "--run", RUN, *project.items("a", "b b", "c", "d", "a"), *CHECK,
        "--rule", "Write empty files.",
    )  # fmt: skip
    assert code == 0, told
    counts = result["work"]["counts"]
    assert (counts["assigned"], counts["verified"], len(result["contexts"])) == (4, 4, 2)
    assert result["compactions"] == 0
    assert api.turns()[4].count(hand_over_note()) == 1
    first = api.turns()[5].texts
    (prompt,) = [text for text in first if "## Where the work stands" in text]
    assert f"# Goal\n{GOAL}\n\n## Rules of the user\n1. Write empty files.\n" in prompt
    assert "> a and b b are written.\n> # Goal\n> c comes next." in prompt
    assert "## Items of this context (2)\n- c\n- d\n" in prompt
    assert "2 verified" in prompt
    assert set(states.all()) == {f"{RUN}.1", f"{RUN}.2"}
    # The user's tree is as it was; every verified item has a tree of its own.
    assert project.git("status", "--porcelain") == ""
    assert project.git("branch", "--list").split() == ["*", "main", "+", f"ultramon/{RUN}"]
    refs = project.git("for-each-ref", "--format=%(refname)", f"refs/ultramon/{RUN}/").split()
    assert len(refs) == 4


def test_a_false_claim_is_found(project, api):
    """What the model says is done is checked; the next context learns what was not confirmed."""
    api.play(
        create(20_000, "a", "b"),
        touch(21_000, "a"),
        complete(22_000, 1, 2),
        Reply(23_000, "All is written."),
        create(20_000, "b"),
        touch(21_000, "b"),
        complete(22_000, 1),
        Reply(23_000, "Now it is."),
    )
    code, result, told = project.run(GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    assert code == 0, told
    assert result["work"]["counts"]["verified"] == 2
    assert "not confirmed: b (exit code 1)" in told
    assert api.turns()[4].count("the check of 'b' failed: exit code 1") == 1


def test_another_call_knows_the_client_and_what_checks_refused(project, api):
    """Neither is given to it again."""
    api.play(create(20_000, "a"), complete(21_000, 1), Reply(22_000, "Written."))
    given = (GOAL, "--run", RUN, *project.items("a"), *CHECK, "--max-contexts", "1")
    assert project.run(*given)[0] == 5
    api.play(touch(20_000, "a"), Reply(21_000, "Now it is."))
    code, result, told = finish(project.resume("--max-contexts", "2"))
    assert (code, result["work"]["counts"]["verified"]) == (0, 1), told
    assert api.turns()[3].count("the check of 'a' failed: exit code 1") == 1


def test_a_plan_of_the_agents_own_is_carried_on(project, api):
    """Without a list the open tasks go to the next context, and the run ends when none is left."""
    api.play(
        create(20_000, "parse", "emit"),
        complete(140_000, 1),
        Reply(141_000, "Parsed."),
        create(20_000, "emit", "test"),
        complete(21_000, 1, 2),
        Reply(22_000, "Done."),
    )
    code, result, told = project.run(GOAL, "--run", RUN)
    assert code == 0, told
    assert result["tasks"] == {"parse": "done", "emit": "done", "test": "done"}
    prompt = next(text for text in api.turns()[3].texts if "## Left in the task list" in text)
    assert "- emit\n" in prompt.partition("## Left in the task list")[2]
    assert "- parse\n" not in prompt


def test_without_a_plan_a_normal_end_is_the_end(project, api):
    """No command checks, and the result says so."""
    api.play(touch(20_000, "a"), Reply(21_000, "Done."))
    code, result, _ = project.run(GOAL, "--run", RUN)
    assert (code, result["tasks"], len(result["contexts"])) == (0, {}, 1)
    assert result["work"]["counts"]["claimed"] == 1
    assert result["workspace"]["dirty_files"] == ["a"]


def test_denied_calls_stop_a_run_that_makes_no_progress(project, api):
    """With the argument that would allow them; nothing was granted."""
    project.client.settings.write_text("{}")
    for _ in range(3):
        api.play(touch(20_000, "a"), Reply(21_000, "I may not."))
    code, result, _ = project.run(GOAL, "--run", RUN, *project.items("a"), *CHECK)
    assert (code, result["stop"]["kind"]) == (6, "refused")
    assert result["stop"]["advice"] == ["--allowedTools 'Bash(touch *)'"]
    api.play(create(20_000, "a"), touch(21_000, "a"), complete(22_000, 1), Reply(23_000, "Done."))
    code, result, told = project.run("--resume", RUN, extra=["--allowedTools", "Bash(touch *)"])
    assert (code, result["work"]["counts"]["verified"]) == (0, 1), told
    assert "changed: arguments" in told


def test_the_words_of_a_provider_end_a_run(project, api):
    """Another context would hear the same."""
    api.whenever(Refusal("Your credit balance is too low.", 400))
    code, result, _ = project.run(GOAL, "--run", RUN, *project.items("a"), *CHECK)
    assert (code, len(result["contexts"])) == (1, 1)
    assert "redit balance is too low" in result["stop"]["words"]


def test_a_rate_limit_pauses_a_run(project, api):
    """The same session continues; no context died, and nothing was repeated."""
    api.play(create(20_000, "a"), touch(21_000, "a"))
    api.whenever(Refusal("Slower.", 429, "rate_limit_error", (("retry-after", "1"),)))
    told = []

    def tell(line):
        told.append(line)
        if "waits for the rate limit" in line:
            api.whenever(Reply(24_000, "Done."))
            api.play(complete(22_000, 1))

    environ = project.environ(CLAUDE_CODE_MAX_RETRIES="1")
    with as_a_process(environ):
        choices = RelayChoices(
            GOAL, str(project.path), items=read_items(["a"])[0], verify=CHECK[1],
            arguments=("--model", MODEL), program=str(project.client.program),
        )  # fmt: skip
        opened = open_relay(RUN, choices, state_directory=str(project.state))
        result = opened.relay(tell, first_pause_seconds=0.5).run()
    assert result.ok, told
    assert (len(result.work.contexts), result.work.killed) == (1, 0)
    assert any("waits for the rate limit" in line for line in told)
    assert len({turn.body["metadata"]["user_id"] for turn in api.turns()}) == 1


def test_a_relay_and_its_client_that_are_killed_lose_nothing(project, api):
    """Killed in the middle of an item; the next relay continues with what is left."""
    gate = threading.Event()
    api.play(
        create(20_000, "a", "b"),
        touch(21_000, "a"),
        complete(22_000, 1),
        touch(23_000, "b", gate=gate),
    )
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    with ended_at_last(project.start(*given)) as relay:
        api.wait_for_turns(4)
        relay.kill()
        relay.communicate()
        assert end_contexts(project.state, RUN)
    gate.set()
    api.play(create(20_000, "b"), touch(21_000, "b"), complete(22_000, 1), Reply(23_000, "Done."))
    code, result, told = project.run("--resume", RUN)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["lost"]) == (2, [])
    assert len(result["work"]["repeated"]) <= 1


def test_a_context_survives_its_relay(project, api):
    """The next relay takes it over, with its notes; the client was asked nothing twice."""
    gate = threading.Event()
    api.play(
        create(20_000, "a", "b"),
        touch(21_000, "a", gate=gate),
        complete(140_000, 1),
        Reply(141_000, "b comes next."),
        create(20_000, "b"),
        touch(21_000, "b"),
        complete(22_000, 1),
        Reply(23_000, "Done."),
    )
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    with ended_at_last(project.start(*given)) as relay:
        api.wait_for_turns(2)
        relay.kill()
        relay.communicate()
    with ended_at_last(project.start("--resume", RUN)) as relay:
        until(lambda: "still runs" in relay.stderr.readline(), "it is found")
        gate.set()
        code, result, told = finish(relay)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["repeated"]) == (2, [])
    assert any("> b comes next." in text for text in api.turns()[4].texts)


def test_an_interrupt_asks_the_session_to_hand_over(project, api, states):
    """It reads so with the result of its next tool call."""
    gate = threading.Event()
    api.play(
        create(20_000, "a", "b"),
        touch(21_000, "a", gate=gate),
        complete(22_000, 1),
        Reply(23_000, "b is left."),
    )
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    with ended_at_last(project.start(*given)) as relay:
        api.wait_for_turns(2)
        relay.send_signal(signal.SIGINT)
        request = states.directory / "subagents" / f"{RUN}.1.request"
        until(request.exists, "the request")
        gate.set()
        code, result, told = finish(relay)
    assert (code, result["work"]["counts"]["verified"]) == (130, 1), told
    assert api.turns()[3].count(hand_over_note()) == 1
    assert result["work"]["killed"] == 0


def test_a_comparison_runs_the_same_job_without_relay(project, api, states):
    """In a worktree of its own, counted alike; that session is not warned of its context."""
    for _ in range(2):
        api.play(
            create(20_000, "a"),
            touch(140_000, "a"),
            complete(140_500, 1),
            Reply(141_000, "Done."),
        )
    code, result, told = project.run(
        GOAL, "--run", RUN, *project.items("a"), *CHECK, "--rule", "Be brief.", "--compare"
    )
    assert code == 0, told
    assert [one["work"]["counts"]["verified"] for one in (result, result["alone"])] == [1, 1]
    assert result["alone"]["workspace"]["branch"] == f"ultramon/{RUN}-alone"
    relayed, alone = api.turns()[:4], api.turns()[4:]
    for first in (relayed[0], alone[0]):
        assert any(
            f"# Goal\n{GOAL}\n\n## Rules of the user\n1. Be brief.\n" in t for t in first.texts
        )
    assert [turn.count("How this job runs") for turn in (relayed[0], alone[0])] == [1, 0]
    assert [turns[-1].count("Context window:") for turns in (relayed, alone)] == [1, 0]
    assert "it costs about twice as much" in told
    assert set(states.all()) == {f"{RUN}.1", f"{RUN}-alone.1"}


def test_tokens_are_a_budget_of_the_run(project, api):
    """The last reply passes it; what all would take is estimated once."""
    api.play(
        create(20_000, "a", "b"), touch(21_000, "a"), complete(22_000, 1), Reply(23_000, "a is.")
    )  # fmt: skip
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK, "--max-tokens", "80k")
    code, result, told = project.run(*given)
    assert (code, result["stop"]["kind"], len(result["contexts"])) == (5, "budget", 1)
    assert result["costUsd"] == pytest.approx(result["contexts"][0]["cost_usd"])
    usd, whole = (dollars(result["costUsd"] * factor) for factor in (1, 2))
    assert f"so far {usd} at list price, 86k tokens; at this rate {whole}, 172k for all" in told
    assert result["stop"]["words"] == "86k of 80k tokens are spent"


def test_a_context_that_passes_its_dollars_sends_no_further_request(project, api):
    """The first reply does, by the hooks' own count; the client was about to run its tool."""
    api.play(touch(20_000, "a"))
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK, "--max-usd", "0.0001")
    code, result, told = project.run(*given)
    assert (code, result["stop"]["kind"], len(result["contexts"])) == (5, "budget", 1), told
    (context,) = result["contexts"]
    assert context["end"] == "stopped"
    assert context["list_usd"] == pytest.approx(context["cost_usd"], rel=0.05)


def test_the_shell_of_a_context_speaks_of_the_same_agent(project, api, states):
    """`ultramon task` changes what the hooks and the supervisor see."""
    api.play(
        bash(20_000, "ultramon task add a && ultramon task done a && touch a"),
        bash(21_000, "ultramon task handoff --notes 'a was easy'"),
        Reply(22_000, "b is left."),
        create(20_000, "b"),
        touch(21_000, "b"),
        complete(22_000, 1),
        Reply(23_000, "Done."),
    )
    code, result, told = project.run(GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert any("> b is left.\n> \n> a was easy" in text for text in api.turns()[3].texts)
    assert {state.run for state in states.all().values()} == {RUN}


def test_a_context_that_does_not_return_is_ended(project, api):
    """Beyond the critical rung it has its grace; what it did counts, and the next continues."""
    gate = threading.Event()
    api.play(
        create(20_000, "a", "b"),
        touch(160_000, "a"),
        complete(160_500, 1),
        Reply(161_000, "Never.", gate=gate),
        create(20_000, "b"),
        touch(21_000, "b"),
        complete(22_000, 1),
        Reply(23_000, "Done."),
    )
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK, "--grace", "1s")
    code, result, told = project.run(*given)
    gate.set()
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["repeated"]) == (2, [])
    assert result["contexts"][0]["end"] == "cut_off"


def test_a_context_that_goes_on_is_ended_by_its_hook(project, api):
    """What it had done by then counts, and the next context continues with the rest."""
    # Between the critical rung and the trigger of the client, at 67,000.
    going_on = [bash(55_000 + number, f"echo {number}") for number in range(REPLIES_TO_RETURN + 2)]
    api.play(
        create(20_000, "a", "b"),
        touch(21_000, "a"),
        complete(22_000, 1),
        *going_on,
        create(20_000, "b"),
        touch(21_000, "b"),
        complete(22_000, 1),
        Reply(23_000, "Done."),
    )
    given = (GOAL, "--run", RUN, *project.items("a", "b"), *CHECK)
    code, result, told = project.run(*given, CLAUDE_CODE_AUTO_COMPACT_WINDOW="100000")
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert [one["end"] for one in result["contexts"]] == [STOPPED, COMPLETED]
    assert result["work"]["killed"] == 0


def test_an_interrupt_ends_a_pause_at_once(project, api):
    """Nothing runs that could be asked; the run continues later."""
    api.play(create(20_000, "a"), touch(21_000, "a"))
    api.whenever(Refusal("Slower.", 429, "rate_limit_error", (("retry-after", "1"),)))
    given = (GOAL, "--run", RUN, *project.items("a"), *CHECK)
    with ended_at_last(project.start(*given, CLAUDE_CODE_MAX_RETRIES="1")) as relay:
        until(lambda: "waits for the rate limit" in relay.stderr.readline(), "the pause")
        relay.send_signal(signal.SIGINT)
        code, result, _ = finish(relay, seconds=30)
    assert (code, result["stop"]["kind"]) == (130, "interrupted")
    api.play(create(20_000, "a"), touch(21_000, "a"), complete(22_000, 1), Reply(23_000, "Done."))
    code, result, told = project.run("--resume", RUN)
    assert (code, result["work"]["counts"]["verified"]) == (0, 1), told


def test_a_client_that_does_not_start_is_not_started_again(project):
    """Its own words say why."""
    code, result, _ = project.run(GOAL, "--run", RUN, extra=["--no-such-option"])
    assert (code, len(result["contexts"])) == (1, 1)
    assert "--no-such-option" in result["stop"]["words"]


@pytest.mark.parametrize(("level", "contexts"), [("warning", 2), ("critical", 1)])
def test_a_context_that_was_asked_to_hand_over_has_not_ended_the_job(project, api, level, contexts):
    """Without a plan only its level tells why it ended."""
    api.play(touch(140_000, "a"), Reply(141_000, "So far."))
    if contexts == 2:
        api.play(touch(20_000, "b"), Reply(21_000, "Done."))
    code, result, told = project.run(GOAL, "--run", RUN, "--hand-over-at", level)
    assert (code, len(result["contexts"])) == (0, contexts), told


def test_contexts_that_do_nothing_are_ended_and_their_item_is_set_aside(project, api):
    """One that asks the same again and again would run until its window is full."""
    api.whenever(bash(20_000, "true"))
    code, result, told = project.run(
        GOAL, "--run", RUN, *project.items("a"), "--idle-requests", "2", "--grace", "1s",
    )  # fmt: skip
    assert code == 1, told
    assert result["work"]["set_aside"]["a"].startswith("3 contexts without progress on it")
    assert len(result["contexts"]) == 3
    assert "context 1 made 2 requests and did nothing: it is asked to hand over" in told
    assert any(hand_over_note() in text for text in api.turns()[-1].texts)
