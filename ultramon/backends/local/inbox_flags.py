"""Flag files of recipients with queued messages, so that a hook need not open the database.

The flag is raised within the transaction that queues a message, so that none is without one. It
only says when to look: the messages are in the database.
"""

from __future__ import annotations

import os
import time

from ultramon.system.files import (
    close_quietly,
    delete_quietly,
    make_private_directory,
    open_private,
    refused,
)
from ultramon.system.ids import is_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.backends.local.connection import JournalConnection

FOLDER = "inbox"
_NOTICED_SECONDS = 1.0
"""File systems may stamp their files by another clock."""


def flag_path(directory: str, agent_id: str) -> str:
    """Return the path of a recipient's flag under a state directory."""
    return f"{directory}{os.sep}{FOLDER}{os.sep}{agent_id}"


def is_raised(directory: str, agent_id: str, *, also_later: bool = False) -> bool:
    """Return whether a message may be due; costs one `stat`.

    Args:
        directory: The state directory.
        agent_id: The recipient.
        also_later: Whether a postponed flag counts.
    """
    try:
        found = os.lstat(flag_path(directory, agent_id))
    except OSError:
        return False
    now = time.time()
    # One that was changed later than now was postponed by a clock that was ahead.
    return also_later or found.st_mtime <= now or found.st_ctime > now + _NOTICED_SECONDS


def raise_flag(directory: str, agent_id: str) -> None:
    """Make the recipient's next hook open the database.

    Raises:
        StateError: The file system refused; then nothing may be queued either.
    """
    path = flag_path(directory, agent_id)
    try:
        try:
            # Every further message to a recipient costs this `stat` only.
            if os.lstat(path).st_mtime == 0:
                return
        except FileNotFoundError:
            make_private_directory(os.path.join(directory, FOLDER))
            close_quietly(open_private(path, os.O_WRONLY))
        os.utime(path, (0, 0), follow_symlinks=False)
    except OSError as error:
        raise refused(path, "cannot be written", error) from error


def raise_beside(connection: JournalConnection, agent_id: str) -> None:
    """Raise a flag within a transaction of the journal beside it.

    A journal in memory has no flags, and no hook that reads it.

    Raises:
        StateError: As `raise_flag`.
    """
    directory = connection.directory
    # No hook has such a name as an edited state file may hold.
    if directory and is_agent_id(agent_id):
        raise_flag(directory, agent_id)


def lower_beside(connection: JournalConnection, agent_id: str) -> None:
    """Lower a flag within a transaction of the journal beside it."""
    if connection.directory:
        delete_quietly(flag_path(connection.directory, agent_id))


def postpone(directory: str, agent_id: str, until: float | None) -> None:
    """Postpone or lower a flag; only within a transaction that may write.

    No process can queue meanwhile, so a flag that is raised at this moment is never lowered.

    Args:
        directory: The state directory.
        agent_id: The recipient.
        until: Epoch seconds before which no message is due; None = no message waits.
    """
    path = flag_path(directory, agent_id)
    if until is None:
        delete_quietly(path)
        return
    try:
        os.utime(path, (until, until), follow_symlinks=False)
    except OSError:
        return  # better looked at too early than not at all
