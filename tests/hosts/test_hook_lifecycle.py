"""What the order of the client's events says of an agent: its end, its name, whether it waits."""

import pytest
from helpers.hooked_session import HookedSession

from ultramon.hosts.calls.hosted_agent import CUT_TURN


def test_a_session_whose_last_turn_failed_has_failed(tmp_path):
    """The client ends with an error of its own then; a turn that worked forgets it."""
    session = HookedSession(tmp_path)
    session.call("UserPromptSubmit", prompt="begin")
    session.call("StopFailure", error="rate_limit")
    session.call("SessionEnd", reason="other")
    record = session.record()
    assert (record.outcome, record.exit) == ("failed", {"reason": "other", "error": "rate_limit"})
    again = HookedSession(tmp_path, "again")
    again.call("StopFailure", error="rate_limit")
    again.call("UserPromptSubmit", prompt="once more")
    again.call("Stop")
    again.call("SessionEnd", reason="other")
    assert again.record().outcome == "completed"


PROMPT = ("UserPromptSubmit", {"prompt": "begin"})
TOOL = ("PreToolUse", {"tool_name": "Bash", "tool_use_id": "t1"})
ASKED = ("PermissionRequest", {"tool_name": "Bash"})
STOP = ("Stop", {})


@pytest.mark.parametrize("events", [[PROMPT], [PROMPT, TOOL], [PROMPT, ASKED], [STOP, PROMPT]])
def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(tmp_path, events):
    """While the model replies, in a tool, at a question: the client's reason is ``other``."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup")
    for name, payload in events:
        session.call(name, **payload)
    session.call("SessionEnd", reason="other")
    record = session.record()
    assert (record.active, record.outcome, record.exit) == (
        False,
        "cancelled",
        {"reason": CUT_TURN},
    )
    (stopped,) = session.events("agent_stopped")
    assert stopped["outcome"] == "cancelled"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "other"),
        ([PROMPT, TOOL, STOP], "other"),
        ([PROMPT, TOOL], "prompt_input_exit"),
        ([PROMPT], "logout"),
        ([PROMPT], "clear"),
    ],
)
def test_a_session_that_ends_between_turns_or_by_a_person_is_completed(tmp_path, events, reason):
    """A turn that a person has interrupted is reported by no event."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup")
    for name, payload in events:
        session.call(name, **payload)
    session.call("SessionEnd", reason=reason)
    record = session.record()
    assert (record.active, record.outcome, record.exit) == (False, "completed", {"reason": reason})


def test_a_session_ends_with_its_last_reply(tmp_path):
    """The transcript is complete then; subagents that it takes along are read as well."""
    session = HookedSession(tmp_path)
    session.tool(20_000)
    session.tool(30_000, "a1")
    session.reply(140_000, text="Done.")
    session.reply(170_000, agent="a1", text="Halfway.")
    session.call("Stop")
    session.call("SessionEnd", reason="other")
    ended, child = session.record(), session.record("a1")
    assert (ended.estimated_tokens, ended.threshold_status) == (140_000, "warning")
    assert (child.estimated_tokens, child.threshold_status) == (170_000, "critical")
    assert (ended.outcome, child.outcome) == ("completed", "cancelled")
    kinds = [(event["agentId"], event["type"]) for event in session.events()][2:]
    assert kinds == [
        (one.agent_id, kind)
        for one in (ended, child)
        for kind in ("context_threshold_reached", "agent_stopped")
    ]


def test_a_session_that_is_too_long_has_failed(tmp_path):
    """No hook tells of a refused request; the transcript does, until a reply stands behind it."""
    session = HookedSession(tmp_path)
    session.tool(176_000)
    session.refusal()
    session.call("SessionEnd", reason="other")
    record = session.record()
    assert (record.estimated_tokens, record.outcome) == (176_000, "failed")
    assert record.exit == {"reason": "other", "error": "Prompt is too long"}
    for way_out in ("a reply", "a compaction"):
        again = HookedSession(tmp_path, way_out.replace(" ", "-"))
        again.tool(176_000)
        again.refusal()
        if way_out == "a reply":
            again.reply(20_000)
        else:
            again.boundary()
        again.call("Stop")
        again.call("SessionEnd", reason="other")
        assert again.record().outcome == "completed", way_out


def test_a_subagent_whose_request_failed_has_failed(tmp_path):
    """It sends no SubagentStop: its session gets a prompt about it, or ends with it."""
    session = HookedSession(tmp_path)
    for agent in ("a1", "a2", "a3"):
        session.tool(170_000, agent)
    news = "<task-notification>\n<task-id>{}</task-id>\n<status>failed</status>"
    session.refusal("a1")
    session.call("UserPromptSubmit", prompt=news.format("a1"))
    first = session.record("a1")
    assert (first.outcome, first.exit["error"]) == ("failed", "Prompt is too long")
    session.refusal("a2", text="API Error: 500 words of a provider")
    session.call("SessionEnd", reason="other")
    assert session.record("a2").exit == {"reason": "request failed", "error": "invalid_request"}
    assert session.record("a3").outcome == "cancelled"


@pytest.mark.parametrize("name", ["a1", "a9", "", "../a1", "a" * 5000])
def test_nobody_ends_a_subagent_by_typing(tmp_path, name):
    """Its own transcript must say that it failed."""
    session = HookedSession(tmp_path)
    session.tool(20_000, "a1")
    prompt = f"<task-notification><task-id>{name}</task-id><status>failed</status>"
    session.call("UserPromptSubmit", prompt=prompt)
    assert session.record("a1").active
    assert session.failures() == []


def test_a_failure_outlasts_what_the_client_notifies_of(tmp_path):
    """Its reminder that it waits comes a minute later."""
    session = HookedSession(tmp_path)
    session.call("StopFailure", error="rate_limit")
    session.call("Notification", message="…", notification_type="idle_prompt")
    session.call("SessionEnd", reason="other")
    assert session.record().outcome == "failed"


@pytest.mark.parametrize("first", ["SubagentStart", "PostToolUse"])
def test_a_subagent_is_called_after_its_task_whichever_event_comes_first(tmp_path, first):
    session = HookedSession(tmp_path)
    launched = {"agentId": "a1", "resolvedModel": "claude-haiku-4-5", "description": "a part"}

    def launch():
        session.call("PostToolUse", tool_name="Agent", tool_response=launched)

    if first == "PostToolUse":
        launch()
    session.call("SubagentStart", agent="a1")
    if first == "SubagentStart":
        launch()
    assert session.record("a1").label == "project: a part"


@pytest.mark.parametrize(
    ("kind", "phase"), [("permission_prompt", "waiting"), ("auth_success", "in_tool")]
)
def test_only_a_notification_that_asks_for_something_is_waiting(tmp_path, kind, phase):
    """A tool may send one, too, and still runs."""
    session = HookedSession(tmp_path)
    session.call("PreToolUse", tool_name="Bash", tool_use_id="toolu_1")
    session.call("Notification", message="…", notification_type=kind)
    assert session.record().phase == phase
