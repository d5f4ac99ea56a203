"""The route that Prometheus scrapes, and the endpoint behind it for other applications."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from ultramon.metrics.prometheus import render_prometheus
from ultramon.server.http.authentication import METRICS_PATH
from ultramon.server.http.authorization import MetricsCaller, Served
from ultramon.server.http.responses import problems

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ultramon.metrics.source import MetricsSource

_TEXT = {"schema": {"type": "string"}}
router = APIRouter(tags=["metrics"])


def metrics_route(source: MetricsSource) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a scrape, for any Starlette application.

    It admits every caller: the application that mounts it asks for the token.

    Args:
        source: The metrics.
    """

    async def scrape(request: Request) -> Response:
        accept = request.headers.get("accept", "")
        body, content_type = await run_in_threadpool(render_prometheus, source, accept)
        return Response(body, headers={"Content-Type": content_type})

    return scrape


@router.get(
    METRICS_PATH,
    response_class=Response,
    responses={**problems(), 200: {"content": {"text/plain": _TEXT}}},
)
async def metrics(request: Request, services: Served, caller: MetricsCaller) -> Response:
    """Return the metrics of all runs, for Prometheus: text format or OpenMetrics."""
    return await metrics_route(services.metrics)(request)
