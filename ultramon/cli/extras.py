"""Imports of what needs an extra: a missing package is answered with what to install."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_EXTRAS = frozenset(
    ("anyio", "fastapi", "h11", "httpx", "mcp", "prometheus_client", "starlette", "uvicorn")
)
"""Another package that is missing is a fault of this one."""


@contextmanager
def extra_needed(command: str, extra: str, needs: str | None = None) -> Iterator[None]:
    """Import in the block what needs an extra.

    Args:
        command: What needs it.
        extra: What installs the packages that are imported.
        needs: What to call a missing one; None = by its name.

    Raises:
        MissingExtraError: One of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _OF_EXTRAS:
            raise
        raise MissingExtraError(command, needs or package, extra) from error
