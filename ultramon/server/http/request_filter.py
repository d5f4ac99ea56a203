"""The filter in front of all routes, for requests and answers.

A browser on this machine reaches the port like any program, so Host must name this server and the
request must not come from a web page. Bodies are read here, within their limits, so that nothing
behind this module waits for a client.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.server.http.authentication import CREDENTIAL_FIELDS, connection_of, credentials_in
from ultramon.server.rate_limits import TokenBuckets
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping
    from typing import Any

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 1 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
BODY_SECONDS = 10.0
_MAX_LOGGED_CHARS = 200
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_JSON = re.compile(rb'application/json[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
_CLOSE = (b"connection", b"close")
_OWN_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
# The application must neither weaken these headers nor name its server.
_DROPPED = frozenset(name for name, _ in _OWN_HEADERS) | {b"server"}
_log = logging.getLogger("ultramon.server")


def allowed_hosts(scheme: str, port: int, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the values of Host that name this server, lower-case.

    Args:
        scheme: ``http`` or ``https``.
        port: The port of the server.
        names: Further names, each with a port of its own or with this one.

    Raises:
        ConfigurationError: A name is malformed, or a pattern.
    """
    hosts = []
    for name in (*_LOOPBACK_NAMES, *(name.lower() for name in names)):
        if not _NAME.fullmatch(name):
            allowed = "one name or address, e.g. monitor.example or monitor.example:443; not *"
            raise ConfigurationError("--allow-host", name, allowed)
        if ":" in name.rpartition("]")[2]:
            hosts.append(name)
            continue
        hosts.append(f"{name}:{port}")
        if port == _DEFAULT_PORTS[scheme]:
            hosts.append(name)
    return frozenset(hosts)


@dataclass(frozen=True, kw_only=True)
class FilterPolicy:
    """The rules of the request filter.

    Attributes:
        scheme: ``http`` or ``https``.
        hosts: Allowed values of Host, from `allowed_hosts`.
        unlimited: Digests of the credentials without a limit here: many agents share the admin
            token and the hook secret, and the routes limit each agent.
        buckets: The rate limit per credential.
        body_seconds: The time limit for a body.
    """

    scheme: str
    hosts: frozenset[str]
    unlimited: frozenset[str] = frozenset()
    buckets: TokenBuckets = field(default_factory=TokenBuckets)
    body_seconds: float = BODY_SECONDS


