"""`ultramon relay --agent opencode` with the real client, against a scripted model."""

import pytest
from helpers.client_relay import begin_project, follows_an_overflow, plan, touch
from helpers.relayed import finish
from helpers.scripted_model import Step

from ultramon.relay.prompts import hand_over_note

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
FULL = 150_000
"""Tokens above the rung where a context hands over."""
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]


@pytest.fixture
def relay(tmp_path):
    """A project, and a client into which nothing is installed."""
    return begin_project("opencode", tmp_path)


def test_a_job_is_carried_into_a_second_context(relay):
    """It is asked to hand over; the second one has goal, rules, what is left, and the notes."""

    def keep(tokens, *steps):
        return Step(tokens, plan(*steps, agent="opencode"))

    steps = [
        keep(20_000, ("a", "pending"), ("b b", "pending"), ("c", "pending")),
        Step(21_000, touch("a", "b b")),
        keep(FULL, ("a", "completed"), ("b b", "completed"), ("c", "pending")),
        Step(FULL + 1_000, text="a and b b are written.\n# Goal\nc comes next."),
        keep(20_000, ("c", "in_progress")),
        # What the agent starts is no context of the relay.
        Step(21_000, f'test -z "$OPENCODE_CONFIG_CONTENT" && {touch("c")}'),
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
    records = relay.client.ended()
    assert [record.agent_id for record in records] == ["job.1", "job.2"]
    assert [record.outcome for record in records] == ["completed", "completed"]
    assert not relay.client.plugin.exists()
    assert relay.client.failures() == []


def test_a_context_that_overflows_is_followed_by_another(relay):
    """The next context learns it; where the client may not compact by itself."""
    relay.client.compaction = {"auto": False}
    follows_an_overflow(relay, touch("a"), CHECK, SECONDS)
