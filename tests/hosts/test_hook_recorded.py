"""What the real client sent its hooks, replayed in its order through the real hook process."""

import json

import pytest
from helpers.claude_replay import HOME, Replay
from helpers.hooked_session import RECORDED, HookedSession

PAYLOADS = sorted((RECORDED / "payloads").glob("*.json"))


def told(replay):
    """The numbers of the calls that were answered with a text for the agent."""
    return [number for number, answer in enumerate(replay.answers) if answer.text]


@pytest.mark.parametrize("path", PAYLOADS, ids=lambda path: path.stem)
def test_every_recorded_payload_is_understood(tmp_path, path):
    """Each of them alone, as the first call ever seen, ends well and fails at nothing."""
    session = HookedSession(tmp_path)
    payload = json.loads(path.read_text().replace(HOME, str(session.transcript.parent)))
    is_answered = path.stem.startswith("SessionStart_compact")
    assert bool(session.run(payload).stdout) == is_answered
    missing = [problem for problem in session.failures() if "no transcript" in problem]
    assert session.failures() == missing
    session_id, agent_id = payload["session_id"], payload.get("agent_id")
    agents = {session_id if agent_id is None else f"{session_id}.{agent_id}"}
    if path.stem == "PostToolUse_Agent":
        agents.add(f"{session_id}.{payload['tool_response']['agentId']}")
    elif path.stem.startswith(("MessageDisplay", "SessionEnd", "SubagentStop")):
        agents = set()
    assert set(session.ids()) == agents
    locks = {lock.stem for lock in (session.state / "subagents").glob("*.lock")}
    assert locks == agents, "whom nobody knows leaves nothing behind"


def test_a_session_that_fills_and_shrinks(tmp_path):
    """r2: one warning at 196,014 tokens, none on the way down, none at Stop."""
    replay = Replay(tmp_path, "r2")
    session = replay.session
    replay.to(1)
    record = session.record()
    assert (record.phase, record.measured_at, record.current_task) == (
        "working", None, "[[MAIN]] do the work",
    )  # fmt: skip
    replay.to(2)
    assert session.record().phase == "in_tool"
    replay.to(7)
    record = session.record()
    assert (record.phase, record.estimated_tokens, record.threshold_status) == (
        "working", 121_014, "normal",
    )  # fmt: skip
    replay.to(9)
    assert session.record().threshold_status == "critical"
    replay.to(12)
    record = session.record()
    assert (record.epoch, record.estimated_tokens, record.threshold_status) == (2, 9_014, "normal")
    replay.to(31)
    assert session.record().phase == "waiting"
    assert session.record().active
    replay.to(32)
    record = session.record()
    assert (record.active, record.outcome, record.exit) == (False, "completed", {"reason": "other"})
    assert told(replay) == [9]
    assert "196,014 of 200,000 tokens (98 %)" in replay.answers[9].text
    assert [(e["type"], e.get("reason") or e.get("level")) for e in session.events()] == [
        ("agent_started", None),
        ("context_threshold_reached", "critical"),
        ("context_epoch_started", "fall"),
        ("agent_stopped", None),
    ]
    assert session.failures() == []


def test_a_session_that_is_compacted_twice(tmp_path):
    """r3: each compaction is one epoch, its reading unknown until a reply stands behind it."""
    replay = Replay(tmp_path, "r3", ["main"])
    session = replay.session
    replay.to(9)
    record = session.record()
    assert (record.epoch, record.estimated_tokens) == (1, 121_014)
    for number in (10, 11):
        replay.to(number)
        record = session.record()
        assert (record.epoch, record.measured_at, record.usage_ratio) == (2, None, None), number
        assert record.threshold_status is None
    replay.to(12)
    assert session.record().estimated_tokens == 196_014, "what the running tool was called with"
    replay.to(16)
    record = session.record()
    assert (record.epoch, record.estimated_tokens, record.threshold_status) == (
        2, 196_014, "critical",
    )  # fmt: skip
    replay.to(18)
    record = session.record()
    assert (record.epoch, record.measured_at, record.threshold_status) == (3, None, None)
    replay.to(23)
    record = session.record()
    assert (record.phase, record.estimated_tokens, record.epoch) == ("waiting", 9_014, 3)
    replay.to(24)
    assert told(replay) == [10, 13, 17]
    started = session.events("context_epoch_started")
    assert [(e["epoch"], e["reason"], e["tokensBefore"]) for e in started] == [
        (2, "compaction", 121_014),
        (3, "compaction", 196_014),
    ]
    assert session.ids() == [session.session_id], "a phantom SubagentStop made an agent"
    assert session.record().outcome == "completed"
    assert session.failures() == []


