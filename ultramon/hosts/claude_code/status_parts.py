"""The parts of the status line behind the context: cost, plan and cache. Standard library only."""

from __future__ import annotations

from time import localtime, strftime

from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, finite_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ultramon.state.plan_limits import AccountPlan

BETWEEN = " · "
_BRIEF = {FIVE_HOURS: "5h", SEVEN_DAYS: "week"}
_DAY_SECONDS = 86_400.0
_LEAST_USD = 0.005


def join_parts(parts: Mapping[str, str], order: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the line: the parts in their order, without the last ones where there is no room.

    Args:
        parts: The text of each part; empty = there is nothing to say.
        order: The names of the parts that are shown.
        environ: Of the client, with the width of its terminal.
    """
    shown = [text for name in order if (text := parts.get(name))]
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


def plan_part(plan: AccountPlan | None, now: float) -> str:
    """Return how much of each limit is used, and when it resets.

    Args:
        plan: The account; None = nothing is known of it.
        now: Epoch seconds.
    """
    return BETWEEN.join(
        f"{_BRIEF.get(one.name, one.name)} {one.percent}% →{reset_words(one.resets_at, now)}"
        for one in (plan.limits if plan else ())
    )


def reset_words(resets_at: float, now: float) -> str:
    """Return a reset in few cells, in local time: ``16:40`` within a day, else ``Mon``."""
    return strftime("%H:%M" if resets_at - now < _DAY_SECONDS else "%a", localtime(resets_at))


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
