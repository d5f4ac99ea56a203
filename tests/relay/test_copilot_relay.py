"""`ultramon relay --agent copilot` with the real client, against a scripted model."""

import pytest
from helpers.client_relay import begin_project, follows_an_overflow, plan, touch
from helpers.relayed import finish
from helpers.scripted_model import Step

from ultramon.relay.prompts import hand_over_note

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
FULL = 70_000
"""Tokens above the rung where a context hands over."""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.fixture
def relay(tmp_path):
    """A project, and a client into which nothing is installed."""
    return begin_project("copilot", tmp_path)


def keep(tokens, *steps):
    """A reply that keeps the list of items."""
    return Step(tokens, plan(*steps, agent="copilot"))


def slow(*names):
    """A call that makes files, for longer than the client needs to write down its reply."""
    return f"{touch(*names)} && sleep 0.4"


def test_a_job_is_carried_into_a_second_context(relay):
    """It is asked to hand over; the second one has goal, rules, what is left, and the notes."""
    steps = [
        keep(20_000, ("a", "pending"), ("b b", "pending"), ("c", "pending")),
        Step(21_000, slow("a", "b b")),
        keep(FULL, ("a", "completed"), ("b b", "completed"), ("c", "pending")),
        Step(FULL + 500, "sleep 0.4"),
        Step(FULL + 1_000, text="a and b b are written.\n# Goal\nc comes next."),
        keep(20_000, ("c", "in_progress")),
        Step(21_000, slow("c")),
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
    assert sum(text.count(hand_over_note()) for one in api.told("MAIN")[:5] for text in one) == 1
    records = relay.client.records()
    assert [record.agent_id for record in records] == ["job.1", "job.2"]
    assert [record.outcome for record in records] == ["completed", "completed"]
    assert not relay.client.hooks.exists()
    assert relay.client.failures() == []


def test_a_context_that_overflows_is_followed_by_another(relay):
    """The next context learns it."""
    follows_an_overflow(relay, slow("a"), CHECK, SECONDS)


def test_a_context_that_does_not_hand_over_is_ended(relay):
    """By a hook of the run, at a call that needs a permission; the next one continues."""
    full = [Step(FULL + number, "sleep 0.4") for number in range(8)]
    steps = [Step(20_000, slow("a")), *full]
    with relay.client.api({"MAIN": steps}) as api:
        _, result, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--max-contexts", "1"), SECONDS
        )
    assert api.left()["MAIN"] > 0, told
    assert result["contexts"][0]["end"] == "stopped"
