"""The application with all its routes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.routing import APIRoute

from ultramon.server.http.authentication import Authentication
from ultramon.server.http.error_responses import Json, install_error_handlers
from ultramon.server.routes import (
    agents,
    claude_code,
    events,
    handoffs,
    health,
    hooks,
    messages,
    metrics,
    queues,
    sessions,
)
from ultramon.version import __version__

if TYPE_CHECKING:
    from ultramon.server.services import Services

ROUTE_MODULES = (
    hooks,
    claude_code,
    sessions,
    agents,
    messages,
    queues,
    events,
    handoffs,
    health,
    metrics,
)


def create_app(services: Services) -> FastAPI:
    """Return the application, to be run behind `ultramon.server.http.request_filter`."""
    app = FastAPI(
        title="ultramon",
        version=__version__,
        # The interactive pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # The framework would render the document at each request, which needs no token.
        openapi_url=None,
        # A redirect to a path with or without a slash would repeat a write.
        redirect_slashes=False,
        default_response_class=Json,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = services
    app.add_middleware(hooks.ReadingLane, services=services)
    app.add_middleware(Authentication, services=services)
    install_error_handlers(app)
    for module in ROUTE_MODULES:
        app.include_router(module.router)

    @cache
    def document() -> bytes:
        return bytes(Json(app.openapi()).body)

    async def describe(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    app.add_route("/openapi.json", describe, include_in_schema=False)

    @app.exception_handler(405)
    async def name_methods(request: Request, error: HTTPException) -> Json:
        methods = _methods_of(request.url.path)
        # The framework names the methods of one route only, and a path may have several.
        headers = {"Allow": ", ".join(methods)} if methods else dict(error.headers or {})
        return Json({"detail": error.detail}, 405, headers)

    return app


def _methods_of(path: str) -> list[str]:
    return sorted(
        method
        for module in ROUTE_MODULES
        for route in module.router.routes
        if isinstance(route, APIRoute) and route.path_regex.fullmatch(path)
        for method in route.methods or ()
    )
