"""Routes of registrations and context windows, under the names that existing scripts use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Body, HTTPException, Request

from ultramon import routing
from ultramon.context.ladder import CRITICAL, WARNING, Ladder
from ultramon.context.shared_levels import shared_ladder
from ultramon.errors import (
    AgentNotFoundError,
    ConfigurationError,
    StateCorruptError,
    StateSchemaError,
)
from ultramon.fleet.snapshot import take_snapshot
from ultramon.notices.levels import INVALID
from ultramon.server.http.authorization import AnyCaller, Served, may_see, permit, requester_of
from ultramon.server.http.legacy_bodies import ContextMonitor, InvalidateCache
from ultramon.server.http.responses import AgentIdInPath, problems
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent
    from ultramon.fleet.snapshot import ContextSnapshot
    from ultramon.notices.registration import StoredRegistration
    from ultramon.server.services import Services

router = APIRouter(prefix="/sessions", tags=["sessions"])

DISABLED = "disabled"


@router.get("/context-monitor", responses=problems())
def list_monitored(services: Served, caller: AnyCaller) -> dict[str, Any]:
    """List the agents with a registration for notices; to an agent itself and its children."""
    monitored = []
    for one in services.registry.registrations():
        try:
            agent = services.backend.load(one.agent_id)
            is_shown, shown = may_see(caller, agent), take_snapshot(agent, one, services.clock)
        except (AgentNotFoundError, StateCorruptError, StateSchemaError):
            # Deleted or unreadable, but still registered.
            is_shown, shown = caller.is_admin, None
        if is_shown:
            monitored.append(
                {
                    "session_id": one.agent_id,
                    "friendly_name": None if shown is None else shown.label,
                    "notify_session_id": one.notify_id if shown is None else shown.notify_id,
                    **_when(shown),
                }
            )
    return {"monitored": monitored}


@router.post("/{session_id}/context-monitor", responses=problems(404, 409, body=True))
def set_monitored(
    request: Request,
    services: Served,
    caller: AnyCaller,
    session_id: AgentIdInPath,
    asked: ContextMonitor,
) -> dict[str, Any]:
    """Register a recipient of the notices about an agent, or remove the registration.

    Undelivered notices about the agent are cancelled, and every threshold can be notified again.
    Without thresholds those of an existing registration stay.
    """
    requester = requester_of(request, asked.requester_session_id)
    agent = services.backend.load(check_agent_id(session_id))
    if requester is None:
        raise HTTPException(422, "requester_session_id is missing: the admin token names no agent")
    backend = services.backend
    if not asked.enabled:
        routing.unregister(session_id, requester, backend=backend)
        return {"status": "ok", "enabled": False, **_when(None)}
    routing.register(
        session_id,
        requester,
        asked.notify_session_id or "",
        _ladder(asked, _registered(services, session_id)),
        as_admin=caller.is_admin,
        backend=backend,
        clock=services.clock,
    )
    return {"status": "ok", "enabled": True, **_when(_snapshot(services, agent))}


def _ladder(
    asked: ContextMonitor, registered: StoredRegistration | None
) -> Ladder | list[float] | None:
    """Return the thresholds of the request, or the registered ones; None = the agent's own."""
    warning, critical = asked.warning_percentage, asked.critical_percentage
    has_own = warning is not None or critical is not None
    ways = (asked.threshold_percentages is not None, has_own, asked.use_default_thresholds)
    if sum(ways) > 1:
        allowed = "one of threshold_percentages, warning and critical percentage, or the default"
        raise ConfigurationError("thresholds", "several", allowed)
    if asked.threshold_percentages is not None:
        return [percentage / 100 for percentage in asked.threshold_percentages]
    if has_own:
        default_warning, default_critical = (rung.ratio for rung in shared_ladder().rungs)
        return Ladder.default(
            default_warning if warning is None else warning / 100,
            default_critical if critical is None else critical / 100,
            rearm_margin=None,
        )
    if asked.use_default_thresholds or registered is None or registered.ladder is None:
        return None
    return Ladder.from_json(registered.ladder)


@router.get("/{session_id}/context", responses=problems(404, 422))
def show_context(
    request: Request, services: Served, caller: AnyCaller, session_id: AgentIdInPath
) -> dict[str, Any]:
    """Return the context window of an agent, registered or not."""
    shown = _snapshot(services, permit(request, session_id))
    return {
        "session_id": shown.agent_id,
        "friendly_name": shown.label,
        "provider": shown.host,
        "lifecycle_status": shown.lifecycle,
        "used_percentage": shown.used_percentage,
        "total_input_tokens": shown.tokens,
        "sampled_at": shown.sampled_at,
        "state": shown.state,
        **_thresholds(shown),
        "threshold_source": shown.threshold_source,
        "context_monitor_enabled": shown.is_registered,
        "context_monitor_enforced": _is_enforced(shown),
        "notify_session_id": shown.notify_id,
        "compaction_active": shown.compaction_active,
        "last_handoff_path": shown.last_handoff_path,
    }


@router.post("/{session_id}/invalidate-cache", responses=problems(404, body=True))
def invalidate_cache(
    request: Request,
    services: Served,
    caller: AnyCaller,
    session_id: AgentIdInPath,
    asked: Annotated[InvalidateCache | None, Body()] = None,
) -> dict[str, Any]:
    """Report that an agent was cleared from outside: undelivered notices about it are cancelled."""
    claimed = None if asked is None else asked.requester_session_id
    requester = requester_of(request, claimed)
    backend, clock = services.backend, services.clock
    cancelled = routing.cancel_notices(session_id, requester, backend=backend, clock=clock)
    return {"status": "ok", "cancelled": cancelled.deleted, "in_flight": cancelled.in_flight}


def _registered(services: Services, agent_id: str) -> StoredRegistration | None:
    return next(iter(services.registry.registrations(agent_id)), None)


def _snapshot(services: Services, agent: StoredAgent) -> ContextSnapshot:
    return take_snapshot(agent, _registered(services, agent.agent_id), services.clock)


def _when(shown: ContextSnapshot | None) -> dict[str, Any]:
    """Return the thresholds of a registration; None = there is none."""
    return {
        **_thresholds(shown),
        "threshold_source": DISABLED if shown is None else shown.threshold_source,
        "enforced": shown is not None and _is_enforced(shown),
    }


def _thresholds(shown: ContextSnapshot | None) -> dict[str, Any]:
    rungs = {} if shown is None else {one.name: one.ratio * 100 for one in shown.thresholds}
    # 0.55 * 100 is 55.00000000000001.
    percentages = {name: round(value, 6) for name, value in rungs.items()}
    return {
        "warning_percentage": percentages.get(WARNING),
        "critical_percentage": percentages.get(CRITICAL),
        "threshold_percentages": list(percentages.values()),
    }


def _is_enforced(shown: ContextSnapshot) -> bool:
    return shown.is_registered and shown.threshold_source != INVALID
