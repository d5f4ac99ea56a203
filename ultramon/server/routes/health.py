"""The route for liveness probes."""

from __future__ import annotations

from fastapi import APIRouter

from ultramon import __version__
from ultramon.server.http.responses import problems

router = APIRouter(tags=["health"])


@router.get("/health", responses=problems(is_open=True))
async def health() -> dict[str, str]:
    """Return the status and the version of the server. Needs no token."""
    return {"status": "ok", "version": __version__}
