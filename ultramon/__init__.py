"""Knows how full the context window of every AI agent is, and tells the right party in time.

What most programs need is here; importing this module loads nothing until a name is used. Further
errors are in `ultramon.errors`, tokens of servers in `ultramon.tokens`.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon import signals
    from ultramon.alerts import (
        AlertConfig,
        alerting,
        check_and_alert_context,
        check_context,
    )
    from ultramon.backends.opening import open_backend
    from ultramon.context.config import ContextConfig
    from ultramon.context.estimator import estimate_tokens
    from ultramon.context.ladder import Ladder, Rung
    from ultramon.context.levels import (
        Action,
        Level,
        ThresholdAction,
        ThresholdLevel,
        detect_threshold,
        get_threshold_action,
        should_emit_event,
    )
    from ultramon.context.tracker import ContextTracker, create_context_tracker
    from ultramon.errors import (
        AgentAlreadyRunningError,
        ConfigurationError,
        FencedError,
        HandoffTakenError,
        StateError,
        UltramonError,
    )
    from ultramon.fleet.events import FleetEvent
    from ultramon.fleet.fleet import Fleet
    from ultramon.fleet.supervise.jobs import Job
    from ultramon.fleet.supervise.result import (
        RunUnfinishedError,
        SupervisorEvent,
        SupervisorResult,
    )
    from ultramon.handoff import HandedOffError, HandoffRecord
    from ultramon.monitor.monitor import ContextMonitor, create_context_monitor
    from ultramon.monitor.pool import MonitorPool
    from ultramon.monitor.worker import Worker, worker
    from ultramon.notices.models import Notice
    from ultramon.routing import (
        Inbox,
        cancel_notices,
        queue_message,
        register,
        registrations,
        unregister,
    )
    from ultramon.signals import context_threshold_reached, off, on
    from ultramon.state.events import (
        AgentEvent,
        CheckpointEvent,
        EpochEvent,
        Event,
        HandoffEvent,
        ThresholdEvent,
    )
    from ultramon.state.models import AgentState, SubagentContextState

__all__ = [
    "Action",
    "AgentAlreadyRunningError",
    "AgentEvent",
    "AgentState",
    "AlertConfig",
    "CheckpointEvent",
    "ConfigurationError",
    "ContextConfig",
    "ContextMonitor",
    "ContextTracker",
    "EpochEvent",
    "Event",
    "FencedError",
    "Fleet",
    "FleetEvent",
    "HandedOffError",
    "HandoffEvent",
    "HandoffRecord",
    "HandoffTakenError",
    "Inbox",
    "Job",
    "Ladder",
    "Level",
    "MonitorPool",
    "Notice",
    "RunUnfinishedError",
    "Rung",
    "StateError",
    "SubagentContextState",
    "SupervisorEvent",
    "SupervisorResult",
    "ThresholdAction",
    "ThresholdEvent",
    "ThresholdLevel",
    "UltramonError",
    "Worker",
    "alerting",
    "cancel_notices",
    "check_and_alert_context",
    "check_context",
    "context_threshold_reached",
    "create_context_monitor",
    "create_context_tracker",
    "detect_threshold",
    "estimate_tokens",
    "get_threshold_action",
    "off",
    "on",
    "open_backend",
    "queue_message",
    "register",
    "registrations",
    "should_emit_event",
    "signals",
    "unregister",
    "worker",
]

_ROOMS = {
    "alerts": "AlertConfig alerting check_and_alert_context check_context",
    "backends.opening": "open_backend",
    "context.config": "ContextConfig",
    "context.estimator": "estimate_tokens",
    "context.ladder": "Ladder Rung",
    "context.levels": "Action Level ThresholdAction ThresholdLevel detect_threshold "
    "get_threshold_action should_emit_event",
    "context.tracker": "ContextTracker create_context_tracker",
    "errors": "AgentAlreadyRunningError ConfigurationError FencedError HandoffTakenError "
    "StateError UltramonError",
    "fleet.events": "FleetEvent",
    "fleet.fleet": "Fleet",
    "fleet.supervise.jobs": "Job",
    "fleet.supervise.result": "RunUnfinishedError SupervisorEvent SupervisorResult",
    "handoff": "HandedOffError HandoffRecord",
    "monitor.monitor": "ContextMonitor create_context_monitor",
    "monitor.pool": "MonitorPool",
    "monitor.worker": "Worker worker",
    "notices.models": "Notice",
    "routing": "Inbox cancel_notices queue_message register registrations unregister",
    "signals": "context_threshold_reached off on",
    "state.events": "AgentEvent CheckpointEvent EpochEvent Event HandoffEvent ThresholdEvent",
    "state.models": "AgentState SubagentContextState",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

# Under TYPE_CHECKING a __getattr__ would make every misspelt name valid.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "signals":
            return importlib.import_module("ultramon.signals")
        room = "version" if name == "__version__" else _HOMES.get(name)
        if room is None:
            raise AttributeError(f"module 'ultramon' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ultramon.{room}"), name)
        # Kept, so that the next use of the name does not come here.
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return __all__.copy()
