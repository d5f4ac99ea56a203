"""The limits of the user's plan, as Codex writes them beside its counts. Standard library only."""

from __future__ import annotations

from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, finite_number, plan_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.state.plan_limits import PlanLimit

_WINDOWS = ("primary", "secondary")
_NAMES: dict[float, str] = {300: FIVE_HOURS, 10_080: SEVEN_DAYS}
"""By the minutes of a window."""
_OWN_ID = "codex"
"""Of the limits of the plan itself; others are those of one model."""


def read_limits(rate_limits: dict[str, Any], at: float) -> list[PlanLimit]:
    """Return the limits in a ``token_count`` event; none of a login without a plan.

    Args:
        rate_limits: Its member of that name.
        at: When the event was written, epoch seconds.
    """
    found = []
    owner = rate_limits.get("limit_id")
    for window in _WINDOWS:
        facts = rate_limits.get(window)
        if not isinstance(facts, dict):
            continue
        resets_at = facts.get("resets_at")
        seconds = finite_number(facts.get("resets_in_seconds"))
        if resets_at is None and seconds is not None:  # versions of 2025
            resets_at = at + seconds
        minutes = finite_number(facts.get("window_minutes"))
        name = window if minutes is None else _NAMES.get(minutes, window)
        if isinstance(owner, str) and owner != _OWN_ID:
            name = f"{owner}.{name}"
        limit = plan_limit(name, facts.get("used_percent"), resets_at, at)
        if limit is not None:
            found.append(limit)
    return found
