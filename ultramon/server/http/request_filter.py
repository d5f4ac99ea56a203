"""The filter in front of all routes, for requests and answers.

A browser on this machine reaches the port like any program, so Host must name this server and the
request must not come from a web page. Bodies are read here, within their limits, so that nothing
behind this module waits for a client.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from ultramon.errors import ConfigurationError
from ultramon.server.http.authentication import CREDENTIAL_FIELDS, connection_of, credentials_in
from ultramon.server.http.error_responses import answer
from ultramon.server.http.proxies import IS_STRANGER
from ultramon.server.rate_limits import TokenBuckets
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, MutableMapping, Sequence
    from typing import Any

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ultramon.server.caller import Caller

MAX_BODY_BYTES = 1 << 20
MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 100
BODY_SECONDS = 10.0
_MAX_LOGGED_CHARS = 200
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_JSON = re.compile(
    r'application/json[ \t]*(?:;[ \t]*charset="?utf-8"?[ \t]*)?', re.ASCII | re.IGNORECASE
)
_LENGTH = re.compile(r"[0-9]{1,18}")
CLOSE = (b"connection", b"close")
OWN_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
_log = logging.getLogger("ultramon.server")


def allowed_hosts(
    scheme: str, port: int, names: Iterable[str] = (), *, is_proxied: bool = False
) -> frozenset[str]:
    """Return the values of Host that name this server, lower-case.

    Args:
        scheme: ``http`` or ``https``.
        port: The port of the server.
        names: Further names, each with a port of its own or with this one.
        is_proxied: The names are also allowed without a port: a proxy has one of its own.

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
        if is_proxied or port == _DEFAULT_PORTS[scheme]:
            hosts.append(name)
    return frozenset(hosts)


class _ClientLeftError(Exception):
    """The client has disconnected."""


