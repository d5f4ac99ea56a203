"""The launchers of a run, in the user's order, and which of them takes the next context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.relay.launchers.port import AgentLauncher
    from ultramon.system.clock import Clock


class Launchers:
    """One or more launchers; a usage limit of one host is no reason to wait while another is free.

    Args:
        launchers: By the agent's name in the choices, in the order in which they are preferred.
        clock: For the ends of limits.
    """

    def __init__(self, launchers: Mapping[str, AgentLauncher], clock: Clock) -> None:
        self._launchers = dict(launchers)
        self._clock = clock
        self._limited_until = dict.fromkeys(self._launchers, 0.0)

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
        return min(self._limited_until, key=lambda name: max(now, self._limited_until[name]))

    def limit(self, name: str, until: float) -> None:
        """Remember that the provider of an agent takes no requests until a time."""
        self._limited_until[name] = until

    def free_beside(self, name: str) -> str | None:
        """Return the preferred one of the others that is free; None = none is."""
        others = {one: until for one, until in self._limited_until.items() if one != name}
        now = self._clock.now()
        return next((one for one, until in others.items() if until <= now), None)
