"""A session's environment, kept in its state for the calls that come without one.

Standard library only. A request brings no environment, and headers cannot replace it: Claude Code
sets its process id and the project for commands only, and drops what is not Latin-1.
"""

from __future__ import annotations

from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.hosts.port import Host

ENVIRONMENT = "environment"
"""Name of the field among what a host keeps of a session."""
OWN_VARIABLES = (
    "ULTRAMON_AUDIENCE", "ULTRAMON_PARENT_ID", "ULTRAMON_RELAY", "ULTRAMON_RUN", "TMUX_PANE",
)  # fmt: skip
CALLER = "=caller"
"""In the environment of a call that a resident handles: the process that called the hook. No
variable of a process can have this name."""
_MAX_CHARS = 4096


def calling_process(environ: Mapping[str, str]) -> int:
    """Return the process that called the hook whose environment this is."""
    caller = environ.get(CALLER)
    return os.getppid() if caller is None else int(caller)


def keep(host: Host, memory: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Keep the environment of a session's own process, unless it holds nothing of the host's."""
    kept = {
        name: value
        for name in (*host.environment_variables(), *OWN_VARIABLES)
        if (value := environ.get(name)) and len(value) <= _MAX_CHARS
    }
    if kept:
        memory[ENVIRONMENT] = kept


def kept_environment(memory: object) -> dict[str, str] | None:
    """Return what was kept; None where no process of the session has called yet.

    Args:
        memory: The host's field of the session's state.
    """
    found = memory.get(ENVIRONMENT) if isinstance(memory, dict) else None
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in found.items() if isinstance(value, str)}
