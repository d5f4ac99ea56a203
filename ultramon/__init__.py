"""Knows how full the context window of every AI agent is, and tells the right party in time.

Everything public is here; importing this module loads nothing until a name is used.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon import signals
    from ultramon.backends import open_backend
    from ultramon.config import ContextConfig
    from ultramon.core.estimator import estimate_tokens
    from ultramon.core.thresholds import Ladder, Rung, next_level
    from ultramon.core.tracker import ContextTracker, create_context_tracker
    from ultramon.errors import (
        AgentAlreadyRunningError,
        AgentNotFoundError,
        ConfigurationError,
        FencedError,
        HandoffTakenError,
        InvalidAgentIdError,
        InvalidUsageError,
        LifecycleError,
        MissingExtraError,
        StateCorruptError,
        StateDirectoryError,
        StateError,
        StateSchemaError,
        StateWriteError,
        UltramonError,
    )
    from ultramon.explain import Explanation
    from ultramon.fleet import Fleet
    from ultramon.fleet_event import FleetEvent
    from ultramon.gauge import Fit
    from ultramon.handoff import HandoffRecord, Resume, Workspace
    from ultramon.levels import (
        Action,
        Level,
        ThresholdAction,
        detect_threshold,
        get_threshold_action,
        should_emit_event,
    )
    from ultramon.models import (
        AgentEvent,
        AgentState,
        EpochEvent,
        Event,
        HandoffEvent,
        ThresholdEvent,
    )
    from ultramon.monitor import ContextMonitor, create_context_monitor
    from ultramon.pool import MonitorPool
    from ultramon.signals import off, on

__all__ = [
    "Action",
    "AgentAlreadyRunningError",
    "AgentEvent",
    "AgentNotFoundError",
    "AgentState",
    "ConfigurationError",
    "ContextConfig",
    "ContextMonitor",
    "ContextTracker",
    "EpochEvent",
    "Event",
    "Explanation",
    "FencedError",
    "Fit",
    "Fleet",
    "FleetEvent",
    "HandoffEvent",
    "HandoffRecord",
    "HandoffTakenError",
    "InvalidAgentIdError",
    "InvalidUsageError",
    "Ladder",
    "Level",
    "LifecycleError",
    "MissingExtraError",
    "MonitorPool",
    "Resume",
    "Rung",
    "StateCorruptError",
    "StateDirectoryError",
    "StateError",
    "StateSchemaError",
    "StateWriteError",
    "ThresholdAction",
    "ThresholdEvent",
    "UltramonError",
    "Workspace",
    "create_context_monitor",
    "create_context_tracker",
    "detect_threshold",
    "estimate_tokens",
    "get_threshold_action",
    "next_level",
    "off",
    "on",
    "open_backend",
    "should_emit_event",
    "signals",
]

_ROOMS = {
    "backends": "open_backend",
    "config": "ContextConfig",
    "core.estimator": "estimate_tokens",
    "core.thresholds": "Ladder Rung next_level",
    "core.tracker": "ContextTracker create_context_tracker",
    "errors": "AgentAlreadyRunningError AgentNotFoundError ConfigurationError FencedError "
    "HandoffTakenError InvalidAgentIdError InvalidUsageError LifecycleError MissingExtraError "
    "StateCorruptError StateDirectoryError StateError StateSchemaError StateWriteError "
    "UltramonError",
    "explain": "Explanation",
    "fleet": "Fleet",
    "fleet_event": "FleetEvent",
    "gauge": "Fit",
    "handoff": "HandoffRecord Resume Workspace",
    "levels": "Action Level ThresholdAction detect_threshold get_threshold_action "
    "should_emit_event",
    "models": "AgentEvent AgentState EpochEvent Event HandoffEvent ThresholdEvent",
    "monitor": "ContextMonitor create_context_monitor",
    "pool": "MonitorPool",
    "signals": "off on",
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names.split()}

# Under TYPE_CHECKING a __getattr__ would make every misspelt name valid.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "signals":
            return importlib.import_module("ultramon.signals")
        room = _HOMES.get(name)
        if room is None:
            raise AttributeError(f"module 'ultramon' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"ultramon.{room}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
