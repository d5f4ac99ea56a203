"""What every request passes before any route sees it, and every answer on its way out.

A browser on this machine reaches the port as well as any program does, so a request must be meant
for this server by its Host, and must not come from a page. Bodies are read here, within their
limits, so that nothing behind this module waits for a caller.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

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
# A later layer must not soften the first ones, nor say what runs here.
_DROPPED = frozenset(name for name, _ in _OWN_HEADERS) | {b"server"}
_log = logging.getLogger("ultramon.server")


def allowed_hosts(scheme: str, port: int, names: Iterable[str] = ()) -> frozenset[str]:
    """Return the values of Host that mean this server, lower-case.

    Args:
        scheme: ``http`` or ``https``.
        port: Where it listens.
        names: More names, each with a port of its own or with this one.

    Raises:
        ConfigurationError: A name is none, or stands for several.
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
    """What the front lets through.

    Attributes:
        scheme: ``http`` or ``https``.
        hosts: Allowed values of Host, as `allowed_hosts` returns them.
        unlimited: Digests of the credentials that are not limited here: behind the admin token
            and the hook secret stand many agents, and the routes limit each of them.
        buckets: How often one credential may ask.
        body_seconds: How long a body may take.
    """

    scheme: str
    hosts: frozenset[str]
    unlimited: frozenset[str] = frozenset()
    buckets: TokenBuckets = field(default_factory=TokenBuckets)
    body_seconds: float = BODY_SECONDS


class Refusal(NamedTuple):
    """An answer that no route gives."""

    status: int
    detail: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


class _RefusedError(Exception):
    """The body was refused while it was read."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.detail)


class _ClientLeftError(Exception):
    """Nobody waits for an answer."""


class RequestFilter:
    """Stands before an application.

    Args:
        app: The application.
        policy: What it lets through.
    """

    def __init__(self, app: ASGIApp, policy: FilterPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or let the application do it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                body = await self._read_body(scope, receive)
                await self._app(scope, _replay(body, receive), exchange.send)
            else:
                await exchange.refuse(refusal)
        except _RefusedError as refused:
            await exchange.refuse(refused.refusal)
        except _ClientLeftError:
            pass
        except asyncio.CancelledError:
            # The time for a drain is over; nothing awaits this task but the end of the server.
            if exchange.status == 0:
                await exchange.refuse(Refusal(503, "the server is stopping; ask again later"))
        finally:
            exchange.log()

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Judge the head of a request."""
        headers = _Headers(scope)
        if refusal := _malformed(scope, headers):
            return refusal
        hosts = headers.all(b"host")
        if len(hosts) != 1 or hosts[0].decode("latin-1").lower() not in self._policy.hosts:
            return Refusal(421, "Host names another server: ask for one of its own names")
        if refusal := self._foreign(headers):
            return refusal
        if headers.all(b"content-encoding"):
            return Refusal(415, "Content-Encoding is not accepted: send the body as it is")
        if (
            headers.has_body
            and scope["method"] not in ("GET", "HEAD", "OPTIONS")
            and not headers.is_json
        ):
            return Refusal(415, "a body must be Content-Type: application/json, in UTF-8")
        if headers.length_bytes > MAX_BODY_BYTES:
            return _too_large()
        key = credentials_in(scope).digest
        if key is None or key in self._policy.unlimited or self._policy.buckets.take(key):
            return None
        return too_often()

    def _foreign(self, headers: _Headers) -> Refusal | None:
        """Refuse what a page of another origin made a browser send."""
        for origin in headers.all(b"origin"):
            scheme, _, host = origin.decode("latin-1").lower().partition("://")
            if scheme != self._policy.scheme or host not in self._policy.hosts:
                return Refusal(403, "Origin is not this server: pages of others may not call it")
        if any(site not in (b"same-origin", b"none") for site in headers.all(b"sec-fetch-site")):
            return Refusal(403, "Sec-Fetch-Site: pages of others may not call this server")
        return None

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self._policy.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise _ClientLeftError
                    body += message.get("body", b"")
                    if len(body) > MAX_BODY_BYTES:
                        raise _RefusedError(_too_large())
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            seconds = self._policy.body_seconds
            refusal = Refusal(408, f"the body did not arrive within {seconds:g} s")
            raise _RefusedError(refusal) from None


def too_often() -> Refusal:
    """Return the answer to whoever asks too often."""
    return Refusal(
        429,
        "too many requests with this token: 200 at once and 50 in a second are answered",
        ((b"retry-after", b"1"),),
    )


def _too_large() -> Refusal:
    return Refusal(413, f"a body may have {MAX_BODY_BYTES:,} bytes")


def _malformed(scope: Scope, headers: _Headers) -> Refusal | None:
    """Refuse what two readers of one request could understand differently, or what is too long."""
    if len(headers.items) > MAX_HEADERS or headers.size_bytes(scope) > MAX_HEAD_BYTES:
        return Refusal(431, f"a head may have {MAX_HEADERS} fields and {MAX_HEAD_BYTES:,} bytes")
    if any(len(headers.all(name)) > 1 for name in CREDENTIAL_FIELDS):
        return Refusal(400, "a credential must be given once: which one counts is not guessed")
    lengths, encodings = headers.all(b"content-length"), headers.all(b"transfer-encoding")
    if len(lengths) + len(encodings) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        return Refusal(400, "Content-Length and Transfer-Encoding must say one thing, once")
    return None


class _Headers:
    """The head of a request, as it came."""

    def __init__(self, scope: Scope) -> None:
        self.items: list[tuple[bytes, bytes]] = list(scope["headers"])

    def all(self, name: bytes) -> list[bytes]:
        """Return each value of a field."""
        return [value for found, value in self.items if found == name]

    def size_bytes(self, scope: Scope) -> int:
        """Return about how long the head was."""
        target = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        return target + sum(len(name) + len(value) + 4 for name, value in self.items)

    @property
    def length_bytes(self) -> int:
        """How long the body is said to be; 0 when nothing is said."""
        return max(map(int, self.all(b"content-length")), default=0)

    @property
    def has_body(self) -> bool:
        """Whether a body follows; a chunked one may turn out to be empty."""
        return self.length_bytes > 0 or bool(self.all(b"transfer-encoding"))

    @property
    def is_json(self) -> bool:
        """Whether the body is said to be JSON."""
        kinds = self.all(b"content-type")
        return len(kinds) == 1 and _JSON.fullmatch(kinds[0].strip()) is not None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the application the body that was read; then what comes, which is only the end."""
    waiting = [body]

    async def receive_again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return receive_again


class _Exchange:
    """One request and its answer: adds what every answer has, and writes the line about it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status = 0
        self._scope = scope
        self._send = send
        self._began = time.monotonic()
        self._connection = connection_of(scope)
        self._connection.count_request()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Pass a part of the answer on."""
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

    async def refuse(self, refusal: Refusal) -> None:
        """Answer in the place of the application; the connection ends, as its body is unread."""
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
        """Write one line; the query is left out of it, as it may hold anything."""
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
