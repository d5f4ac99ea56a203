"""Which item a task of an agent is about: models put an item's name into words of their own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Around a name: no letter, and no more of a path. A full stop may end the sentence.
_BEFORE, _BEHIND = r"(?<![\w./-])", r"(?![\w/-]|\.\w)"


class ItemNames:
    """The names of the items of a run.

    Args:
        names: As a task list spells them.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = dict.fromkeys(names)
        self._known: dict[str, str | None] = {}

    def find(self, subject: str) -> str | None:
        """Return the item that a subject names, None where it is none or more than one.

        A subject that is a name is that item. Else it is about the one item whose whole name is
        in it; a name within a longer one that is there, too, does not count.
        """
        if subject in self._names:
            return subject
        if subject not in self._known:
            self._known[subject] = self._search(subject)
        return self._known[subject]

    def _search(self, subject: str) -> str | None:
        found = [
            match.span()
            for name in self._names
            if name in subject
            for match in re.finditer(_BEFORE + re.escape(name) + _BEHIND, subject)
        ]
        # One name may hold another, as `parser tests` holds `parser`: the longest is meant.
        longest = {
            subject[start:end]
            for start, end in found
            if not any(
                one <= start and end <= other and (one, other) != (start, end)
                for one, other in found
            )
        }
        return longest.pop() if len(longest) == 1 else None
