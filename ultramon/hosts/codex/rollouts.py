"""Where the rollout of a thread lies. Standard library only; few hook calls ask."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def find_rollout(session_path: str, thread_id: str) -> str | None:
    """Return the rollout of a thread that a session started; None where there is none.

    The host keeps them in a folder for each day, ``sessions/YYYY/MM/DD``.

    Args:
        session_path: The rollout of the session.
        thread_id: The thread.
    """
    day = os.path.dirname(session_path)
    root = os.path.dirname(os.path.dirname(os.path.dirname(day)))
    first = os.path.relpath(day, root)
    for folder in sorted(_days(root)):
        if folder < first:
            continue
        if (path := _find_in(os.path.join(root, folder), thread_id)) is not None:
            return path
    return None


def find_thread(environ: Mapping[str, str], thread_id: str) -> str | None:
    """Return the rollout of a thread, looked for from the newest day; None where there is none."""
    from ultramon.hosts.codex.configuration import home_directory

    root = os.path.join(home_directory(environ), "sessions")
    for folder in sorted(_days(root), reverse=True):
        if (path := _find_in(os.path.join(root, folder), thread_id)) is not None:
            return path
    return None


def _find_in(folder: str, thread_id: str) -> str | None:
    for name in _names(folder):
        if name.startswith("rollout-") and name.endswith(f"-{thread_id}.jsonl"):
            return os.path.join(folder, name)
    return None


def _days(root: str) -> list[str]:
    return [
        os.path.join(year, month, day)
        for year in _names(root)
        for month in _names(os.path.join(root, year))
        for day in _names(os.path.join(root, year, month))
    ]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
