"""The machines that mirror their agents into a store, and their names for people.

The state of a mirrored agent has its machine's id as `hostname`; that of another agent has the name
of the machine that it runs on.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_MOST_NAMED = 5


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