def test_a_session_with_a_subagent_on_a_terminal(tmp_path):
    """r6: parent and subagent are distinguished, a manual compaction and /clear are seen."""
    replay = Replay(tmp_path, "r6", ["3af70d39_main", "7d20f82f_main", "subagent"])
    session, agent = replay.session, "af6998b0130708aa9"
    replay.to(8)
    child = session.record(agent)
    assert (child.parent_id, child.active, child.model) == (
        session.session_id, True, "claude-sonnet-4-5",
    )  # fmt: skip
    assert (child.label, child.session_id) == ("project: sub work", session.session_id)
    assert session.record().threshold_status == "warning"
    replay.to(14)
    assert session.record(agent).estimated_tokens == 8_009
    replay.to(15)
    child = session.record(agent)
    assert (child.active, child.outcome, child.estimated_tokens) == (False, "completed", 170_311)
    assert session.record().estimated_tokens == 150_516
    replay.to(25)
    record = session.record()
    assert (record.epoch, record.measured_at) == (3, None)
    assert session.record(agent).epoch == 1
    replay.to(28)
    other = replay.calls[-1]["stdin"]["session_id"]
    assert session.record().exit == {"reason": "clear"}
    assert session.ids() == sorted([session.session_id, f"{session.session_id}.{agent}", other])
    reasons = [(e["agentId"], e["reason"]) for e in session.events("context_epoch_started")]
    assert reasons == [(session.session_id, "fall"), (session.session_id, "compaction")]
    assert told(replay) == [7, 16, 24]
    assert "140,515 of 200,000 tokens (70 %)" in replay.answers[7].text
    assert "150,516 of 200,000 tokens (75 %)" in replay.answers[16].text
    assert session.failures() == []


def test_the_compaction_of_a_subagent_leaves_its_parent_alone(tmp_path):
    """The recorded events of it carry the subagent's id, and only that one starts an epoch."""
    session = HookedSession(tmp_path)
    agent = "a677567543e2a25e3"
    session.tool(100_000)
    session.tool(190_000, agent)
    before = session.record().to_json()
    for name in ("PreCompact_auto_subagent", "SessionStart_compact_subagent",
                 "PostCompact_auto_subagent"):  # fmt: skip
        recorded = json.loads((RECORDED / "payloads" / f"{name}.json").read_text())
        recorded |= {"session_id": session.session_id, "agent_id": agent}
        session.run(recorded | {"transcript_path": str(session.transcript)})
    child = session.record(agent)
    assert (child.epoch, child.measured_at, child.threshold_status) == (2, None, None)
    assert session.record().to_json() == before
    (started,) = session.events("context_epoch_started")
    assert started["agentId"] == f"{session.session_id}.{agent}"


@pytest.mark.parametrize("told_by", [["SessionStart"], ["PostCompact"],
                                     ["SessionStart", "PostCompact"],
                                     ["PostCompact", "SessionStart"]])  # fmt: skip
def test_a_compaction_is_one_epoch_however_it_is_told(tmp_path, told_by):
    """Clients send one or two of the events that follow it, in either order, time after time."""
    session = HookedSession(tmp_path)
    for epoch in (1, 2, 3):
        session.tool(180_000)
        assert session.record().epoch == epoch
        session.call("PreCompact", trigger="auto")
        for event in told_by:
            session.call(event, source="compact")
    assert session.record().epoch == 4


def test_what_the_last_compaction_did_not_tell_is_not_waited_for(tmp_path):
    """One known by its first event only, the next by its second only: two epochs."""
    session = HookedSession(tmp_path)
    session.tool(100_000)
    for event in ("SessionStart", "PostCompact", "SessionStart"):
        session.call("PreCompact", trigger="auto")
        session.call(event, source="compact")
    assert session.record().epoch == 4


@pytest.mark.parametrize("agent", ["sub", "unknown"])
def test_a_phantom_ends_nobody(tmp_path, agent):
    """The end of a subagent without a kind is that of a compaction, whatever id it bears."""
    session = HookedSession(tmp_path)
    session.call("SubagentStart", "sub")
    session.call("SubagentStop", agent, agent_type="", agent_transcript_path="/nowhere")
    assert session.ids() == ["session.sub"]
    assert session.record("sub").active


def test_an_interrupted_compaction_heals_itself(tmp_path):
    """PreCompact alone changes nothing, and the next compaction counts once."""
    session = HookedSession(tmp_path)
    session.tool(100_000)
    session.call("PreCompact", trigger="auto")
    session.tool(101_000)
    assert (session.record().epoch, session.record().estimated_tokens) == (1, 101_000)
    for event in ("PreCompact", "SessionStart", "PostCompact"):
        session.call(event, source="compact")
    assert session.record().epoch == 2


