"""A compaction starts a new epoch, whatever asked for it; the next filling is reported anew."""

import json

import pytest

from real_client.api import Refusal, Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS
from real_client.watch import Note, new_notes, notes

pytestmark = pytest.mark.real_client

COMPACTED = "Context window compacted at "
TRIGGER_TOKENS = 67_000
REFUSAL_TOKENS = 177_000
SMALL_WINDOW = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}


def test_a_compaction_starts_an_epoch_that_is_told_anew(installed, api):
    """The limit is the configured trigger; behind the compaction the level is gone, then warns."""
    api.play(
        bash(20_000, "echo 1"),
        bash(40_000, "echo 2"),
        bash(45_000, "echo 3"),
        bash(70_000, "echo 4"),
        # compacted here
        bash(15_000, "echo 5"),
        bash(40_000, "echo 6"),
        bash(46_000, "echo 7"),
        Reply(47_000, "Done."),
    )
    session = installed.run(marked("fill the window"), **SMALL_WINDOW)
    assert session.result["result"] == "Done."
    turns, (compaction,) = api.turns(), api.compactions()
    assert new_notes(turns[3]) == [Note(45_000, TRIGGER_TOKENS, 67)]
    # The client compacts what stands before the last call, and carries that call over.
    assert [new_notes(turn) for turn in turns[4:]] == [
        [Note(70_000, TRIGGER_TOKENS, 104)],
        [],
        [],
        [Note(46_000, TRIGGER_TOKENS, 69)],
    ]
    assert turns[7].fresh("At the limit earlier messages are replaced by a summary")
    assert [number for number, turn in enumerate(turns) if turn.fresh(COMPACTED)] == [4]
    assert turns[4].count(COMPACTED) == 1
    seen = [turn.seen[session.session_id] for turn in turns]
    assert (seen[3].epoch, seen[3].threshold_status) == (1, "warning")
    full = compaction.seen[session.session_id]
    assert (full.threshold_status, full.context_limit) == ("critical", TRIGGER_TOKENS)
    assert (full.context_window, full.limit_source) == (WINDOW_TOKENS, "host")
    assert [one.epoch for one in seen[4:]] == [2, 2, 2, 2]
    # Until a reply behind the compaction is written down nobody knows the tokens.
    assert (seen[4].usage_ratio, seen[4].measured_at) == (None, None)
    assert [one.threshold_status for one in seen[4:]] == [None, "normal", "normal", "warning"]
    assert seen[7].estimated_tokens == 46_000


def test_a_compaction_after_a_refusal_starts_an_epoch(installed, api):
    """The API says that the prompt is too long, the client compacts and continues."""
    api.play(
        bash(20_000, "echo 1"),
        bash(100_000, "echo 2"),
        bash(196_000, "echo 3"),
        Refusal("prompt is too long: 210000 tokens > 200000 maximum"),
        bash(21_000, "echo 4"),
        bash(22_000, "echo 5"),
        Reply(23_000, "Done."),
    )
    session = installed.run(marked("fill the window"))
    assert session.result["result"] == "Done."
    assert len(api.compactions()) == 1
    turns = api.turns()
    assert new_notes(turns[3]) == [Note(196_000, WINDOW_TOKENS, 98)]
    before, after = turns[3].seen[session.session_id], turns[-1].seen[session.session_id]
    assert (before.epoch, before.threshold_status) == (1, "critical")
    assert (after.epoch, after.threshold_status) == (2, "normal")
    assert after.estimated_tokens in (21_000, 22_000)
    assert new_notes(turns[-1]) == []


@pytest.mark.parametrize("way", ["environment", "menu"])
def test_without_compaction_a_full_session_fails_after_it_was_warned(
    client, installed, api, states, way
):
    """The limit is where the client refuses; subagents fail there, too, whichever ends first."""
    if way == "menu":
        answers = client.configuration / ".claude.json"
        chosen = json.loads(answers.read_text()) | {"autoCompactEnabled": False}
        answers.write_text(json.dumps(chosen))
    api.play(
        agent(100_000, "scout"),
        bash(120_000, "echo 1"),
        bash(176_000, "echo 2"),
        bash(178_000, "echo 3"),
    )
    api.play(bash(100_000, "echo 1"), bash(178_000, "echo 2"), conversation="scout")
    environment = {"DISABLE_AUTO_COMPACT": "1"} if way == "environment" else {}
    session = installed.run(marked("fill the window"), **environment)
    assert session.result["result"] == "Prompt is too long"
    assert notes(api.turns()[-1])[-1] == Note(176_000, REFUSAL_TOKENS, 99)
    assert len(states.all()) == 2
    for ended in states.all().values():
        assert (ended.context_limit, ended.estimated_tokens) == (REFUSAL_TOKENS, 178_000)
        assert (ended.outcome, ended.exit["error"]) == ("failed", "Prompt is too long")


def test_the_compaction_of_a_subagent_leaves_its_parent_alone(installed, api, states):
    """The child's epoch advances; the parent keeps its own, and no agent appears from nowhere."""
    api.play(
        bash(20_000, "echo 1"),
        bash(40_000, "echo 2"),
        agent(44_000, "scout"),
        Reply(45_000, "It looks."),
        Reply(46_000, "Done."),
    )
    api.play(
        bash(20_000, "echo 1"),
        bash(70_000, "echo 2"),
        bash(15_000, "echo 3"),
        bash(16_000, "echo 4"),
        Reply(17_000, "Seen."),
        conversation="scout",
    )
    session_id = installed.run(marked("have somebody look"), **SMALL_WINDOW).session_id
    assert len(api.compactions("scout")) == 1
    assert api.compactions() == []
    assert [turn.count(COMPACTED) for turn in api.turns("scout")] == [0, 0, 1, 1, 1]
    assert [turn.count(COMPACTED) for turn in api.turns()] == [0] * len(api.turns())
    scout = api.turns("scout")
    child_id = f"{session_id}.{scout[0].headers['x-claude-code-agent-id']}"
    assert set(states.all()) == {session_id, child_id}
    parent, child = scout[-1].seen[session_id], scout[-1].seen[child_id]
    assert (child.epoch, child.threshold_status) == (2, "normal")
    assert child.estimated_tokens in (15_000, 16_000)
    assert (parent.epoch, parent.threshold_status) == (1, "warning")
    assert notes(api.turns()[-1]) == [Note(44_000, TRIGGER_TOKENS, 66)]
