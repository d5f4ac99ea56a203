"""The limits of plans in words for people, for every face but the status line."""

from __future__ import annotations

from time import gmtime, localtime, strftime
from typing import TYPE_CHECKING, Any

from ultramon.state.plan_limits import DAY_SECONDS, brief_name
from ultramon.system.wording import age, field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.state.plan_limits import AccountPlan, PlanLimit


def reset_words(limit: PlanLimit, now: float, *, utc: bool = False) -> str:
    """Return when a limit resets: ``16:40`` within a day, else ``Mon 09:00``.

    Args:
        limit: The limit.
        now: Epoch seconds.
        utc: Whether in UTC, with a Z, for readers that may be elsewhere; else in local time.
    """
    form = "%H:%M" if limit.resets_at - now < DAY_SECONDS else "%a %H:%M"
    if utc:
        return f"{strftime(form, gmtime(limit.resets_at))}Z"
    return strftime(form, localtime(limit.resets_at))


def limit_words(limit: PlanLimit, now: float, *, utc: bool = False) -> str:
    """Return one limit: ``5h 62 %, resets 16:40``; the arguments are those of `reset_words`."""
    return (
        f"{field(brief_name(limit.name))} {limit.percent} %,"
        f" resets {reset_words(limit, now, utc=utc)}"
    )


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
