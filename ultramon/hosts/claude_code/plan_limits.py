"""The limits of the user's plan, in a payload of the status line. Standard library only."""

from __future__ import annotations

from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, plan_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.state.plan_limits import PlanLimit


def read_limits(fields: dict[str, Any], at: float) -> list[PlanLimit]:
    """Return the limits in a payload.

    None before the first reply of a session, and of a login without a plan.

    Args:
        fields: The payload.
        at: When the session's last reply came, epoch seconds: the payload does not say when.
    """
    rate_limits = fields.get("rate_limits")
    found = []
    for name in (FIVE_HOURS, SEVEN_DAYS):
        facts = rate_limits.get(name) if isinstance(rate_limits, dict) else None
        if isinstance(facts, dict):
            limit = plan_limit(name, facts.get("used_percentage"), facts.get("resets_at"), at)
            if limit is not None:
                found.append(limit)
    return found
