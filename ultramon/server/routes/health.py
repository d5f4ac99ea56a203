"""Whether the server lives."""

from __future__ import annotations

from fastapi import APIRouter

from ultramon import __version__
from ultramon.server.http.responses import problems

router = APIRouter(tags=["health"])


@router.get("/health", responses=problems(is_open=True))
async def health() -> dict[str, str]:
    """Say that the server answers, and which version it is. Needs no token."""
    return {"status": "ok", "version": __version__}
