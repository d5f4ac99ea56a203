"""The level machine of one context window, on `transitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from transitions import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence


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
