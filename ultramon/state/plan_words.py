"""The limits of plans in words for people, for every face but the status line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.state.plan_limits import brief_name, clock_words
from ultramon.system.wording import age, field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.state.plan_limits import AccountPlan, PlanLimit


def reset_words(limit: PlanLimit, now: float, *, utc: bool = False) -> str:
    """Return when a limit resets: ``16:40`` within a day, else ``Mon 09:00``.

    Args:
        limit: The limit.
        now: Epoch seconds.
        utc: As for `clock_words`.
    """
    return clock_words(limit.resets_at, now, "%a %H:%M", utc=utc)


def brief_limit_words(limit: PlanLimit) -> str:
    """Return one limit without its reset: ``5h 62 %``."""
    return f"{field(brief_name(limit.name))} {limit.percent} %"


def limit_words(limit: PlanLimit, now: float, *, utc: bool = False) -> str:
    """Return one limit: ``5h 62 %, resets 16:40``; the arguments are those of `reset_words`."""
    return f"{brief_limit_words(limit)}, resets {reset_words(limit, now, utc=utc)}"


def measured_words(account: AccountPlan, now: float) -> str:
    """Return how old the newest number of an account is: ``seen 9 min ago``."""
    newest = max(limit.measured_at for limit in account.limits)
    return f"seen {age(max(0.0, now - newest))} ago"


def plan_line(account: AccountPlan, now: float) -> str:
    """Return one line about an account that has limits.

    ``plan ~/.claude: 5h 62 %, resets 16:40 · week 41 %, resets Mon 09:00 · seen 9 min ago``
    """
    parts = [limit_words(limit, now) for limit in account.limits]
    return f"plan {field(account.name)}: {' · '.join([*parts, measured_words(account, now)])}"


def plan_json(accounts: Iterable[AccountPlan]) -> dict[str, Any]:
    """Return the accounts as a member of what commands show as JSON."""
    return {"plan": [account.to_json() for account in accounts]}
