"""Only type-checked, never run: what a user's code may rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, assert_type

import ultramon
from ultramon import (
    Action,
    AgentState,
    AlertConfig,
    ContextConfig,
    ContextMonitor,
    Fleet,
    FleetEvent,
    HandoffRecord,
    Job,
    Ladder,
    MonitorPool,
    Rung,
    SupervisorEvent,
    SupervisorResult,
    ThresholdAction,
    ThresholdEvent,
    Worker,
)
from ultramon.alerts import AlertOutcome
from ultramon.context.explanation import Explanation
from ultramon.context.monitor_gauge import Fit
from ultramon.fleet.supervise.result import ItemCounts
from ultramon.notices.models import Registration


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
        assert_type(await monitor.hand_off_async("cancelled", notes="learned"), HandoffRecord)
        assert_type(await monitor.stop_async("returned"), bool)
        assert_type(monitor.update_heartbeat(), bool)
        assert_type(monitor.is_stored, bool)
        assert_type(monitor.is_fenced, bool)
    assert_type(await ultramon.create_context_monitor().start_async(), ContextMonitor)


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


def spawn(job: Job) -> subprocess.Popen[bytes]:
    assert_type(job.items, tuple[str, ...])
    assert_type(job.handoff, HandoffRecord | None)
    assert_type(job.prompt, str)
    return subprocess.Popen(["reviewer"], env=job.env)


def show(event: SupervisorEvent) -> None:
    assert_type(event.counts, ItemCounts)


async def verify(item: str) -> bool:
    return bool(item)


def review(job: Job) -> None:
    with ultramon.worker(goal="review", hand_over_at="critical") as agent:
        assert_type(agent, Worker)
        for item in agent.pending():
            assert_type(item, str)
            assert_type(agent.track_content(item), ThresholdAction)
            assert_type(agent.steps(), dict[str, Any])
            agent.step("read", result={"rows": 3})
            agent.monitor.step("read", item=Path(item))
    assert_type(job.steps, dict[str, dict[str, Any]])


def supervise() -> None:
    result = fleet.supervise(spawn, ["a"], workers=3, verify=bool, on_event=show)
    assert_type(result, SupervisorResult)
    assert_type(result.ok, bool)
    assert_type(result.set_aside, dict[str, str])
    fleet.supervise(target=review, items=["a"], enforce=True, grace_seconds=60)
    fleet.add_items(["b"])


async def supervise_async() -> None:
    assert_type(await fleet.supervise_async(spawn, ["a"], verify=verify), SupervisorResult)


def converse() -> None:
    with MonitorPool(ContextConfig(), run="chat", idle_seconds=60) as pool:
        assert_type(pool, MonitorPool)
        assert_type(pool.get("chat/42"), ContextMonitor)
        assert_type(pool.close_idle(), list[str])


@ultramon.alerting("add", every=3, config=AlertConfig(quiet_seconds=60))
def add(name: str, *, parent: str | None = None) -> int:
    return len(name)


def alert() -> bool:
    assert_type(add("task", parent="plan"), int)
    add(1)  # type: ignore[arg-type]
    with ultramon.alerting("complete") as alert:
        assert_type(alert, ultramon.alerting)
    assert_type(alert.outcome, AlertOutcome | None)
    assert_type(ultramon.check_context(session="scout-1").percentage, float | None)
    outcome = ultramon.check_and_alert_context(command="complete", force=True)
    assert_type(outcome.status, str | None)
    return bool(outcome)


def tell() -> None:
    made = ultramon.register("scout-1", "boss", thresholds=[0.5, 0.8])
    assert_type(made, Registration)
    assert_type(ultramon.registrations(), list[Registration])
    inbox = ultramon.Inbox("boss", deliveries=("urgent",))

    @inbox.on_notice
    def hear(notice: ultramon.Notice) -> None:
        assert_type(notice.facts, dict[str, Any])

    assert_type(inbox.poll(), list[ultramon.Notice])
    assert_type(ultramon.queue_message("boss", "done", delivery="important"), int | None)
    ultramon.register("scout-1")  # type: ignore[call-arg]


def configure() -> None:
    config = ContextConfig(
        context_limit_tokens=100_000,
        warning_threshold=0.5,
        rearm_margin=None,
        ladder=Ladder([Rung("low", 0.7)]),
        on_error="raise",
    )
    assert_type(config.context_limit_tokens, int | None)
    assert_type(config.warning_threshold, float)
    assert_type(config.effective_ladder, Ladder)
    assert_type(config.sources, dict[str, str])
    assert_type(config.replace(model="gpt-4.1"), ContextConfig)
    config.model = "gpt-4.1"  # type: ignore[misc]
    ContextConfig(warnin_threshold=0.5)  # type: ignore[call-arg]
    ContextConfig(warning_threshold="0.5")  # type: ignore[arg-type]
    ContextConfig(warning_threshold=None)  # type: ignore[arg-type]
    ContextConfig(context_limit_tokens=0.5)  # type: ignore[arg-type]
    ContextConfig(on_error="ignore")  # type: ignore[arg-type]
    ContextConfig(100_000)  # type: ignore[call-arg]
    ultramon.create_context_monitor(notfy="parent")  # type: ignore[arg-type]
    ultramon.create_context_monitor(warning_threshold=0.5)  # type: ignore[arg-type]
    ultramon.create_context_monitor(config={"model": "gpt-4.1"})  # type: ignore[arg-type]
    alerts = AlertConfig(commands=["add"], actions={"warning": "look"}, every={"add": 3})
    assert_type(alerts.quiet_seconds, float)
    assert_type(alerts.ladder, Ladder)
    AlertConfig(quiet_second=5)  # type: ignore[call-arg]
    AlertConfig(quiet_seconds="5")  # type: ignore[arg-type]
    AlertConfig(every={"add": "3"})  # type: ignore[dict-item]
    AlertConfig(commands=5)  # type: ignore[arg-type]


assert_type(ultramon.detect_threshold(0.5), str)
assert_type(ultramon.estimate_tokens("text"), int)
assert_type(ultramon.should_emit_event("normal", None), bool)
_ = ultramon.no_such_name  # type: ignore[attr-defined]
