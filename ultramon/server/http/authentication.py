"""Lets nobody near a route who proves nothing: before a body is looked at, or a route looked for.

What is not listed here as open is closed, whether a route asks who calls or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import HTTPException
from starlette.datastructures import Headers

from ultramon.errors import UltramonError
from ultramon.server.http.authorization import prove
from ultramon.server.http.error_responses import answer, answer_http
from ultramon.server.rate_limits import standing_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ultramon.server.services import Services

OPEN_PATHS = frozenset(("/health", "/openapi.json"))


class Authentication:
    """Stands between the front and the routes.

    Args:
        app: What is behind.
        services: The parts of the server.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with who sends it, as ``request.state.caller``, or answer it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                caller = await prove(self._services, Headers(scope=scope), scope["path"])
            except HTTPException as error:
                await answer_http(error)(scope, receive, send)
                return
            except UltramonError as error:
                await answer(error)(scope, receive, send)
                return
            standing_of(scope).prove()
            scope["state"]["caller"] = caller
        await self._app(scope, receive, send)
