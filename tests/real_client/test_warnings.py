"""A session that fills its window is warned in its own conversation, and in no other."""

import json
import threading

import pytest

from real_client.api import Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS, finish
from real_client.watch import Note, new_notes, notes
from ultramon.hosts.failure_log import log_path
from ultramon.hosts.failure_log import read as read_failures

pytestmark = pytest.mark.real_client

RAMP = (20_000, 120_000, 132_000, 140_000, 156_000)
AT_66 = Note(132_000, WINDOW_TOKENS, 66)
AT_78 = Note(156_000, WINDOW_TOKENS, 78)


def ramp(*tokens):
    return [bash(one, f"echo {one}") for one in tokens]


def names(events):
    return [event.name for event in events]


def test_a_filling_session_is_told_once_per_level_and_at_once(installed, api):
    """Each level's note stands in the very next request, with the tokens of that call, once."""
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    session = installed.run(marked("fill the window"))
    assert session.result["result"] == "Done."
    assert [new_notes(turn) for turn in api.turns()] == [[], [], [], [AT_66], [], [AT_78]]
    assert notes(api.turns()[-1]) == [AT_66, AT_78]


@pytest.mark.parametrize("tokens", [(140_000,), (120_000, 140_000)], ids=["first", "second"])
def test_the_first_calls_of_a_session_are_told_at_once(installed, api, states, tokens):
    """A session that begins near a rung, or above it, is warned as early as any other."""
    api.play(*ramp(*tokens), Reply(141_000, "Done."))
    installed.run(marked("read a large book"))
    assert new_notes(api.turns()[-1]) == [Note(140_000, WINDOW_TOKENS, 70)]
    assert read_failures(log_path(str(states.directory), "claude-code")) == []


def test_the_state_is_the_truth_at_every_request_and_ends_with_the_session(installed, api, states):
    """Level and tokens are those of the reply before; an ended session is an ended agent."""
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    session_id = installed.run(marked("fill the window")).session_id
    seen = [turn.seen[session_id] for turn in api.turns()]
    # Far from a rung the reading may be that of the call before, or none yet.
    assert seen[1].estimated_tokens in (0, 20_000)
    assert seen[2].estimated_tokens in (20_000, 120_000)
    assert [one.threshold_status for one in seen[2:]] == [
        "normal", "warning", "warning", "critical",
    ]  # fmt: skip
    assert [one.estimated_tokens for one in seen[3:]] == list(RAMP[2:])
    assert {(one.epoch, one.generation) for one in seen} == {(1, 1)}
    # There the end of the call may be stored behind the answer too; near a rung it is not.
    assert {one.phase for one in seen} <= {"working", "in_tool"}
    assert {one.phase for one in seen[3:]} == {"working"}
    assert {one.context_limit for one in seen[2:]} == {WINDOW_TOKENS}
    assert seen[0].usage_ratio is None
    end = states.only()
    assert (end.agent_id, end.session_id, end.run, end.host) == (
        session_id, session_id, "claude-code", "claude-code",
    )  # fmt: skip
    assert (end.active, end.threshold_status) == (False, "critical")
    assert end.cwd == str(installed.project)
    assert end.label == f"{installed.project.name}: [[main]] fill the window"


def test_status_shows_a_living_session(installed, api, states):
    """`ultramon status --json` beside a session at work tells how full it is."""
    gate = threading.Event()
    api.play(*ramp(20_000, 120_000, 140_000), Reply(141_000, "Done.", gate=gate))
    process = installed.start(marked("fill the window"))
    try:
        api.wait_for_turns(4)
        (shown,) = states.status().values()
    finally:
        gate.set()
        session = finish(process)
    assert shown["agentId"] == session.session_id
    assert (shown["liveness"], shown["phase"], shown["pid"]) == ("alive", "working", process.pid)
    assert (shown["estimatedTokens"], shown["contextLimit"]) == (140_000, WINDOW_TOKENS)
    assert (shown["usageRatio"], shown["thresholdStatus"]) == (0.7, "warning")
    assert states.status()[session.session_id]["liveness"] == "ended"


def test_a_subagent_is_told_about_its_own_window_only(installed, api, states):
    """The child's notes stay in the child; the parent's conversation and state know none."""
    api.play(agent(60_000, "scout"), Reply(61_000, "It looks."), Reply(62_000, "Done."))
    api.play(
        *ramp(20_000, 124_000, 140_000, 160_000), Reply(161_000, "Seen."), conversation="scout"
    )
    session_id = installed.run(marked("have somebody look")).session_id
    scout = api.turns("scout")
    assert [new_notes(turn) for turn in scout] == [
        [], [], [], [Note(140_000, WINDOW_TOKENS, 70)], [Note(160_000, WINDOW_TOKENS, 80)],
    ]  # fmt: skip
    assert [notes(turn) for turn in api.turns()] == [[], [], []]
    child_id = f"{session_id}.{scout[0].headers['x-claude-code-agent-id']}"
    assert set(states.all()) == {session_id, child_id}
    parent, child = scout[-1].seen[session_id], scout[-1].seen[child_id]
    assert (parent.threshold_status, parent.epoch, parent.announced.get("rungs", {})) == (
        "normal", 1, {},
    )  # fmt: skip
    assert parent.estimated_tokens in (60_000, 61_000)
    assert (child.estimated_tokens, child.threshold_status) == (160_000, "critical")
    assert (child.parent_id, child.session_id, child.run) == (session_id, session_id, "claude-code")
    assert child.label == "project: a part of the work"
    assert parent.active
    assert [one.active for one in states.all().values()] == [False, False]
    assert states.all()[child_id].outcome == "completed"


