"""Identifies the caller of every request before its body is looked at or a route is looked up.

The credentials in a head are parsed once, for the request filter, the caller and long requests
alike. A path that is not listed here as open is closed, whether or not its route asks for a caller.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool

from ultramon.errors import UltramonError
from ultramon.server.caller import ADMIN, AGENT, HOOK, METRICS, Caller
from ultramon.server.http.error_responses import answer
from ultramon.tokens import bearer_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ultramon.server.services import Services

OPEN_PATHS = frozenset(("/health", "/ready", "/openapi.json"))
HOOK_PATHS = "/hooks/"
METRICS_PATH = "/metrics"
HOOK_HEADERS = ("X-Ultramon-Hook-Secret", "X-SM-Hook-Secret")
"""Either may hold the hook secret; scripts that were written for another server send the second."""
AUTHORIZATION = b"authorization"
CREDENTIAL_FIELDS = (AUTHORIZATION, *(name.lower().encode("ascii") for name in HOOK_HEADERS))
# Counted by connection, since all peers on loopback have one address.
MAX_UNAUTHENTICATED_REQUESTS = 10
"""How many requests in a row one connection may make without a valid credential."""
CONNECTION = "ultramon_connection"
"""Where the state of a request holds the `ConnectionAuth` of its connection."""
_CREDENTIALS = "ultramon_credentials"


class ConnectionAuth:
    """Whether the requests of one connection were authenticated.

    Attributes:
        is_known: One of them was: the connection keeps its slot.
        unauthenticated: Requests since the last one that was.
    """

    __slots__ = ("is_known", "unauthenticated")

    def __init__(self) -> None:
        self.is_known = False
        self.unauthenticated = 0

    @property
    def is_exhausted(self) -> bool:
        """Whether the present request is the last one that is answered."""
        return self.unauthenticated >= MAX_UNAUTHENTICATED_REQUESTS


def connection_of(scope: Scope) -> ConnectionAuth:
    """Return the state of a request's connection; a new one where the HTTP server keeps none."""
    found: ConnectionAuth = scope.setdefault("state", {}).setdefault(CONNECTION, ConnectionAuth())
    return found


class Credentials(NamedTuple):
    """The credentials in the head of a request, not verified."""

    digest: str | None
    """SHA-256 of the value of Authorization without its scheme; None without that field."""
    token: bytes | None
    """The bearer token; None for another scheme."""
    hook_secrets: list[bytes]


def credentials_in(scope: Scope) -> Credentials:
    """Return the credentials of a request; its head is parsed at the first call only."""
    state = scope.setdefault("state", {})
    found: Credentials | None = state.get(_CREDENTIALS)
    if found is None:
        fields = {name: value for name, value in scope["headers"] if name in CREDENTIAL_FIELDS}
        given = fields.pop(AUTHORIZATION, None)
        scheme, _, text = (given or b"").partition(b" ")
        token = text.strip()
        found = state[_CREDENTIALS] = Credentials(
            digest=None if given is None else digest(token),
            token=token if token and scheme.lower() == b"bearer" else None,
            hook_secrets=list(fields.values()),
        )
    return found


def digest(credential: bytes) -> str:
    """Return the key under which a credential is counted; it does not reveal it."""
    # 256 random bits need no slow hash: there is nothing to guess.
    return hashlib.sha256(credential).hexdigest()


async def identify(services: Services, credentials: Credentials, path: str) -> Caller:
    """Return the caller of a request.

    Args:
        services: The parts of the server.
        credentials: Of the request.
        path: Of the request: the hook secret is valid under `HOOK_PATHS` only, the token of
            metrics at `METRICS_PATH`.

    Raises:
        HTTPException: 401, no valid credential.
        StateError: The store cannot be read.
    """
    token = credentials.token
    if path.startswith(HOOK_PATHS):
        for given in (token, *credentials.hook_secrets):
            if given is not None and is_same(given, services.hook_secret):
                return Caller(HOOK)
    if token is None:
        raise unauthorized()
    if path == METRICS_PATH and is_same(token, services.metrics_token):
        return Caller(METRICS)
    if is_same(token, services.admin_token):
        return Caller(ADMIN)
    stored = await run_in_threadpool(
        # A head may hold any byte; one beyond ASCII is in no token.
        bearer_of,
        token.decode("latin-1"),
        backend=services.backend,
        clock=services.clock,
    )
    if stored is None:
        raise unauthorized()
    return Caller(AGENT, stored.agent_id, stored)


def unauthorized() -> HTTPException:
    """Return the answer to a request without a valid credential: the same for every reason."""
    return HTTPException(
        401, "a valid token is required: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"}
    )


def is_same(given: bytes, expected: str) -> bool:
    """Compare a credential with a secret, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given, expected.encode("ascii"))


@dataclass(frozen=True, slots=True)
class Authentication:
    """The layer between the request filter and the routes.

    Attributes:
        app: The routes.
        services: The parts of the server.
    """

    app: ASGIApp
    services: Services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its caller as ``request.state.caller``, or answer 401."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                caller = await identify(self.services, credentials_in(scope), scope["path"])
            except (HTTPException, UltramonError) as error:
                await answer(error)(scope, receive, send)
                return
            connection = connection_of(scope)
            connection.is_known, connection.unauthenticated = True, 0
            scope["state"]["caller"] = caller
        await self.app(scope, receive, send)
