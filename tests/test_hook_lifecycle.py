"""What the order of the client's events says of an agent: its end, its name, whether it waits."""

import pytest
from hooked import HookedSession


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
    """A tool may send one, too, and goes on running."""
    session = HookedSession(tmp_path)
    session.call("PreToolUse", tool_name="Bash", tool_use_id="toolu_1")
    session.call("Notification", message="…", notification_type=kind)
    assert session.record().phase == phase