def test_the_old_number_behind_a_compaction_is_not_taken_again(tmp_path):
    """Until the client has written the boundary, its transcript ends with the old window."""
    session = HookedSession(tmp_path)
    session.tool(180_000)
    session.call("SessionStart", source="compact")
    session.call("PostCompact")
    assert session.call("UserPromptSubmit", prompt="go on").text == ""
    session.call("Stop")
    assert session.record().measured_at is None
    session.boundary()
    assert session.call("PostToolUse", tool_use_id="toolu_x").text == ""
    assert session.record().measured_at is None
    session.tool(20_000)
    assert session.record().estimated_tokens == 20_000


@pytest.mark.parametrize("agent", [None, "sub"])
def test_what_stands_before_a_boundary_is_never_a_reading(tmp_path, agent):
    """Also for a hook that was installed after the compaction and saw nothing of it."""
    session = HookedSession(tmp_path)
    session.reply(190_000, agent=agent)
    session.boundary(agent)
    assert session.call("PostToolUse", agent, tool_use_id="toolu_x").text == ""
    assert session.record(agent).measured_at is None
    session.tool(20_000, agent)
    assert session.record(agent).estimated_tokens == 20_000


def test_a_session_that_ends_ends_its_subagents(tmp_path):
    """The client does not tell of subagents that end with it."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup")
    session.call("SubagentStart", "one")
    session.call("SubagentStart", "two")
    session.call("SubagentStop", "two", agent_transcript_path="/nowhere")
    session.call("SessionEnd", reason="other")
    assert session.record("one").outcome == "cancelled"
    assert session.record("two").outcome == "completed"
    stopped = session.events("agent_stopped")
    assert [event["outcome"] for event in stopped] == ["completed", "completed", "cancelled"]


def test_a_resumed_session_goes_on(tmp_path):
    """The same agent, another generation, the same epoch, and the fill that the client tells."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup")
    session.tool(100_000)
    session.call("SessionEnd", reason="other")
    session.call("SessionStart", source="resume", context_tokens=100_500)
    record = session.record()
    assert (record.active, record.outcome, record.generation, record.epoch) == (True, None, 2, 1)
    assert (record.phase, record.estimated_tokens) == ("waiting", 100_500)
    assert len(session.events("agent_started")) == 2


@pytest.mark.parametrize("event", ["UserPromptSubmit", "PreToolUse", "PostToolUse"])
@pytest.mark.parametrize("agent", [None, "sub"])
def test_who_works_after_its_end_is_alive(tmp_path, event, agent):
    """Another hook may make a subagent continue, and the start of a session may not be reported."""
    session = HookedSession(tmp_path)
    session.tool(50_000, agent)
    session.call("SubagentStop" if agent else "SessionEnd", agent, reason="other")
    assert not session.record(agent).active
    session.call("Notification", agent)
    assert not session.record(agent).active
    session.call(event, agent)
    record = session.record(agent)
    assert (record.active, record.outcome, record.generation) == (True, None, 2)


@pytest.mark.parametrize("tokens", [0, -5, 10**9 + 1, 10**30, 1.5, "100", None, True, [], {}])
def test_a_fill_at_the_start_that_is_no_number_is_not_taken(tmp_path, tokens):
    """What the client says it resumes with is checked like every number."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="resume", context_tokens=tokens)
    record = session.record()
    assert (record.measured_at, record.estimated_tokens) == (None, 0)
    assert session.failures() == []


def test_a_forked_session_does_not_take_the_lines_it_was_given(tmp_path):
    """Copied lines tell how full another session was."""
    session = HookedSession(tmp_path)
    session.reply(190_000)
    session.call("SessionStart", source="fork")
    assert session.call("UserPromptSubmit", prompt="hello").text == ""
    assert session.record().measured_at is None
    session.tool(20_000)
    assert session.record().estimated_tokens == 20_000


def test_the_states_say_what_people_look_for(tmp_path):
    """Label, task, place, pane, process and run stand where every other agent has them."""
    session = HookedSession(tmp_path, TMUX_PANE="%7")
    session.call("SessionStart", source="startup", model="claude-opus-4-6")
    session.call("UserPromptSubmit", prompt="<task-notification>done</task-notification>")
    session.call("UserPromptSubmit", prompt="repair\n the  door\n" + "x" * 500)
    record = session.record()
    assert record.label.startswith("project: repair the door xxx")
    assert len(record.label) <= 80
    assert record.current_task.startswith("repair the door")
    assert (record.run, record.host, record.model) == (
        "claude-code", "claude-code", "claude-opus-4-6",
    )  # fmt: skip
    assert record.pid == int(session.environ["CLAUDE_PID"])
    assert record.heartbeat_interval_seconds is None
    assert record.cwd == str(session.project)
    assert session.memory()["tmuxPane"] == "%7"
    assert session.memory()["transcriptPath"] == str(session.transcript)
