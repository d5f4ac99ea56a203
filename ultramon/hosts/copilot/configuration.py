"""Where the host keeps its own files. Standard library only."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HOME_VARIABLE = "COPILOT_HOME"
EVENTS_NAME = "events.jsonl"


def home_directory(environ: Mapping[str, str]) -> str:
    """Return the host's directory: ``COPILOT_HOME``, else ``~/.copilot``."""
    return environ.get(HOME_VARIABLE) or os.path.join(os.path.expanduser("~"), ".copilot")


def sessions_directory(environ: Mapping[str, str]) -> str:
    """Return the directory that holds a folder for each session."""
    return os.path.join(home_directory(environ), "session-state")
