"""Levels of what several agents share, such as the limits of a plan: which are reached.

Pure rules, and the settings of a plan's levels. What is reached is announced once, by its key,
whoever looks first: see `ultramon.backends.level_watch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.ladder import CRITICAL, WARNING
from ultramon.state.record import StateRecord
from ultramon.system.ids import is_agent_id
from ultramon.system.settings import Kind, OrNone, Settings, parse_number, setting
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ultramon.state.plan_limits import AccountPlan

LEVELS = (WARNING, CRITICAL)
PLAN = "plan"
_WORDS = {"five_hour": "five-hour limit", "seven_day": "weekly limit"}


def _are_rising_percents(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == len(LEVELS)
        and all(type(one) is int and 1 <= one <= 100 for one in value)
        and value[0] < value[1]
    )


RISING_PERCENTS = Kind(
    "two whole percents that rise, such as [70, 85]",
    _are_rising_percents,
    lambda text: [parse_number(part.strip()) for part in text.split(",")],
    "percent",
    tuple,
)
_RECIPIENT = OrNone(Kind("an agent id", is_agent_id))


class PlanLevels(Settings, table="plan"):
    """Where the limits of a plan are announced, and to whom: docs/settings.md lists them.

    Nothing of it is taken from a project that is not trusted: a plan is the user's own.
    """

    levels: tuple[int, int] = setting(
        RISING_PERCENTS,
        (70, 85),
        "Where `warning` and `critical` of each limit of a plan begin. In the variable with a"
        " comma: `70,85`.",
    )
    notify: str | None = setting(
        _RECIPIENT,
        None,
        "Who is sent a message at a level, such as the `recipient` of a"
        " [webhook](server.md#webhooks). Agents are not notified otherwise.",
        variable="",
    )


class Crossing(NamedTuple):
    """A level that is reached by something that several agents share."""

    kind: str
    """``plan`` or ``budget``; its event is ``<kind>_threshold_reached``."""
    subject: str
    """What reached it, for people: the account, or the budget."""
    name: str
    """What reached it, as the key names it."""
    period: str
    """Of the key: what begins anew is announced anew."""
    level: str
    text: str
    """The sentence of the message."""
    facts: dict[str, Any]
    """Further members of the event."""
    ends_at: float
    """When the period ends, epoch seconds."""
    recipients: tuple[str, ...] = ()
    """Who is sent the message."""

    @property
    def key(self) -> str:
        """The key under which it is announced once."""
        return f"{self.kind}:{self.name}:{self.period}:{self.level}"

    def event(self, now: float, source: str) -> dict[str, Any]:
        """Return the event; it is about no agent and of no run.

        Args:
            now: Epoch seconds.
            source: The process that noticed it.
        """
        subject = f"{self.kind}:{self.subject}"
        about = StateRecord(subject, session_id=subject, run="", epoch=1)
        return about.event(
            f"{self.kind}_threshold_reached",
            source=source,
            at=now,
            n=0,
            key=self.key,
            level=self.level,
            **self.facts,
        )


def level_reached(percent: int, levels: Sequence[int]) -> str | None:
    """Return the highest of `LEVELS` that a share has reached; None = none.

    Args:
        percent: The share, in whole percents.
        levels: Where `LEVELS` begin, in whole percents that rise.
    """
    reached = [
        level for level, begins_at in zip(LEVELS, levels, strict=True) if percent >= begins_at
    ]
    return reached[-1] if reached else None


def plan_crossings(
    accounts: Iterable[AccountPlan], levels: Sequence[int], recipients: tuple[str, ...] = ()
) -> Iterator[Crossing]:
    """Yield the highest level that each limit has reached.

    Args:
        accounts: The limits, none of them past its reset.
        levels: Where `LEVELS` begin, in whole percents.
        recipients: Who is sent a message.
    """
    for account in accounts:
        for limit in account.limits:
            level = level_reached(limit.percent, levels)
            if level is None:
                continue
            begins_at = levels[LEVELS.index(level)]
            period = format_time(limit.resets_at)
            what = _WORDS.get(limit.name, limit.name)
            yield Crossing(
                PLAN,
                account.name,
                f"{account.account}:{limit.name}",
                period,
                level,
                f"{account.name}: {limit.percent} % of the {what} is used ({level}, from"
                f" {begins_at} %); it resets at {period[:16].replace('T', ' ')}Z.",
                {
                    "account": account.name,
                    "host": account.host,
                    "limit": limit.name,
                    "levelFrom": begins_at / 100,
                    **limit.to_json(),
                },
                limit.resets_at,
                recipients,
            )
