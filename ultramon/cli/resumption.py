"""How a coding session that ended, or was cut off, is resumed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from ultramon.state.record import StateRecord


def resume_command(record: StateRecord) -> str | None:
    """Return the shell command that resumes a session in its directory.

    None for an agent that is no session, or whose host cannot resume one.
    """
    from ultramon.hosts.registry import find_host

    if not record.host or record.agent_id != record.session_id:
        return None
    try:
        words = find_host(record.host).setup.resume_words(record.session_id)
    except ConfigurationError:
        return None  # its distribution is gone
    go = f"cd {shlex.quote(record.cwd)} && " if record.cwd else ""
    return f"{go}{shlex.join(words)}" if words else None
