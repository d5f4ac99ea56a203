"""How hooks are written, and those that are requests to a running server recognised.

Never on a hook's path.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ultramon.errors import ConfigurationError
from ultramon.hosts.hook_settings import ASYNC

PATH = "/hooks/claude-code"
SECRET_VARIABLE = "ULTRAMON_HOOK_SECRET"
OFF_VARIABLE = "ULTRAMON_DISABLED"
OFF_HEADER = "X-Ultramon-Disabled"
"""Says whether ultramon is off for the session; a hook without it is somebody else's."""
SECONDS = 2
"""Most that a server which accepts and never answers may cost: a lock is waited for 1 s at most."""
REQUESTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")
"""The events of each tool call. The others stay commands: the client has no requests for
SessionStart, and what remains is rare and should reach the state while no server runs."""

NOT_WAITED_FOR = "PreToolUse"
"""The event whose command says nothing to the agent: the client need not wait for it."""

_COMMAND_SECONDS = 10
_SESSION_END_SECONDS = 5
_WITHOUT_MATCHER = frozenset(("UserPromptSubmit", "Stop"))
_AUTHORIZATION = "Authorization"
_SCHEME = "Bearer "


class Link(NamedTuple):
    """Where requests go, and what they prove themselves with."""

    url: str
    """Of the server, without a path."""
    secret: str | None
    """None = the client takes it from ``ULTRAMON_HOOK_SECRET``."""

    @property
    def target(self) -> str:
        """The address of the route."""
        return self.url + PATH

    @property
    def host(self) -> str:
        """Name or address of the server, without its port."""
        return urlsplit(self.url).hostname or ""

    def hook(self) -> dict[str, Any]:
        """Return the hook as settings hold it."""
        secret = f"${{{SECRET_VARIABLE}}}" if self.secret is None else self.secret
        variables = [OFF_VARIABLE] if self.secret is not None else [OFF_VARIABLE, SECRET_VARIABLE]
        return {
            "type": "http",
            "url": self.target,
            "headers": {_AUTHORIZATION: _SCHEME + secret, OFF_HEADER: f"${{{OFF_VARIABLE}}}"},
            "allowedEnvVars": variables,
            "timeout": SECONDS,
        }


def entry_for(
    event: str, command: str, link: Link | None = None, *, waits: bool = False
) -> dict[str, Any]:
    """Return the entry for the array of an event.

    Args:
        event: The event.
        command: What runs where it is a command.
        link: Where the requests of tool calls go; None = all events are commands.
        waits: Whether the client waits for the start of each tool call to be noted, as an
            enforcement needs it, which counts the calls that run.
    """
    seconds = _SESSION_END_SECONDS if event == "SessionEnd" else _COMMAND_SECONDS
    hook: dict[str, Any] = {"type": "command", "command": command, "timeout": seconds}
    if event == NOT_WAITED_FOR and not waits:
        hook[ASYNC] = True
    hooks = {"hooks": [link.hook() if link is not None and event in REQUESTS else hook]}
    return hooks if event in _WITHOUT_MATCHER else {"matcher": "*", **hooks}


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
    if OFF_HEADER not in headers:
        return None
    given = headers.get(_AUTHORIZATION)
    secret = given.removeprefix(_SCHEME) if isinstance(given, str) else ""
    return Link(url.removesuffix(PATH), None if secret.startswith("$") else secret)


def check_url(url: str, source: str = "argument") -> str:
    """Return the address of a server as it is written into settings, or raise.

    Args:
        url: What was given; a path is allowed only where it is that of the route.
        source: Where it is from, for the error.

    Raises:
        ConfigurationError: It is none, or the secret would travel in the clear.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    is_plain = parts.path.rstrip("/") in ("", PATH) and not (parts.query or parts.fragment)
    if parts.scheme in ("http", "https") and host and port != 0 and is_plain and (
        "@" not in parts.netloc and (parts.scheme == "https" or is_loopback(host))
    ):  # fmt: skip
        return f"{parts.scheme}://{parts.netloc}"
    allowed = (
        "the address of a server on this machine, such as http://127.0.0.1:8420; "
        "beyond loopback https only"
    )
    raise ConfigurationError("url", url, allowed, source)


def is_loopback(host: str) -> bool:
    """Return whether a name or address never leaves this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
