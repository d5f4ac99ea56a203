"""The output of a client that prints one JSON object a line."""

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
            except (ValueError, RecursionError):
                entry = None
            if isinstance(entry, dict):
                yield entry
            else:
                self.skipped += 1
