"""The client's environment, left in a session's state for the calls that come without one.

Standard library only. A request brings no environment with it, and headers cannot replace it: the
client sets its process id and the project for commands only, and drops what is not Latin-1.
"""

from __future__ import annotations

from ultramon.hosts.claude_code import compaction_trigger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

SURROUNDINGS = "environment"
"""Name of the field among what this host keeps of a session."""
VARIABLES = (
    "CLAUDE_PID",
    "CLAUDE_PROJECT_DIR",
    "CLAUDE_CONFIG_DIR",
    "CLAUDE_CODE_ENTRYPOINT",
    "ULTRAMON_AUDIENCE",
    "ULTRAMON_PARENT_ID",
    "ULTRAMON_RUN",
    "TMUX_PANE",
    compaction_trigger.WINDOW_VARIABLE,
    compaction_trigger.PERCENT_VARIABLE,
    compaction_trigger.OUTPUT_VARIABLE,
    compaction_trigger.SMALL_VARIABLE,
    compaction_trigger.MOST_VARIABLE,
    compaction_trigger.REFUSAL_VARIABLE,
    "DISABLE_AUTO_COMPACT",
    "DISABLE_COMPACT",
)
"""All that a hook asks for, and nothing that is secret."""
_MAX_CHARS = 4096


def keep(memory: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Keep what a session's own process tells; an environment without anything of it is none."""
    kept = {
        name: value
        for name in VARIABLES
        if (value := environ.get(name)) and len(value) <= _MAX_CHARS
    }
    if kept:
        memory[SURROUNDINGS] = kept


def kept(memory: object) -> dict[str, str] | None:
    """Return what was kept; None when the session has told nothing.

    Args:
        memory: What this host keeps of the session, as it stands in the state.
    """
    found = memory.get(SURROUNDINGS) if isinstance(memory, dict) else None
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in found.items() if isinstance(value, str)}
