"""Names of the sources of tokens, for people: the same on every screen."""

from __future__ import annotations

import os

from ultramon.context.tracker import REPLY, STANDING
from ultramon.hosts.transcripts.records import (
    AGENTS,
    HOOKS,
    MCP,
    MEMORY,
    SKILLS,
    SYSTEM,
    TOOLS,
)
from ultramon.recordings.summary import SUMMARY, UNRECORDED

REST = "not recorded"
"""What the provider counted and no text of a recording explains."""
_WORDS = {
    UNRECORDED: REST,
    REPLY: "replies",
    STANDING: "before the first word",
    SUMMARY: "summaries",
    "user": "prompts",
    SYSTEM: "system prompt",
    TOOLS: "built-in tools",
    SKILLS: "list of skills",
    AGENTS: "list of agents",
    HOOKS: "texts of other hooks",
}


def source_words(source: str) -> str:
    """Return what brought tokens.

    Args:
        source: As `ultramon.hosts.transcripts.records.Content` and `TranscriptSummary` have it.
    """
    kind, mark, rest = source.partition(":")
    if source.startswith(MCP):
        return f"MCP {rest}"
    if source.startswith(MEMORY):
        return home_relative(rest)
    if mark and kind in ("tool", "attachment"):
        return rest
    return _WORDS.get(source, source)


def home_relative(path: str) -> str:
    """Return a path with ``~`` for the user's home."""
    home = os.path.expanduser("~").rstrip("/\\")
    return f"~{path[len(home) :]}" if home and path.startswith(home + os.sep) else path
