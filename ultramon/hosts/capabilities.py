"""What a host can do, column by column: as its code shows, and as its package describes it.

Never on a hook's path.
"""

from __future__ import annotations

from ultramon.hosts.port import Dialect, Host, Transcripts

COLUMNS = {
    "reading": "when a reading of the window is current",
    "subagents": "by what they are known",
    "limit": "where the window, or where the host compacts, is known from",
    "warned": "where the agent reads reminders and its notices",
    "ended": "how an agent that does not return is ended",
    "compaction": "how a compaction is known",
    "tasks": "the host's own task list",
    "end": "how the end of a session is known",
    "resume": "`ultramon resume`",
    "report": "`ultramon report` and `replay`",
    "relay": "`ultramon relay`",
}
"""The columns of the table in docs/hosts.md, and what each of them says."""
_WITHOUT_HOOKS = ("resume", "report")
_READS = ("looks_like_transcript", "transcripts_in", "find_stored")


def shown_by_code(host: Host, *, has_launcher: bool) -> dict[str, bool]:
    """Return the columns that the code of a host decides, and whether each is there.

    Args:
        host: The host.
        has_launcher: Whether a relay can start it.
    """
    dialect, transcripts = type(host.dialect), type(host.transcripts)
    found = {
        "warned": dialect.write_answer is not Dialect.write_answer,
        "ended": "enforce" in host.setup.own_options,
        "resume": bool(host.setup.resume_words("id")),
        "report": any(getattr(transcripts, n) is not getattr(Transcripts, n) for n in _READS),
        "relay": has_launcher,
    }
    if has_hooks(host):
        return found
    return {name: name in _WITHOUT_HOOKS and found[name] for name in COLUMNS}


def has_hooks(host: Host) -> bool:
    """Return whether the host calls hooks; else its files alone are read."""
    return type(host.dialect) is not Dialect


def can(host: Host, column: str, *, has_launcher: bool) -> bool:
    """Return whether a host has a column, by its code, else as its package says.

    Raises:
        KeyError: There is no such column.
    """
    if column not in COLUMNS:
        raise KeyError(column)
    shown = shown_by_code(host, has_launcher=has_launcher)
    return shown.get(column, column not in host.capabilities.lacks)
