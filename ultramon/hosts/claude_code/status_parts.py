"""The parts of the status line behind the context. Standard library only."""

from __future__ import annotations

from ultramon.state.plan_limits import finite_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

BETWEEN = " · "
_DAY_SECONDS = 86_400.0
_LEAST_USD = 0.005


def join_parts(
    parts: Mapping[str, Sequence[str]], order: Sequence[str], environ: Mapping[str, str]
) -> str:
    """Return the line: the parts in their order, without the last ones where there is no room.

    Args:
        parts: The texts of each part; an empty one says nothing.
        order: The names of the parts that are shown.
        environ: Of the host, with the width of its terminal.
    """
    shown = [text for name in order for text in parts.get(name, ()) if text]
    columns = environ.get("COLUMNS", "")
    width = int(columns) if columns.isascii() and columns.isdigit() and len(columns) < 6 else 0
    while width and len(shown) > 1 and _width(BETWEEN.join(shown)) > width:
        shown.pop()
    return BETWEEN.join(shown)


def cost_part(fields: Mapping[str, Any]) -> str:
    """Return what the session has cost, as the host reckons it."""
    cost = fields.get("cost")
    usd = finite_number(cost.get("total_cost_usd")) if isinstance(cost, dict) else None
    return "" if usd is None or usd < _LEAST_USD else f"host ${usd:,.2f}"


def cache_part(fields: Mapping[str, Any], now: float) -> str:
    """Return how long the provider keeps the prompt's cache; empty where it is cold."""
    cache = fields.get("prompt_cache")
    if not isinstance(cache, dict) or cache.get("warm") is not True:
        return ""
    expires_at = finite_number(cache.get("expires_at"))
    if expires_at is None or not now < expires_at < now + _DAY_SECONDS:
        return ""
    minutes, seconds = divmod(int(expires_at - now), 60)
    return f"cache {minutes}:{seconds:02}"


def _width(text: str) -> int:
    """Return how many cells a text takes: colours take none."""
    return sum(len(part.partition("m")[2]) for part in ("m" + text).split("\x1b["))
