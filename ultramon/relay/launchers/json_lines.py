"""The output of a host that prints one JSON object a line, of which nothing is certain."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class JsonLines:
    """The objects of an output, which can be read once.

    Args:
        lines: The output; the last line may be cut.

    Attributes:
        skipped: Lines so far that were no object; empty ones do not count.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.skipped = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self._lines:
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
            # Nesting that is too deep is no ValueError, and no line of a host either.
            except (ValueError, RecursionError):
                entry = None
            if isinstance(entry, dict):
                yield entry
            else:
                self.skipped += 1


def as_object(value: object) -> dict[str, Any]:
    """Return an object, empty where it is none."""
    return value if isinstance(value, dict) else {}


def as_text(value: object, max_chars: int) -> str:
    """Return the beginning of a text, empty where it is none."""
    return value[:max_chars] if isinstance(value, str) else ""


def as_number(value: object) -> float | None:
    """Return a finite number that is not negative, else None."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e15 else None  # type: ignore[operator,arg-type]


def as_count(value: object) -> int:
    """Return a number of tokens, 0 where it is none."""
    return int(as_number(value) or 0)
