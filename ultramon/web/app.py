"""The routes: pages, their live updates, login and logout, and the files of this room."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from ultramon.errors import StateError
from ultramon.server.http.authentication import METRICS_PATH
from ultramon.server.routes.metrics import metrics_route
from ultramon.server.stream_slots import Slots
from ultramon.web.gate import LOGIN, cookie_name
from ultramon.web.logins import LOGIN_SECONDS
from ultramon.web.pages.layout import LIVE_PATH, plain_page, whole_page
from ultramon.web.views import PATHS, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from ultramon.metrics.source import MetricsSource
    from ultramon.web.live import Live
    from ultramon.web.logins import Logins

MAX_STREAMS = 128
MAX_STREAMS_OF_ONE = 16
"""Open pages of one login."""
_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def create_app(live: Live, logins: Logins, port: int, metrics: MetricsSource) -> Starlette:
    """Return the application, to be run behind `ultramon.web.gate`.

    Args:
        live: Draws the pages.
        logins: The logins.
        port: Of the server.
        metrics: What Prometheus scrapes.
    """
    slots = Slots("pages", MAX_STREAMS, MAX_STREAMS_OF_ONE)
    static = _static_files()

    async def show(request: Request) -> Response:
        view = view_of(request.url.path, request.query_params)
        shot = await live.shot(view)
        path = request.url.path
        query = f"?{request.url.query}" if request.url.query else ""
        page = whole_page(view.title, path, f"{path}{query}", shot.content)
        return HTMLResponse(page, shot.status)

    async def follow(request: Request) -> Response:
        path = request.url.path.removeprefix(LIVE_PATH) or "/"
        view = view_of(path, request.query_params)
        login: str = request.scope["state"][LOGIN]
        messages = live.follow(view, lambda: logins.is_open(login))
        return _Following(messages, slots, login)

    async def log_in(request: Request) -> Response:
        # A browser that looks ahead must not use the link up.
        is_look_ahead = request.method == "HEAD" or "sec-purpose" in request.headers
        cookie = None if is_look_ahead else logins.redeem(request.query_params.get("code", ""))
        if cookie is None:
            words = (
                "The link was used, is older than five minutes, or belongs to an earlier start.",
                "`ultramon web --link` prints another one.",
            )
            return HTMLResponse(plain_page("This link does not log in", *words), 403)
        # The redirect takes the code out of the address that the browser shows and keeps.
        response = RedirectResponse("/", 303)
        scheme = request.scope["scheme"]
        response.set_cookie(
            cookie_name(scheme, port),
            cookie,
            max_age=LOGIN_SECONDS,
            secure=scheme == "https",
            httponly=True,
            # Strict: a link on another site opens no page with this login.
            samesite="strict",
        )
        return response

    async def log_out(request: Request) -> Response:
        logins.end(request.scope["state"][LOGIN])
        words = "`ultramon web --link` prints a link that logs in again."
        response = HTMLResponse(plain_page("Signed out", words))
        scheme = request.scope["scheme"]
        name = cookie_name(scheme, port)
        response.delete_cookie(name, secure=scheme == "https", httponly=True, samesite="strict")
        return response

    async def send_file(request: Request) -> Response:
        found = static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "no such file")
        body, kind = found
        return Response(body, media_type=kind)

    routes = [
        *(Route(path, show) for path in PATHS),
        *(Route(LIVE_PATH + path, follow) for path in PATHS),
        # Signing out takes a POST, so that a link or an image on another site cannot do it.
        Route("/login", log_in),
        Route("/logout", log_out, methods=["POST"]),
        Route("/static/{name}", send_file),
        Route(METRICS_PATH, metrics_route(metrics)),
    ]
    return Starlette(
        routes=routes, exception_handlers={HTTPException: _refused, StateError: _store_refused}
    )


class _Following(StreamingResponse):
    """What keeps a page up to date; holds a slot until it ends."""

    media_type = "text/event-stream"

    def __init__(self, messages: AsyncIterator[bytes], slots: Slots, login: str) -> None:
        # A proxy that collects the body would hold messages back.
        super().__init__(messages, headers={"X-Accel-Buffering": "no"})
        self._slots = slots
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse where too many pages are open."""
        with self._slots.one(self._login):
            await super().__call__(scope, receive, send)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    page = plain_page(f"{error.status_code}", str(error.detail))
    return HTMLResponse(page, error.status_code, error.headers)


async def _store_refused(_: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 503)


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of this room by name; no path of a request reaches the file system."""
    return {
        one.name: (one.read_bytes(), _KINDS[one.name[one.name.rindex(".") :]])
        for one in files("ultramon.web").joinpath("static").iterdir()
        if one.name.endswith(tuple(_KINDS))
    }
