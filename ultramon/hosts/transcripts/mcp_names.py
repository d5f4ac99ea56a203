"""Which MCP server a tool is of, by its name. Standard library only, because readers import it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PREFIX, _MARK = "mcp__", "__"


def server_of(tool: str, servers: Iterable[str] = ()) -> str | None:
    """Return the server of a tool; None = it is of none.

    Args:
        tool: Its name, such as ``mcp__github__get_issue``.
        servers: Names that are known. Without the right one, of a server whose own name holds the
            mark the first part is returned.
    """
    rest = tool.removeprefix(_PREFIX)
    if rest == tool or _MARK not in rest:
        return None
    known = (one for one in servers if rest.startswith(one + _MARK))
    return max(known, key=len, default=rest.partition(_MARK)[0])


def tool_of(tool: str, server: str) -> str:
    """Return the name of a tool without that of its server."""
    return tool.removeprefix(f"{_PREFIX}{server}{_MARK}")


def servers_of(tools: Iterable[str]) -> set[str]:
    """Return the servers of all tools of a request: what the names of their tools have in common.

    A server whose only tool has a mark in its name loses the rest of its own.
    """
    groups: dict[str, list[list[str]]] = {}
    for tool in tools:
        first = server_of(tool)
        if first is not None:
            # The last part is the tool's own.
            groups.setdefault(first, []).append(tool.split(_MARK)[1:-1])
    found = set()
    for first, names in groups.items():
        least, most = min(names), max(names)
        same = 0
        while same < min(len(least), len(most)) and least[same] == most[same]:
            same += 1
        found.add(_MARK.join(least[:same]) if len(names) > 1 and same else first)
    return found
