"""Names for people: as short as tells one thing from the others beside it."""

from __future__ import annotations

from ultramon.system import foreign_paths

_LEAST_ID_CHARS = 8


def short_names(paths: set[str], least: int = 1) -> dict[str, str]:
    """Return the end of each path, long enough that no other one ends alike.

    Args:
        paths: What the names shall distinguish.
        least: The fewest parts of a path to show.
    """
    names = {}
    for path in paths:
        parts = foreign_paths.parts(path) or [path]
        count = least
        while count < len(parts) and any(_ends(other, parts[-count:]) for other in paths - {path}):
            count += 1
        names[path] = "/".join(parts[-count:])
    return names


def _ends(path: str, parts: list[str]) -> bool:
    return foreign_paths.parts(path)[-len(parts) :] == parts


def id_lengths(names: set[str]) -> dict[str, int]:
    """Return how many characters of each id are needed to tell it from the others."""
    ids = sorted(names)
    lengths = {}
    for at, name in enumerate(ids):
        # In sorted order the id with the longest common beginning is a neighbour.
        around = ids[max(0, at - 1) : at] + ids[at + 1 : at + 2]
        shared = max((_shared_chars(name, other) for other in around), default=0)
        lengths[name] = max(_LEAST_ID_CHARS, shared + 1)
    return lengths


def _shared_chars(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(first), len(second)))
