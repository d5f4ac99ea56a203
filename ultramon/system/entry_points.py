"""Entry points by which other distributions extend ultramon. Never on a hook's path."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container


def find_entry_points(group: str, built_in: Container[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, the first installed one of each name.

    Args:
        group: E.g. ``ultramon.hosts``.
        built_in: Names that ultramon fills itself; they cannot be replaced.
    """
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name not in built_in:
            found.setdefault(entry.name, entry)
    return found


def name_distribution(entry: EntryPoint) -> str:
    """Return the name of the distribution that offers an entry point, for people."""
    return entry.dist.name if entry.dist else "an unknown distribution"
