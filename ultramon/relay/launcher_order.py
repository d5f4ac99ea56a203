"""The launchers of a run, in the user's order, and which of them takes the next context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ultramon.relay.launchers.port import AgentLauncher
    from ultramon.system.clock import Clock


class Launchers:
    """One or more launchers; a usage limit of one host is no reason to wait while another is free.

    Args:
        launchers: By the agent's name in the choices, in the order in which they are preferred.
        clock: For the ends of limits.
        allowed: The agents that may begin contexts; None = all. The others end what they have
            begun.
    """

    def __init__(
        self,
        launchers: Mapping[str, AgentLauncher],
        clock: Clock,
        allowed: Sequence[str] | None = None,
    ) -> None:
        self._launchers = dict(launchers)
        self._allowed = tuple(launchers if allowed is None else allowed)
        self._clock = clock
        self._limited_until = dict.fromkeys(self._launchers, 0.0)
        self._held_until: dict[str, float] = {}

    @property
    def by_name(self) -> dict[str, AgentLauncher]:
        """The launchers by the agent's name."""
        return dict(self._launchers)

    def __iter__(self) -> Iterator[AgentLauncher]:
        return iter(self._launchers.values())

    @property
    def uses_sdk(self) -> bool:
        """As `AgentLauncher.uses_sdk`; it holds for all of a run."""
        return next(iter(self)).uses_sdk

    def of(self, name: str) -> AgentLauncher:
        """Return the launcher of an agent; of one that has no name here, the preferred one."""
        return self._launchers.get(name) or next(iter(self))

    def next_name(self) -> str:
        """Return the preferred one that is free, else that whose limit ends first."""
        now = self._clock.now()
        # All that are free count alike, and `min` keeps the first of them: the user's order.
        return min(self._allowed, key=lambda name: max(now, self.free_at(name)))

    def free_at(self, name: str) -> float:
        """Return from when an agent is free, epoch seconds; in the past where it is."""
        return max(self._limited_until[name], self._held_until.get(name, 0.0))

    def hold(self, until: Mapping[str, float]) -> None:
        """Begin no context of these agents before a time, instead of those held before.

        Args:
            until: Epoch seconds by the agent's name.
        """
        self._held_until = dict(until)

    def limit(self, name: str, until: float) -> None:
        """Remember that the provider of an agent takes no requests until a time."""
        self._limited_until[name] = until

    def free_beside(self, name: str) -> str | None:
        """Return the preferred one of the others that is free; None = none is."""
        now = self._clock.now()
        others = (one for one in self._allowed if one != name)
        return next((one for one in others if self.free_at(one) <= now), None)
