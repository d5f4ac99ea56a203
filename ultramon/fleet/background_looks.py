"""What a program that runs for long does beside its work: it announces, and runs commands."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.backends.level_watch import LevelWatch
from ultramon.fleet.event_commands import EventCommands
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.backends.level_watch import Reading
    from ultramon.system.clock import Clock


@contextmanager
def background_looks(
    backend: Backend,
    directory: str,
    source: str,
    readings: Iterable[Reading] = (),
    *,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[None]:
    """Announce levels of plans and budgets, and run the commands of ``[on]``, while entered.

    Args:
        backend: The store.
        directory: The state directory.
        source: The name of the program, as for `LevelWatch`.
        readings: What else has levels, as for `LevelWatch`: the look at the budgets.
        clock: For tests.

    Raises:
        ConfigurationError: A setting of ``[plan]`` or ``[on]`` is wrong; nothing is started.
    """
    levels = LevelWatch(backend, directory, source, readings=readings, clock=clock)
    # The commands begin first and end last: a level that is announced meanwhile is an event too.
    with EventCommands(backend, directory, clock=clock), levels:
        yield
