"""Whole relays with the real client: hand-over, verification, limits, refusals, kills."""

import pytest

from real_client.api import Reply
from real_client.relaying import GOAL, RUN, RelayedProject, complete, create, touch
from ultramon.relay.prompts import hand_over_note

pytestmark = pytest.mark.real_client

CHECK = ("--verify", "test -e {item}")


@pytest.fixture
def project(client, tmp_path):
    return RelayedProject(client, tmp_path)


def test_a_job_is_carried_into_a_second_context(project, api, states):
    """It is told to hand over; the second one has goal, rules, what is left, and the notes."""
    api.play(
        create(20_000, "a", "b b", "c", "d"),
        touch(21_000, "a", "b b"),
        complete(140_000, 1, 2),
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
    assert api.turns()[3].count(hand_over_note()) == 1
    first = api.turns()[4].texts
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
