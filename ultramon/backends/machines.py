"""The machines that mirror their agents into a store, and their names for people.

The state of a mirrored agent has its machine's id as `hostname`; that of another agent has the name
of the machine that it runs on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import ConfigurationError
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ultramon.state.observed import ObservedAgent

_MOST_NAMED = 5
_FRESH_SECONDS = 10.0
"""Machines come and get names seldom: so long one question serves all looks."""


class Machine(NamedTuple):
    """A machine that mirrors its agents."""

    machine_id: str
    name: str | None
    """For people; None = its id is shown."""
    sent_fields: tuple[str, ...]
    """The names of the texts that it sends."""
    retention_seconds: float | None
    """How long its rows are kept; None = without a limit."""
    last_seen: float
    """Epoch seconds, by the clock of the machine that asks."""


def machines_of(backend: object) -> list[Machine]:
    """Return the machines that mirror their agents into a store, by id; none into files.

    Raises:
        StateError: The store does not answer.
    """
    read: Callable[[], list[Machine]] | None = getattr(backend, "machines", None)
    return [] if read is None else read()


def machine_names(machines: Iterable[Machine]) -> dict[str, str]:
    """Return what people see of each machine, by its id.

    That is its name, with its id where another has the same one.
    """
    named = {one.machine_id: one.name or one.machine_id for one in machines}
    counts = Counter(named.values())
    return {
        machine_id: name if counts[name] == 1 else f"{name} {machine_id}"
        for machine_id, name in named.items()
    }


def find_machine(names: Mapping[str, str], wanted: str) -> str:
    """Return the id that a person means by a machine's name, its id, or the beginning of its id.

    Args:
        names: What people see of each machine, by id.
        wanted: What a person wrote.

    Raises:
        ConfigurationError: None fits, or several do.
    """
    fitting = [one for one, name in names.items() if wanted in (one, name)] or [
        one for one in names if wanted and one.startswith(wanted)
    ]
    if len(fitting) == 1:
        return fitting[0]
    known = sorted(names[one] for one in fitting or names)
    more = len(known) - _MOST_NAMED
    shown = ", ".join(known[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    raise ConfigurationError(
        "machine", wanted, f"one of {shown}" if shown else "left out, as there are none"
    )


class MachineNames:
    """The machines of a store, and the agents of one of them.

    Args:
        backend: The store.
        wanted: Only agents of this machine: its name, its id or the beginning of that, or the host
            name of a machine whose agents store here themselves; None = of all machines.
    """

    def __init__(self, backend: object, wanted: str | None = None) -> None:
        self._backend = backend
        self._wanted = wanted
        self._is_known = False
        self._machines: list[Machine] = []
        self._fresh_until = float("-inf")

    def machines(self) -> list[Machine]:
        """Return the machines that mirror their agents, as of the last seconds.

        Raises:
            StateError: The store does not answer.
        """
        now = SYSTEM_CLOCK.monotonic()
        if now >= self._fresh_until:
            self._machines = machines_of(self._backend)
            self._fresh_until = now + _FRESH_SECONDS
        return self._machines

    def names(self) -> dict[str, str] | None:
        """Return what people see of each machine, by its id; None for a store of one machine.

        Raises:
            StateError: The store does not answer.
        """
        if getattr(self._backend, "machines", None) is None:
            return None
        return machine_names(self.machines())

    def of_wanted(self, agents: list[ObservedAgent]) -> list[ObservedAgent]:
        """Return the agents of the machine that is asked for; all where none is.

        Raises:
            ConfigurationError: There is no such machine, at the first look; or several are meant.
            StateError: The store does not answer.
        """
        wanted = self._wanted
        if wanted is None:
            return agents
        if not any(one.record.hostname == wanted for one in agents):
            try:
                wanted = find_machine(self.names() or {}, wanted)
            except ConfigurationError:
                # One that was shown may have erased its rows since.
                if not self._is_known:
                    raise
        self._is_known = True
        return [one for one in agents if one.record.hostname == wanted]


def shown_machine(names: Mapping[str, str] | None, hostname: str) -> str:
    """Return what people see of the machine of an agent."""
    return (names or {}).get(hostname, hostname)


def are_several(names: Mapping[str, str] | None, agents: Iterable[ObservedAgent]) -> bool:
    """Return whether agents are of several machines, in a store that several can share."""
    return names is not None and len({one.record.hostname for one in agents}) > 1
