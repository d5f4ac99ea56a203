"""The gate behind the request filter: only a login passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import Response

from ultramon.errors import StateError
from ultramon.server.http.authentication import (
    METRICS_PATH,
    connection_of,
    credentials_in,
    is_same,
    unauthorized,
)
from ultramon.server.http.error_responses import answer
from ultramon.server.http.request_filter import OWN_HEADERS
from ultramon.server.rate_limits import TokenBuckets
from ultramon.web.pages.layout import plain_page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ultramon.tokens import ServerSecret
    from ultramon.web.logins import Logins


CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Scripts and styles are files of this server: nothing inline, and no text becomes code."""
HEADERS = (
    *((name, value) for name, value in OWN_HEADERS if name != b"content-security-policy"),
    (b"content-security-policy", CONTENT_POLICY.encode("ascii")),
    # No other site keeps a handle on a window of this page, or loads its files into one of its own.
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# The page that refuses a login uses the style sheet, so files need no login.
OPEN_PATHS = ("/login", "/static/")
LOGIN = "ultramon_login"
"""Where the state of a request holds the name of its login."""


def cookie_name(scheme: str, port: int) -> str:
    """Return the name of the login's cookie: servers on other ports of a machine share cookies."""
    # Browsers take a name with this prefix only from the host itself, and only over HTTPS.
    prefix = "__Host-" if scheme == "https" else ""
    return f"{prefix}ultramon-web-{port}"


class LoginGate:
    """Lets requests with the cookie of a login pass, and scrapes with the token of metrics.

    Args:
        app: The pages.
        logins: The logins.
        port: Of the server.
        metrics_token: Opens ``/metrics`` and nothing else; None = nothing opens it.
    """

    def __init__(
        self, app: ASGIApp, logins: Logins, port: int, metrics_token: ServerSecret | None = None
    ) -> None:
        self._app = app
        self._logins = logins
        self._port = port
        self._metrics_token = metrics_token
        self._buckets = TokenBuckets()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 401."""
        if scope["type"] != "http" or scope["path"].startswith(OPEN_PATHS):
            await self._app(scope, receive, send)
            return
        # Prometheus has no cookie: it reads a token from a file.
        if scope["path"] == METRICS_PATH:
            await self._scrape(scope, receive, send)
            return
        login = self._login(scope)
        if login is None:
            words = (
                "Open the link that `ultramon web` printed. It works once, for five minutes.",
                "`ultramon web --link` prints another one.",
            )
            refusal = Response(plain_page("Not logged in", *words), 401, media_type="text/html")
            await refusal(scope, receive, send)
            return
        connection = connection_of(scope)
        # A proven login protects its connection when the table is full, and ends the count of vain
        # requests.
        connection.is_known, connection.unauthenticated = True, 0
        # By login, not by address: all peers on loopback, or behind one proxy, have the same.
        if not self._buckets.take(login):
            problem = "too many requests: 200 at once and 50 in a second are answered"
            await answer(HTTPException(429, problem, {"Retry-After": "1"}))(scope, receive, send)
            return
        scope["state"][LOGIN] = login
        await self._app(scope, receive, send)

    async def _scrape(self, scope: Scope, receive: Receive, send: Send) -> None:
        token, expected = credentials_in(scope).token, self._metrics_token
        try:
            if token is None or expected is None or not is_same(token, expected.value):
                raise unauthorized()
        except (HTTPException, StateError) as error:
            await answer(error)(scope, receive, send)
            return
        connection = connection_of(scope)
        connection.is_known, connection.unauthenticated = True, 0
        await self._app(scope, receive, send)

    def _login(self, scope: Scope) -> str | None:
        name = cookie_name(scope["scheme"], self._port)
        for field, value in scope["headers"]:
            if field == b"cookie":
                # Every byte is a character of latin-1, so a cookie of another server cannot break
                # the page.
                cookie = cookie_parser(value.decode("latin-1")).get(name)
                if cookie and (login := self._logins.find(cookie)) is not None:
                    return login
        return None
