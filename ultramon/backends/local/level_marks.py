"""Marker files that let a writer skip the database when no subscriber needs this reading.

A mark only says when to look; which notice follows is decided in the database.
"""

from __future__ import annotations

import os

from ultramon.errors import StateCorruptError
from ultramon.system import compact_json
from ultramon.system.files import (
    delete_quietly,
    make_private_directory,
    read_private_file,
    replace_file,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    from ultramon.state.record import StateRecord

    Mark: TypeAlias = tuple[dict[str, Any] | None, tuple[int, str] | None]

FOLDER = "watched"


def mark_path(directory: str, agent_id: str) -> str:
    """Return the path of an agent's mark under a state directory."""
    return f"{directory}{os.sep}{FOLDER}{os.sep}{agent_id}"


def is_due(directory: str, record: StateRecord) -> bool:
    """Return whether a state may lead to a notice, as far as its mark says."""
    try:
        data, _ = read_private_file(mark_path(directory, record.agent_id))
    except FileNotFoundError:
        return False
    except (OSError, StateCorruptError):
        return True  # the database decides
    # Only for registered agents: every other save is spared this.
    from ultramon.notices.levels import decide

    try:
        mark = compact_json.loads(data)
        last = mark["told"]
        decision = decide(mark["ladder"], record, None if last is None else (last[0], last[1]))
    except (ValueError, LookupError, TypeError):
        return True
    return decision is not None


def write_mark(directory: str, agent_id: str, mark: Mark | None) -> None:
    """Write or delete a mark; one that stays makes the next save look in vain, once.

    Args:
        directory: The state directory.
        agent_id: The registered agent.
        mark: The ladder (None = the agent's own), and epoch and level announced last; None
            deletes it.

    Raises:
        StateError: The file system refused to write it.
    """
    path = mark_path(directory, agent_id)
    if mark is None:
        delete_quietly(path)
        return
    make_private_directory(os.path.join(directory, FOLDER))
    ladder, announced = mark
    data = compact_json.dumps({"ladder": ladder, "told": announced}).encode("ascii")
    replace_file(path, data)
