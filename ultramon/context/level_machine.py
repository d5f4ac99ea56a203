"""The level machine of one context window, on `transitions`."""

from __future__ import annotations

import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from transitions import Machine

if TYPE_CHECKING:
    from ultramon.context.ladder import Ladder, ResolvedLadder


# At INFO it writes several lines per transition into an application's log.
logging.getLogger("transitions").setLevel(logging.WARNING)


class MachineModel:
    """What `transitions` decorates with triggers; apart, so that no public name collides."""

    state: str


class LevelMachine:
    """The level of one window: every level of the ladder is a state, every reading a trigger.

    The conditions of the arcs read the ladder as it is resolved against the present limit, so
    `transitions` takes the arc that this ladder allows, or none.

    Args:
        ladder: Its levels are the states, also those whose rung the present limit drops.

    Attributes:
        names: The levels from the base upwards.
    """

    def __init__(self, ladder: Ladder) -> None:
        self.names = ladder.names
        self._resolved = ladder.resolve(None)
        self._model = MachineModel()
        reached = {name: partial(self._is_reached, name) for name in self.names}
        arcs: list[list[Any]] = []
        for height, level in enumerate(self.names):
            below, above = self.names[:height], self.names[height + 1 :]
            dropped, rearmed = partial(self._is_dropped, level), partial(self._is_rearmed, level)
            # The first whose conditions hold is taken, so the farthest come first.
            ways = [(target, [reached[target]]) for target in reversed(above)]
            ways += [(target, [dropped, reached[target]]) for target in reversed(below)]
            ways += [(target, [partial(rearmed, target)]) for target in below]
            arcs += [["read", level, *way] for way in ways]
        self._machine = Machine(
            self._model,
            states=list(self.names),
            transitions=arcs,
            initial=ladder.base,
            auto_transitions=False,
        )
        self._find_bounds()

    @property
    def level(self) -> str:
        """The present level."""
        return self._model.state

    def decide(
        self, previous: str | None, usage_ratio: float | None, ladder: ResolvedLadder
    ) -> str | None:
        """Return the level after a reading, as `next_level`, and go there.

        Args:
            previous: The level before; None when it was unknown.
            usage_ratio: 0.0 and more; None while tokens or limit are unknown.
            ladder: The machine's ladder, resolved against the current limit.
        """
        if usage_ratio is None:
            return None
        if previous != self.level or ladder is not self._resolved:
            self._resolved = ladder
            self.place(previous)
        # A trigger costs some 20 µs; most readings lie far from any rung.
        if not self._lowest <= usage_ratio < self._next:
            self._model.trigger("read", usage_ratio)  # type: ignore[attr-defined]
            self._find_bounds()
        return self.level

    def place(self, level: str | None) -> None:
        """Set the level without a change: a restart, or a new epoch (None = the base)."""
        self._machine.set_state(level if level in self.names else self.names[0])
        self._find_bounds()

    def _find_bounds(self) -> None:
        """Note between which ratios no arc can be taken."""
        rungs, height = self._resolved.rungs, self._resolved.rank(self.level)
        self._next = rungs[height].ratio if height < len(rungs) else inf
        if self.level not in self._resolved.names:
            self._lowest = inf
        else:
            self._lowest = (height and rungs[height - 1].rearm_ratio) or -inf

    def _is_reached(self, target: str, usage_ratio: float) -> bool:
        """Whether the target's rung holds for this limit and the reading is at or above it."""
        ladder = self._resolved
        return target in ladder.names and ladder.rank_at(usage_ratio) >= ladder.rank(target)

    def _is_dropped(self, level: str, usage_ratio: float) -> bool:
        """Whether this limit dropped the rung of the present level."""
        return level not in self._resolved.names

    def _is_rearmed(self, level: str, target: str, usage_ratio: float) -> bool:
        """Whether every rung above the target is left so far below that it can fire again."""
        names = self._resolved.names
        if level not in names or target not in names:
            return False
        between = self._resolved.rungs[names.index(target) : names.index(level)]
        ratios = [rung.rearm_ratio for rung in between]
        return all(ratio is not None and usage_ratio < ratio for ratio in ratios)
