"""Only type-checked, never run: what a user's code may rely on."""

from __future__ import annotations

from typing import assert_type

import ultramon
from ultramon import (
    Action,
    AgentState,
    ContextConfig,
    ContextMonitor,
    Explanation,
    Fit,
    HandoffRecord,
    ThresholdAction,
    ThresholdEvent,
)


@ultramon.on("threshold")
def heard(event: ThresholdEvent) -> None:
    assert_type(event.usage_ratio, float)
    assert_type(event.agent_id, str)


@ultramon.on("threshold", agent_id="scout-1")
async def heard_later(event: ThresholdEvent) -> None:
    assert_type(event.level, str)


def use() -> HandoffRecord | None:
    config = ContextConfig(model="claude-sonnet-4-5", warning_threshold=0.6)
    with ultramon.create_context_monitor("scout-1", config) as monitor:
        assert_type(monitor, ContextMonitor)
        action = monitor.track_content("text", source="tool:read")
        assert_type(action, ThresholdAction)
        assert_type(action.action, Action)
        assert_type(monitor.fits(10_000), Fit)
        assert_type(monitor.get_state(), AgentState)
        assert_type(monitor.explain(), Explanation)
        assert_type(monitor.pending(), list[str])
        if action.should_return:
            return monitor.hand_off(notes="learned")
    return None


async def use_async() -> None:
    async with ultramon.create_context_monitor() as monitor:
        assert_type(monitor, ContextMonitor)


assert_type(ultramon.detect_threshold(0.5), str)
assert_type(ultramon.estimate_tokens("text"), int)
assert_type(ultramon.should_emit_event("normal", None), bool)
_ = ultramon.no_such_name  # type: ignore[attr-defined]