def test_subagents_side_by_side_are_told_each_for_itself(installed, api, states):
    """Three children at work at once: each has its own note, its own state, its own end."""
    names = ("north", "south", "west")
    calls = tuple(agent(60_000, name).calls[0] for name in names)
    api.play(Reply(60_000, calls=calls))
    gate = threading.Event()
    for name in names:
        api.play(
            *ramp(20_000, 120_000, 140_000), Reply(141_000, "Seen.", gate=gate), conversation=name
        )
    # However many of them end within one turn of the parent, it has an answer.
    api.whenever(Reply(61_000, "Fine."))
    process = installed.start(marked("have them look"))
    try:
        for name in names:
            api.wait_for_turns(4, name)
    finally:
        gate.set()
        session = finish(process)
    assert session.returncode == 0
    for name in names:
        assert notes(api.turns(name)[-1]) == [Note(140_000, WINDOW_TOKENS, 70)]
    assert all(notes(turn) == [] for turn in api.turns())
    children = [one for one in states.all().values() if one.parent_id == session.session_id]
    assert [one.threshold_status for one in children] == ["warning"] * 3
    assert not any(one.active for one in children)


def test_parallel_calls_of_one_reply_are_told_once(installed, api):
    """Four tools side by side, four hooks and one for the batch: one note."""
    api.play(
        *ramp(20_000, 120_000),
        bash(140_000, *(f"echo {number}" for number in range(4))),
        Reply(141_000, "Done."),
    )
    installed.run(marked("fill the window"))
    assert [new_notes(turn) for turn in api.turns()] == [
        [], [], [], [Note(140_000, WINDOW_TOKENS, 70)],
    ]  # fmt: skip


def test_five_calls_are_silent_between_two_notes_of_a_level(installed, api):
    """The note of a level comes back after five calls without one, not before."""
    api.play(*ramp(20_000, 120_000, *range(132_000, 139_000, 1_000)), Reply(139_500, "Done."))
    installed.run(marked("fill the window"))
    told = [len(new_notes(turn)) for turn in api.turns()]
    assert told == [0, 0, 0, 1, 0, 0, 0, 0, 0, 1]


def test_an_orchestrator_gets_the_events_of_a_session(install, api, fleet):
    """A fleet of the run sees the session start, reach both rungs and end."""
    installed = install("--audience", "both")
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    session_id = installed.run(marked("fill the window")).session_id
    events = fleet.poll()
    assert {event.agent_id for event in events} == {session_id}
    assert names(events)[:4] == ["started", "prepare_handoff", "force_return", "ended"]
    warning, critical = events[1].event, events[2].event
    assert (warning.tokens, warning.level, warning.context_limit) == (
        132_000, "warning", WINDOW_TOKENS,
    )  # fmt: skip
    assert (critical.tokens, critical.level, critical.usage_ratio) == (156_000, "critical", 0.78)
    assert notes(api.turns()[-1]) == [AT_66, AT_78]


def test_a_session_can_be_left_alone_for_its_orchestrator(installed, api, fleet):
    """With the audience `orchestrator` nothing enters the conversation, the events come."""
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    installed.run(marked("fill the window"), ULTRAMON_AUDIENCE="orchestrator")
    assert [notes(turn) for turn in api.turns()] == [[]] * 6
    assert names(fleet.poll())[:4] == ["started", "prepare_handoff", "force_return", "ended"]


def test_a_project_file_silences_the_notes(installed, api, states):
    """With `{"audience": "none"}` in the project no session of it is warned; its state is true."""
    folder = installed.project / ".ultramon"
    folder.mkdir()
    (folder / "claude-code.json").write_text(json.dumps({"audience": "none"}))
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    installed.run(marked("fill the window"))
    assert [notes(turn) for turn in api.turns()] == [[]] * 6
    assert states.only().threshold_status == "critical"


def test_one_variable_switches_it_off(installed, api, states):
    """With ULTRAMON_DISABLED the hooks leave no note and no state."""
    api.play(*ramp(*RAMP), Reply(157_000, "Done."))
    session = installed.run(marked("fill the window"), ULTRAMON_DISABLED="1")
    assert session.result["result"] == "Done."
    assert [notes(turn) for turn in api.turns()] == [[]] * 6
    assert states.all() == {}
