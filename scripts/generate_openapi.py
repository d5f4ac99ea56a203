"""Write docs/openapi.json, what the HTTP API takes and answers, and the routes of docs/server.md.

    .venv/bin/python scripts/generate_openapi.py

The tests of both render them too, and fail where a file is not the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from ultramon.backends.memory import MemoryBackend
from ultramon.server.app import ROUTE_MODULES, create_app
from ultramon.server.services import Services

DOCS = Path(__file__).resolve().parent.parent / "docs"
DOCUMENT = DOCS / "openapi.json"
PAGE = DOCS / "server.md"
_MARKED = re.compile(r"(<!-- routes -->\n).*?(<!-- end -->)", re.DOTALL)
_CALLERS = {
    "hook_caller": "hook secret, the agent, admin",
    "metrics_caller": "metrics token, admin",
    "admin_caller": "admin",
    "_permitted_agent": "the agent, its parent, admin",
    "_own_inbox": "the agent, admin",
    "any_caller": "agents, admin",
}
"""Who a dependency of a route admits, the narrower ones first."""


def application() -> FastAPI:
    """Return the application; nothing of its routes depends on what is stored."""
    services = Services(MemoryBackend(), "", admin_token="", hook_secret="", metrics_token="")
    return create_app(services)


def render() -> str:
    """Return the document of the application."""
    return json.dumps(application().openapi(), indent=1, ensure_ascii=False) + "\n"


def _dependencies(of: Dependant) -> Iterator[str]:
    for one in of.dependencies:
        yield getattr(one.call, "__name__", "")
        yield from _dependencies(one)


def _routes() -> Iterator[str]:
    paths = application().openapi()["paths"]
    yield "| route | caller | effect |"
    yield "|---|---|---|"
    routes = {
        (method, route.path_format): route
        for module in ROUTE_MODULES
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    for path, methods in paths.items():
        for method, operation in methods.items():
            names = set(_dependencies(routes[method.upper(), path].dependant))
            caller = next((who for name, who in _CALLERS.items() if name in names), "every caller")
            effect = " ".join(operation["description"].partition("\n\n")[0].split())
            yield f"| `{method.upper()} {path}` | {caller} | {effect} |"


def render_page(page: str) -> str:
    """Return docs/server.md with a fresh table of routes."""
    table = "\n".join(_routes())
    return _MARKED.sub(lambda match: f"{match[1]}{table}\n{match[2]}", page)


if __name__ == "__main__":
    DOCUMENT.write_text(render(), encoding="utf-8")
    PAGE.write_text(render_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
