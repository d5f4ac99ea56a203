"""A session's environment, kept in its state for other processes that look at the session.

Standard library only.
"""

from __future__ import annotations

import os

from ultramon.hosts.calls.memory import HookMemory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.hosts.port import Host

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


def keep(host: Host, memory: HookMemory, environ: Mapping[str, str]) -> None:
    """Keep the environment of a session's own process, unless it holds nothing of the host's."""
    kept = {
        name: value
        for name in (*host.dialect.environment_variables(), *OWN_VARIABLES)
        if (value := environ.get(name)) and len(value) <= _MAX_CHARS
    }
    if kept:
        memory.environment = kept
