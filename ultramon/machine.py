"""The two state machines, and the only importer of `transitions`.

What a level *should* be is decided by `core.thresholds.next_level`; the level machine is fired only
when that differs from where it stands, and refuses moves that no decision can produce.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from transitions import Machine, MachineError

from ultramon.errors import LifecycleError

if TYPE_CHECKING:
    from collections.abc import Sequence

CREATED = "created"
ACTIVE = "active"
ENDED = "ended"

OUTCOMES = ("completed", "returned", "failed", "cancelled", "expired", "lost")

# At INFO it writes several lines per transition into the log of whoever configures one.
logging.getLogger("transitions").setLevel(logging.WARNING)

_READS = ("get_state", "get_threshold_action", "explain", "pending")
_SETTINGS = ("plan", "set_tasks_total", "set_model")
_VERBS: dict[str, tuple[str, ...]] = {
    CREATED: ("start", *_SETTINGS, *_READS),
    ACTIVE: (
        "track_content",
        "report_usage",
        "report_response",
        "report_overflow",
        "fits",
        "record_compaction",
        "clear",
        "waiting",
        "working",
        "update_heartbeat",
        "task",
        "set_current_task",
        "complete_task",
        "hand_off",
        "stop",
        *_SETTINGS,
        *_READS,
    ),
    # A second stop() in a finally block must not hide the exception that led there.
    ENDED: ("stop", *_READS),
}


class LevelChange(NamedTuple):
    """One move of the level machine."""

    previous: str
    current: str
    rising: bool


class _Model:
    """What `transitions` decorates with triggers; private, so that no public name collides."""

    state: str


class LevelMachine:
    """Stands on one level of a ladder; generated from the ladder's level names.

    Args:
        names: Level names from the base upwards.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._model = _Model()
        moves = []
        for height, name in enumerate(self._names):
            below, above = list(self._names[:height]), list(self._names[height + 1 :])
            if below:
                moves.append([f"rise_to_{name}", below, name])
            if above:
                moves.append([f"relax_to_{name}", above, name])
        self._machine = Machine(
            self._model,
            states=list(self._names),
            transitions=moves,
            initial=self._names[0],
            auto_transitions=False,
        )

    @property
    def level(self) -> str:
        """The level it stands on."""
        return self._model.state

    def move(self, level: str) -> LevelChange:
        """Move to another level and return the change.

        Raises:
            ValueError: It stands there already, or the ladder has no such level.
        """
        previous = self.level
        if level == previous or level not in self._names:
            raise ValueError(f"no move from level {previous!r} to {level!r}")
        rising = self._names.index(level) > self._names.index(previous)
        self._model.trigger(f"{'rise' if rising else 'relax'}_to_{level}")  # type: ignore[attr-defined]
        return LevelChange(previous, level, rising)

    def place(self, level: str | None) -> None:
        """Stand on a level without a change: a restart, or a new epoch (None = the base)."""
        self._machine.set_state(level if level in self._names else self._names[0])


class LifecycleMachine:
    """created → active → ended, with an outcome.

    Args:
        agent_id: For error texts.
    """

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.outcome: str | None = None
        self._model = _Model()
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
        self.outcome = outcome

    def _fire(self, trigger: str, verb: str) -> None:
        try:
            self._model.trigger(trigger)  # type: ignore[attr-defined]
        except MachineError as error:
            raise LifecycleError(self.agent_id, self.phase, verb, _VERBS[self.phase]) from error
