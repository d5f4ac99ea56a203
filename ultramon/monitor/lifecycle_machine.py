"""The state machine of one agent's lifecycle: which verbs are allowed in which phase."""

from __future__ import annotations

from transitions import Machine, MachineError

from ultramon.context.level_machine import MachineModel
from ultramon.errors import LifecycleError
from ultramon.state.liveness import OUTCOMES

CREATED = "created"
ACTIVE = "active"
ENDED = "ended"


_READS = ("get_state", "get_threshold_action", "explain", "pending", "steps", "pinned_rules")
_SETTINGS = ("plan", "set_tasks_total", "set_model", "set_host_limits")
_WORK = (
    "track_content", "report_usage", "report_response", "report_overflow", "fits",
    "record_compaction", "clear", "waiting", "working", "update_heartbeat", "task",
    "set_current_task", "complete_task", "step", "checkpoint", "hand_off",
)  # fmt: skip
_VERBS: dict[str, tuple[str, ...]] = {
    CREATED: ("start", *_SETTINGS, *_READS),
    ACTIVE: (*_WORK, "stop", *_SETTINGS, *_READS),
    # A second stop() in a finally block must not hide the exception that led there.
    ENDED: ("stop", *_READS),
}


class LifecycleMachine:
    """created → active → ended.

    Args:
        agent_id: For error texts.
    """

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self._model = MachineModel()
        self._machine = Machine(
            self._model,
            states=[CREATED, ACTIVE, ENDED],
            transitions=[["begin", CREATED, ACTIVE], ["finish", ACTIVE, ENDED]],
            initial=CREATED,
            auto_transitions=False,
        )

    @property
    def phase(self) -> str:
        """``created``, ``active`` or ``ended``."""
        return self._model.state

    def require(self, verb: str) -> None:
        """Make sure that a verb is allowed now.

        Raises:
            LifecycleError: It is not.
        """
        allowed = _VERBS[self.phase]
        if verb not in allowed:
            raise LifecycleError(self.agent_id, self.phase, verb, allowed)

    def begin(self) -> None:
        """Become active.

        Raises:
            LifecycleError: It was started before.
        """
        self._fire("begin", "start")

    def finish(self, outcome: str) -> None:
        """End with an outcome.

        Raises:
            ValueError: There is no such outcome.
            LifecycleError: It is not active.
        """
        if outcome not in OUTCOMES:
            raise ValueError(f"no outcome {outcome!r}: choose one of {', '.join(OUTCOMES)}")
        self._fire("finish", "stop")

    def _fire(self, trigger: str, verb: str) -> None:
        try:
            self._model.trigger(trigger)  # type: ignore[attr-defined]
        except MachineError as error:
            raise LifecycleError(self.agent_id, self.phase, verb, _VERBS[self.phase]) from error
