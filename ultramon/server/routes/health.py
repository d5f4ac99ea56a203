"""Routes for probes: whether the process lives, and whether it can do its work."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException

from ultramon.server.http.authorization import Served
from ultramon.server.http.responses import problems
from ultramon.version import __version__

router = APIRouter(tags=["health"])


@router.get("/health", responses=problems(is_open=True))
async def health() -> dict[str, str]:
    """Return the status and the version of the server. Needs no token."""
    return {"status": "ok", "version": __version__}


@router.get("/ready", responses=problems(503, is_open=True))
async def ready(services: Served) -> dict[str, str]:
    """Return whether the store answers; 503 with the reason when not. Needs no token."""
    problem = await services.readiness.problem()
    if problem is not None:
        raise HTTPException(503, problem)
    return {"status": "ready", "version": __version__}