class RequestFilter:
    """Wraps an application.

    Args:
        app: The application.
        hosts: Allowed values of Host, from `allowed_hosts`.
        unlimited: Digests of the credentials without a rate limit here: many agents share the admin
            token and the hook secret, and the routes limit each agent.
        body_seconds: The time limit for a body.
        headers: Of every answer; the application must not weaken them.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: frozenset[str],
        unlimited: Container[str] = frozenset(),
        body_seconds: float = BODY_SECONDS,
        headers: Sequence[tuple[bytes, bytes]] = OWN_HEADERS,
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._headers = headers
        self._dropped = frozenset(name for name, _ in headers) | {b"server"}
        self._unlimited = unlimited
        self._buckets = TokenBuckets()
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(
            scope, receive, send, self._headers, self._dropped
        )  # gives the scope its state
        try:
            self._check_head(scope)
            body = await self._read_body(receive)
            read = {"type": "http.request", "body": body, "more_body": False}
            await self._app(scope, repeat_first(read, receive), exchange.send)
        except HTTPException as refusal:
            await exchange.refuse(refusal)
        except _ClientLeftError:
            pass
        except asyncio.CancelledError:
            # The time for draining is over; only the end of the server awaits this task.
            if exchange.status == 0:
                await exchange.refuse(HTTPException(503, "the server is stopping; ask again later"))
        finally:
            exchange.log()

    def _check_head(self, scope: Scope) -> None:
        """Refuse a request by its head.

        Raises:
            HTTPException: It may not pass.
        """
        if scope["state"].get(IS_STRANGER, False):
            what = "this server answers its proxies only; --behind-proxy names their addresses"
            raise HTTPException(403, what)
        headers = Headers(scope=scope)
        _check_form(scope, headers)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise HTTPException(421, "Host names another server: ask for one of its own names")
        for origin in headers.getlist("origin"):
            scheme, _, host = origin.lower().partition("://")
            if scheme != scope["scheme"] or host not in self._hosts:
                what = "Origin is not this server: pages of others may not call it"
                raise HTTPException(403, what)
        if not {"same-origin", "none"}.issuperset(headers.getlist("sec-fetch-site")):
            raise HTTPException(403, "Sec-Fetch-Site: pages of others may not call this server")
        if "content-encoding" in headers:
            raise HTTPException(415, "Content-Encoding is not accepted: send the body as it is")
        length_bytes = int(headers.get("content-length", "0"))
        has_body = length_bytes > 0 or "transfer-encoding" in headers
        kinds = headers.getlist("content-type")
        is_json = len(kinds) == 1 and _JSON.fullmatch(kinds[0]) is not None
        if has_body and not is_json and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            raise HTTPException(415, "a body must be Content-Type: application/json, in UTF-8")
        _check_size(length_bytes)
        key = credentials_in(scope).digest
        if key is not None and key not in self._unlimited and not self._buckets.take(key):
            problem = (
                "too many requests with this token: 200 at once and 50 in a second are answered"
            )
            raise HTTPException(429, problem, {"Retry-After": "1"})

    async def _read_body(self, receive: Receive) -> bytes:
        seconds, body = self._body_seconds, bytearray()
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
            raise HTTPException(408, f"the body did not arrive within {seconds:g} s") from None


def _check_size(body_bytes: int) -> None:
    if body_bytes > MAX_BODY_BYTES:
        raise HTTPException(413, f"a body may have {MAX_BODY_BYTES:,} bytes")


def _check_form(scope: Scope, headers: Headers) -> None:
    """Refuse a head that is too long, or that two parsers could read differently."""
    size_bytes = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    size_bytes += sum(len(name) + len(value) + 4 for name, value in headers.raw)
    if len(headers.raw) > MAX_HEADERS or size_bytes > MAX_HEAD_BYTES:
        limit = f"a head may have {MAX_HEADERS} fields and {MAX_HEAD_BYTES:,} bytes"
        raise HTTPException(431, limit)
    names = [name for name, _ in headers.raw]
    if any(names.count(name) > 1 for name in CREDENTIAL_FIELDS):
        raise HTTPException(400, "a credential must be given once: which one counts is not guessed")
    lengths, encodings = headers.getlist("content-length"), headers.getlist("transfer-encoding")
    if len(lengths) + len(encodings) > 1 or not all(map(_LENGTH.fullmatch, lengths)):
        raise HTTPException(400, "give either Content-Length or Transfer-Encoding, once")


def repeat_first(message: Message, receive: Receive) -> Receive:
    """Return a channel that yields a message that was received, then those behind it."""
    waiting = [message]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again


class _Exchange:
    """One request and its answer: adds the headers of every answer, and logs it."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Sequence[tuple[bytes, bytes]],
        dropped: frozenset[bytes],
    ) -> None:
        self.status = 0
        self._headers = headers
        self._dropped = dropped
        self._scope = scope
        self._receive = receive
        self._send = send
        self._began = time.monotonic()
        self._connection = connection_of(scope)
        self._connection.unauthenticated += 1  # until `Authentication` finds otherwise

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [
                (name, value)
                for name, value in message.get("headers", ())
                if name.lower() not in self._dropped
            ]
            if self._connection.is_exhausted and CLOSE not in kept:
                kept.append(CLOSE)
            message = {**message, "headers": [*kept, *self._headers]}
        await self._send(message)

    async def refuse(self, refusal: HTTPException) -> None:
        """Answer instead of the application, and close the connection: its body is unread."""
        response = answer(refusal)
        response.raw_headers.append(CLOSE)
        await response(self._scope, self._receive, self.send)

    def log(self) -> None:
        """Log one line, without the query: it may hold anything."""
        if not _log.isEnabledFor(logging.INFO):
            return
        path = (self._scope.get("raw_path") or b"").decode("latin-1")
        caller: Caller | None = self._scope["state"].get("caller")
        facts = {
            "method": sanitize(self._scope["method"], max_chars=_MAX_LOGGED_CHARS),
            "path": sanitize(path, max_chars=_MAX_LOGGED_CHARS),
            "status": self.status or None,
            "milliseconds": round((time.monotonic() - self._began) * 1_000, 1),
            "caller": None if caller is None else caller.agent_id or caller.kind,
            "client": sanitize((self._scope.get("client") or ("-",))[0]),
        }
        _log.info(
            "%s %s %s %.1f ms, %s at %s",
            facts["method"],
            facts["path"],
            facts["status"] or "client left",
            facts["milliseconds"],
            facts["caller"] or "no caller",
            facts["client"],
            extra={"facts": facts},
        )
