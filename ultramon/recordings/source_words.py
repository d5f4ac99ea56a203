"""Names of the sources of tokens, for people: the same on every screen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from ultramon.context.tracker import REPLY, STANDING
from ultramon.hosts.transcripts.mcp_names import server_of, tool_of
from ultramon.hosts.transcripts.records import (
    AGENTS,
    HOOKS,
    IMAGES,
    MCP,
    MEMORY,
    SKILLS,
    SYSTEM,
    THINKING,
    TOOLS,
)
from ultramon.recordings.transcript_summary import SUMMARY, UNRECORDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REST = "not recorded"
"""What the provider counted and no text of a recording explains."""
_WORDS = {
    UNRECORDED: REST,
    REPLY: "replies",
    THINKING: "thinking",
    IMAGES: "images",
    STANDING: "before the first word",
    SUMMARY: "summaries",
    "user": "prompts",
    "developer": "developer messages",
    "tool:unknown": "unnamed tool",
    SYSTEM: "system prompt",
    TOOLS: "built-in tools",
    SKILLS: "list of skills",
    AGENTS: "list of agents",
    HOOKS: "texts of other hooks",
}


def source_words(source: str, servers: Iterable[str] = ()) -> str:
    """Return what brought tokens.

    Args:
        source: As `ultramon.hosts.transcripts.records.Content` and `TranscriptSummary` have it.
        servers: MCP servers that are known, by which their tools are told apart.
    """
    if source in _WORDS:
        return _WORDS[source]
    kind, mark, rest = source.partition(":")
    server = server_of(rest, servers) if kind == "tool" else None
    if server is not None:
        return f"MCP {server}: {tool_of(rest, server)}"
    if source.startswith(MCP):
        return f"MCP {rest}"
    if source.startswith(MEMORY):
        return home_relative(rest)
    if mark and kind in ("tool", "attachment"):
        return rest
    return source


def servers_in(sources: Iterable[str]) -> list[str]:
    """Return the MCP servers among sources."""
    return [one.removeprefix(MCP) for one in sources if one.startswith(MCP)]


def tokens_by_words(by_source: Mapping[str, float]) -> dict[str, float]:
    """Return tokens by what people read, the largest first; sources of one name are one."""
    found: dict[str, float] = {}
    servers = servers_in(by_source)
    for source, tokens in by_source.items():
        words = source_words(source, servers)
        found[words] = found.get(words, 0.0) + tokens
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


class Part(NamedTuple):
    """What one name of a source stands for.

    Attributes:
        name: For people.
        tokens: That it brought.
        provenance: How sure they are; None = not said.
    """

    name: str
    tokens: float
    provenance: str | None


def parts_by_words(by_source: Mapping[str, float], provenance: Mapping[str, str]) -> list[Part]:
    """Return what fills a window by what people read, the largest first.

    Args:
        by_source: Tokens.
        provenance: How sure they are, by source; what is left out is not said.
    """
    sure: dict[str, set[str]] = {}
    servers = servers_in(by_source)
    for source, words in provenance.items():
        sure.setdefault(source_words(source, servers), set()).add(words)
    # Of sources that share a name one may be estimated, and so is their sum.
    return [
        Part(name, tokens, min(sure[name]) if name in sure else None)
        for name, tokens in tokens_by_words(by_source).items()
    ]


def home_relative(path: str) -> str:
    """Return a path with ``~`` for the user's home."""
    home = os.path.expanduser("~").rstrip("/\\")
    return f"~{path[len(home) :]}" if home and path.startswith(home + os.sep) else path
