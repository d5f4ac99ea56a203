"""The limits of a plan in a rollout: a recording of Codex 0.169.0, and its real hook on it."""

import json
import time

import pytest
from helpers import DATA
from helpers.codex_session import CodexSession

from ultramon.hosts.codex.last_reading import read_last_reading
from ultramon.hosts.codex.plan_limits import read_limits
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, PlanLimit, PlanLimits

ROLLOUT = DATA / "plan_limits" / "codex-0.169.0.jsonl"
"""The client ran against a stand-in for its provider, which sent the headers of a plan."""
AT = 1_795_715_818.0


def test_the_last_event_of_a_recorded_rollout_says_both_limits():
    limits = read_last_reading(str(ROLLOUT), is_subagent=False).plan_limits
    assert [(one.name, one.percent, one.resets_at) for one in limits] == [
        (FIVE_HOURS, 62, 1_795_723_017),
        (SEVEN_DAYS, 41, 1_796_115_817),
    ]
    assert limits[0].used_ratio == pytest.approx(0.629)
    assert limits[0].measured_at == pytest.approx(AT + 0.359)


def test_at_a_tool_call_they_are_those_of_the_reply_before(tmp_path):
    """The client writes the event of a reply when its tools have run."""
    lines = ROLLOUT.read_text().splitlines(keepends=True)
    records = [n for n, line in enumerate(lines) if '"token_usage_record"' in line]
    path = tmp_path / "rollout.jsonl"
    path.write_text("".join(lines[: records[1] + 2]))
    (five, week) = read_last_reading(str(path), is_subagent=False).plan_limits
    assert (five.percent, week.percent) == (61, 41)


def test_a_login_without_a_plan_says_nothing():
    """All other recordings are of a key of the API."""
    for path in sorted((DATA / "hooks" / "codex-0.169.0").rglob("rollout-*.jsonl")):
        assert read_last_reading(str(path), is_subagent=False).plan_limits == ()


def test_another_window_and_another_model_keep_the_clients_names():
    day = {"used_percent": 5, "window_minutes": 1_440, "resets_at": AT + 100}
    found = read_limits({"limit_id": "codex", "primary": day, "secondary": None}, AT)
    assert found == [PlanLimit("primary", 0.05, AT + 100, AT)]
    five = {"used_percent": 5, "window_minutes": 300, "resets_in_seconds": 60}
    found = read_limits({"limit_id": "codex_other", "primary": five}, AT)
    assert found == [PlanLimit("codex_other.five_hour", 0.05, AT + 60, AT)]


@pytest.mark.parametrize(
    "broken", [{}, {"primary": 7}, {"primary": {}}, {"primary": {"used_percent": 5}}]
)
def test_what_is_no_limit_is_unknown(broken):
    assert read_limits(broken, AT) == []


@pytest.mark.parametrize("minutes", [[300], {"minutes": 300}, "300", True, None, 300.5])
def test_a_window_that_is_no_number_has_the_place_as_its_name(minutes):
    """Whatever the rollout holds there."""
    window = {"used_percent": 5, "window_minutes": minutes, "resets_at": AT + 100}
    assert read_limits({"primary": window}, AT) == [PlanLimit("primary", 0.05, AT + 100, AT)]


@pytest.mark.parametrize("event", ["PostToolUse", "Stop"])
def test_a_hook_keeps_them_for_the_account(tmp_path, event):
    """The real hook on the recorded lines, moved to the present."""
    session = CodexSession(tmp_path)
    now = time.time()
    values = [json.loads(line) for line in ROLLOUT.read_text().splitlines()]
    for value in values:
        if (limits := value["payload"].get("rate_limits")) is not None:
            for name, ahead in (("primary", 7_200), ("secondary", 400_000)):
                limits[name]["resets_at"] = int(now) + ahead
    rollout = tmp_path / "rollout.jsonl"
    rollout.write_text("".join(json.dumps(value) + "\n" for value in values))
    session.run(
        {
            "session_id": "01a21900-e27b-7de1-beb7-f968b7469e9b",
            "transcript_path": str(rollout),
            "cwd": str(tmp_path),
            "hook_event_name": event,
            "model": "gpt-5.2",
            "tool_name": "Bash",
            "tool_use_id": "call_1",
            "tool_input": {},
            "tool_response": "",
            "turn_id": "t",
        }
    )
    (account,) = PlanLimits(str(session.state)).accounts(now)
    assert (account.host, account.account) == ("codex", str(session.home))
    assert [(one.name, one.percent) for one in account.limits] == [
        (FIVE_HOURS, 62),
        (SEVEN_DAYS, 41),
    ]
