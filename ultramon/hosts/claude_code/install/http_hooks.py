"""Hooks that an earlier ultramon wrote as requests to a server, recognised to be replaced.

Never on a hook's path.
"""

from __future__ import annotations

from typing import NamedTuple

PATH = "/hooks/claude-code"
_OFF_HEADER = "X-Ultramon-Disabled"
"""In every such hook; one without it is another tool's."""
_AUTHORIZATION = "Authorization"
_SCHEME = "Bearer "


class Link(NamedTuple):
    """Where requests go, and what they prove themselves with."""

    url: str
    """Of the server, without a path."""
    secret: str | None
    """None = the host takes it from its environment."""


def recognise_request(hook: object) -> Link | None:
    """Return where a hook of ultramon goes; None = it is another tool's, or no request.

    Args:
        hook: One entry of a ``hooks`` array, decoded.
    """
    if not isinstance(hook, dict) or hook.get("type") != "http":
        return None
    url, headers = hook.get("url"), hook.get("headers")
    if not isinstance(url, str) or not url.endswith(PATH) or not isinstance(headers, dict):
        return None
    if _OFF_HEADER not in headers:
        return None
    given = headers.get(_AUTHORIZATION)
    secret = given.removeprefix(_SCHEME) if isinstance(given, str) else ""
    return Link(url.removesuffix(PATH), None if secret.startswith("$") else secret)
