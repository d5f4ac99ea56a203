"""Where the rollout of a subagent lies. Standard library only; few hook calls ask."""

from __future__ import annotations

from ultramon.system.lean_os import os


def find_rollout(session_path: str, thread_id: str) -> str | None:
    """Return the rollout of a thread that a session started; None where there is none.

    The client keeps them in a folder for each day, ``sessions/YYYY/MM/DD``.

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
        for name in _names(os.path.join(root, folder)):
            if name.startswith("rollout-") and name.endswith(f"-{thread_id}.jsonl"):
                return os.path.join(root, folder, name)
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
