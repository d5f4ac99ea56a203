"""Where a host was seen to compact by itself, learned from its automatic compactions.

Standard library only; hooks load it once a compaction of the host was noted. Measured on 284
recorded sessions, Claude Code keeps to one number for each version and Codex does not: a number
counts only while the last compactions agree.
"""

from __future__ import annotations

import os

from ultramon.system import compact_json
from ultramon.system.files import delete_file, read_private_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Mark = tuple[int, int, int]

AGREEMENT = 0.03
"""So far apart, as a share of the larger, two compactions are still at the same number."""
LEAST = 2
"""So many compactions that agree make a number."""
_KEPT = 3
"""The last ones of a version, a model, a window and a trigger; all of them must agree.

Where the last two alone had to agree, six of seven numbers for Codex were wrong; with three none
was, and Claude Code still kept to 37 numbers of 40.
"""
_MAX_KEYS = 200
_BLANKS = str.maketrans("\t\n", "  ")


class LearnedCompactions:
    """The compactions of one host on this machine.

    Args:
        path: The file with them, in a state directory that is there.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: dict[str, list[int]] | None = None

    def near(self, key: str) -> tuple[int, int] | None:
        """Return where a compaction is likely, in tokens, and how often it was seen there."""
        seen = self._load().get(key, [])
        if len(seen) < LEAST or not _agree(seen):
            return None
        return sorted(seen)[len(seen) // 2], len(seen)

    def learn(self, key: str, tokens: int) -> None:
        """Note an automatic compaction.

        Of two that are noted in the same moment one may be lost: the next one makes up for it.

        Raises:
            StateWriteError: The file system refused.
        """
        known = self._load()
        # Taken out first, so that the newest stands last and the oldest is forgotten.
        known[key] = [*known.pop(key, []), tokens][-_KEPT:]
        self._store(known)

    def drop(self, key: str) -> None:
        """Forget what an agent has disproved: it passed the number without a compaction.

        Raises:
            StateWriteError: The file system refused.
        """
        known = self._load()
        if known.pop(key, None) is not None:
            self._store(known)

    def count(self) -> int:
        """Return the number of compactions that are noted."""
        return sum(map(len, self._load().values()))

    def _load(self) -> dict[str, list[int]]:
        if self._seen is None:
            self._seen = _read(self._path)
        return self._seen

    def _store(self, known: dict[str, list[int]]) -> None:
        self._seen = dict(list(known.items())[-_MAX_KEYS:])
        replace_file(self._path, compact_json.dumps(self._seen).encode("ascii"))


def forget(path: str) -> int:
    """Forget the compactions in a file; return how many were noted.

    Raises:
        StateWriteError: The file system refused.
    """
    count = LearnedCompactions(path).count()
    delete_file(path)
    return count


def is_passed(tokens: int, likely_tokens: int) -> bool:
    """Return whether so many tokens disprove a likely compaction."""
    return tokens > likely_tokens * (1 + AGREEMENT)


def key_of(version: str, model: str, window_tokens: int, trigger_tokens: int | None) -> str:
    """Return the name of the compactions that belong together.

    Args:
        version: Of the host.
        model: The model.
        window_tokens: Its window.
        trigger_tokens: Where the host is configured to compact; it moves them. None = nowhere.
    """
    parts = (version, model, window_tokens, trigger_tokens or 0)
    return "\t".join(str(part).translate(_BLANKS) for part in parts)


def _agree(seen: list[int]) -> bool:
    return max(seen) - min(seen) <= AGREEMENT * max(seen)


_last_read: dict[str, tuple[Mark, dict[str, list[int]]]] = {}
"""By path: a resident answers thousands of calls between two compactions."""


def _read(path: str) -> dict[str, list[int]]:
    try:
        status = os.lstat(path)
        mark = status.st_ino, status.st_mtime_ns, status.st_size
        known = _last_read.get(path)
        if known is None or known[0] != mark:
            known = _last_read[path] = mark, _sound(compact_json.loads(read_private_file(path)[0]))
    except (OSError, ValueError):
        return {}
    return {**known[1]}


def _sound(found: Any) -> dict[str, list[int]]:
    if not isinstance(found, dict):
        return {}
    return {
        key: [one for one in seen if type(one) is int and one > 0][-_KEPT:]
        for key, seen in found.items()
        if isinstance(seen, list)
    }