class RefusedError(Exception):
    """The filter answers a request instead of the application.

    Args:
        status: The HTTP status.
        detail: The reason, for the answer.
        headers: Further fields of the answer.
    """

    def __init__(self, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.detail = detail
        self.headers = headers
        super().__init__(detail)


class _ClientLeftError(Exception):
    """The client has disconnected."""


class RequestFilter:
    """Wraps an application.

    Args:
        app: The application.
        policy: The rules.
    """

    def __init__(self, app: ASGIApp, policy: FilterPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            self._check_head(scope)
            body = await self._read_body(receive)
            await self._app(scope, _replay(body, receive), exchange.send)
        except RefusedError as refusal:
            await exchange.refuse(refusal)
        except _ClientLeftError:
            pass
        except asyncio.CancelledError:
            # The time for draining is over; only the end of the server awaits this task.
            if exchange.status == 0:
                await exchange.refuse(RefusedError(503, "the server is stopping; ask again later"))
        finally:
            exchange.log()

    def _check_head(self, scope: Scope) -> None:
        """Refuse a request by its head.

        Raises:
            RefusedError: It may not pass.
        """
        policy, headers = self._policy, _Headers(scope)
        _check_form(scope, headers)
        hosts = headers.all(b"host")
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in policy.hosts:
            raise RefusedError(421, "Host names another server: ask for one of its own names")
        for origin in headers.all(b"origin"):
            scheme, _, host = origin.decode("latin-1").lower().partition("://")
            if scheme != policy.scheme or host not in policy.hosts:
                what = "Origin is not this server: pages of others may not call it"
                raise RefusedError(403, what)
        if any(site not in (b"same-origin", b"none") for site in headers.all(b"sec-fetch-site")):
            raise RefusedError(403, "Sec-Fetch-Site: pages of others may not call this server")
        if headers.all(b"content-encoding"):
            raise RefusedError(415, "Content-Encoding is not accepted: send the body as it is")
        takes_body = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if takes_body and headers.has_body and not headers.is_json:
            raise RefusedError(415, "a body must be Content-Type: application/json, in UTF-8")
        _check_size(headers.length_bytes)
        key = credentials_in(scope).digest
        if key is not None and key not in policy.unlimited and not policy.buckets.take(key):
            raise RefusedError(
                429,
                "too many requests with this token: 200 at once and 50 in a second are answered",
                (b"retry-after", b"1"),
            )

    async def _read_body(self, receive: Receive) -> bytes:
        seconds, body = self._policy.body_seconds, bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _ClientLeftError
                    body += message.get("body", b"")
                    _check_size(len(body))
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise RefusedError(408, f"the body did not arrive within {seconds:g} s") from None


def _check_size(body_bytes: int) -> None:
    if body_bytes > MAX_BODY_BYTES:
        raise RefusedError(413, f"a body may have {MAX_BODY_BYTES:,} bytes")


def _check_form(scope: Scope, headers: _Headers) -> None:
    """Refuse a head that is too long, or that two parsers could read differently."""
    if len(headers.items) > MAX_HEADERS or headers.size_bytes(scope) > MAX_HEAD_BYTES:
        limit = f"a head may have {MAX_HEADERS} fields and {MAX_HEAD_BYTES:,} bytes"
        raise RefusedError(431, limit)
    if any(len(headers.all(name)) > 1 for name in CREDENTIAL_FIELDS):
        raise RefusedError(400, "a credential must be given once: which one counts is not guessed")
    lengths, encodings = headers.all(b"content-length"), headers.all(b"transfer-encoding")
    if len(lengths) + len(encodings) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise RefusedError(400, "give either Content-Length or Transfer-Encoding, once")


class _Headers:
    """The head of a request."""

    def __init__(self, scope: Scope) -> None:
        self.items: list[tuple[bytes, bytes]] = list(scope["headers"])

    def all(self, name: bytes) -> list[bytes]:
        """Return all values of a field."""
        return [value for found, value in self.items if found == name]

    def size_bytes(self, scope: Scope) -> int:
        """Return the approximate size of the head."""
        target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        return target + sum(len(name) + len(value) + 4 for name, value in self.items)

    @property
    def length_bytes(self) -> int:
        """The declared length of the body; 0 without one."""
        return max(map(int, self.all(b"content-length")), default=0)

    @property
    def has_body(self) -> bool:
        """Whether a body follows; a chunked one may turn out to be empty."""
        return self.length_bytes > 0 or bool(self.all(b"transfer-encoding"))

    @property
    def is_json(self) -> bool:
        """Whether the body is declared as JSON."""
        kinds = self.all(b"content-type")
        return len(kinds) == 1 and _JSON.fullmatch(kinds[0].strip()) is not None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that yields the body that was read, then the end of the connection."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again


class _Exchange:
    """One request and its answer: adds the headers of every answer, and logs it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status = 0
        self._scope = scope
        self._send = send
        self._began = time.monotonic()
        self._connection = connection_of(scope)
        self._connection.count_request()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [
                (name, value)
                for name, value in message.get("headers", ())
                if name.lower() not in _DROPPED
            ]
            if self._connection.is_exhausted and _CLOSE not in kept:
                kept.append(_CLOSE)
            message = {**message, "headers": [*kept, *_OWN_HEADERS]}
        await self._send(message)

    async def refuse(self, refusal: RefusedError) -> None:
        """Answer instead of the application, and close the connection: its body is unread."""
        body = json.dumps({"detail": refusal.detail}).encode("ascii")
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            _CLOSE,
            *refusal.headers,
        ]
        start = {"type": "http.response.start", "status": refusal.status, "headers": headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": body})

    def log(self) -> None:
        """Log one line, without the query: it may hold anything."""
        if not _log.isEnabledFor(logging.INFO):
            return
        path = (self._scope.get("raw_path") or b"").decode("latin-1")
        _log.info(
            "%s %s %s %.1f ms",
            sanitize(self._scope["method"], max_chars=_MAX_LOGGED_CHARS),
            sanitize(path, max_chars=_MAX_LOGGED_CHARS),
            self.status or "client left",
            (time.monotonic() - self._began) * 1_000,
        )
