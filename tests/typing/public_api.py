"""Only type-checked, never run: what a user's code may rely on."""

from __future__ import annotations

import subprocess
from typing import assert_type

import ultramon
from ultramon import (
    Action,
    AgentState,
    ContextConfig,
    ContextMonitor,
    Explanation,
    Fit,
    Fleet,
    FleetEvent,
    HandoffRecord,
    MonitorPool,
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


fleet = Fleet(run="audit")


@fleet.on("handoff_ready")
def carry_on(end: FleetEvent) -> None:
    assert_type(end.handoff, HandoffRecord | None)
    assert_type(end.state, AgentState | None)
    assert_type(end.outcome, str | None)


@fleet.on("ended")
async def note_end(end: FleetEvent) -> None:
    assert_type(end.agent_id, str)


def orchestrate() -> None:
    fleet.attach("scout-1", subprocess.Popen(["scout"], env=fleet.env("scout-1")))
    fleet.request_return("scout-1", deadline_seconds=10)
    assert_type(fleet.poll(), list[FleetEvent])
    assert_type(fleet.get_states(), list[AgentState])
    for event in fleet.watch():
        assert_type(event, FleetEvent)


async def orchestrate_async() -> None:
    async for event in fleet.watch():
        assert_type(event, FleetEvent)


def converse() -> None:
    with MonitorPool(ContextConfig(), run="chat", idle_seconds=60) as pool:
        assert_type(pool, MonitorPool)
        assert_type(pool.get("chat/42"), ContextMonitor)
        assert_type(pool.close_idle(), list[str])


assert_type(ultramon.detect_threshold(0.5), str)
assert_type(ultramon.estimate_tokens("text"), int)
assert_type(ultramon.should_emit_event("normal", None), bool)
_ = ultramon.no_such_name  # type: ignore[attr-defined]
