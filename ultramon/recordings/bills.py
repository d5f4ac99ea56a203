"""What agents cost: their tokens times prices, with what has no price counted beside it."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ultramon.context.token_usage import TokenUsage
from ultramon.prices.cost import Cost
from ultramon.recordings.reply_keys import COMPACTION
from ultramon.recordings.usage import (
    MAYBE_READ_AGAIN,
    PLAN_HIT,
    READ_AGAIN,
    RESTART,
    SPENT,
    noon_of,
    parts_of,
)
from ultramon.state.models import Model

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ultramon.prices.price_list import Price, PriceList
    from ultramon.recordings.usage import UsagePart

_EVENTS = frozenset({COMPACTION, RESTART, PLAN_HIT})
_DIGITS = 6


class SpentTokens(Model):
    """The tokens that requests cost; no token is in two of the counts."""

    input_tokens: int = 0
    """Input outside of caches."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    """Written to a cache for the usual time, five minutes at Anthropic."""
    cache_write_1h_tokens: int = Field(default=0, alias="cacheWrite1hTokens")
    output_tokens: int = 0


class CostFacts(Model):
    """What some sessions cost."""

    cost_usd: float | None = None
    """The priced part; None where nothing is priced."""
    unpriced_sessions: int = 0
    """Sessions of which `cost_usd` holds a part only, or nothing."""
    cost_source: str | None = None
    """``list``, ``own`` (a file of prices), ``host`` (the host says so), or ``mixed``."""
    read_again_usd: float | None = None
    """What compactions and restarts caused at least, as far as it has a price: input behind them
    that no cache held, and summaries whose request is recorded. Of list or own prices, also where
    `cost_usd` is what the host says; None where that is None."""
    read_again_most_usd: float | None = None
    """The same with what they may have caused: cached input behind them, and summaries whose
    request is not recorded and so no part of `cost_usd`."""
    restarts: int = 0
    """How often a conversation began with the work of an earlier one."""
    plan_hits: int = 0
    """How often a request was refused because a usage limit was reached."""
    spent: SpentTokens = SpentTokens()


class PriceData(Model):
    """Where prices come from."""

    list_version: str
    """The package of the list prices, with its version."""
    list_date: date | None
    """The day of the newest change that the list prices know of."""
    has_own_prices: bool
    """Whether a file of prices was given, which wins."""
    own_date: date | None
    """Since when its prices hold, as it says."""


class Bill:
    """What some agents cost.

    Attributes:
        cost: Of all their requests.
        asked: Of these, without the replies.
        again: Of what was surely read again behind compactions and restarts.
        maybe: Of what may have been read again beside it.
        usage: The tokens of all requests.
        compactions: How often windows were emptied.
        restarts: How often a conversation began with the work of an earlier one.
        plan_hits: How often a request was refused because a usage limit was reached.
        unpriced_sessions: How many sessions have a request without a price.
    """

    __slots__ = (
        "again", "asked", "compactions", "cost", "maybe", "plan_hits", "restarts",
        "unpriced_sessions", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.cost, self.asked, self.again, self.maybe = Cost(), Cost(), Cost(), Cost()
        self.usage = TokenUsage()
        self.compactions = self.restarts = self.plan_hits = self.unpriced_sessions = 0

    def merge(self, other: Bill) -> None:
        """Add what others cost."""
        self.cost.merge(other.cost)
        self.asked.merge(other.asked)
        self.again.merge(other.again)
        self.maybe.merge(other.maybe)
        self.usage = self.usage.plus(other.usage)
        self.compactions += other.compactions
        self.restarts += other.restarts
        self.plan_hits += other.plan_hits
        self.unpriced_sessions += other.unpriced_sessions

    def close_session(self) -> None:
        """Take everything so far for one session."""
        self.unpriced_sessions = int(self.cost.unpriced > 0)

    def facts(self) -> dict[str, Any]:
        """Return the fields of `CostFacts`."""
        again = self.again.usd
        return {
            "cost_usd": _rounded(self.cost.known_usd),
            "unpriced_sessions": self.unpriced_sessions,
            "cost_source": self.cost.source,
            "read_again_usd": None if not self.cost.priced else _rounded(again),
            "read_again_most_usd": (
                None if not self.cost.priced else _rounded(again + self.maybe.usd)
            ),
            "restarts": self.restarts,
            "plan_hits": self.plan_hits,
            "spent": SpentTokens(**self.usage._asdict()),
        }


class Biller:
    """Prices the tokens of transcripts.

    Args:
        prices: None = tokens are counted, and nothing has a price.
    """

    def __init__(self, prices: PriceList | None) -> None:
        self._prices = prices
        self._times: dict[str, float | None] = {}

    def bill(
        self,
        rows: Iterable[list[Any]],
        usual_model: str | None,
        by_model: dict[str | None, Bill],
        by_day: dict[str, Bill],
    ) -> Bill:
        """Return what one agent cost, and add it to the sums by model and day.

        Args:
            rows: As a `TranscriptSummary` has them in `usage`.
            usual_model: Of requests whose line names none.
            by_model: Sums of one session, by model.
            by_day: The same by day.
        """
        whole = Bill()
        for part in parts_of(rows):
            model = part.model or usual_model
            bill = by_model.get(model) or by_model.setdefault(model, Bill())
            day = by_day.get(part.day) or by_day.setdefault(part.day, Bill())
            self.add(part, model, (whole, bill, day))
        return whole

    def add(self, part: UsagePart, model: str | None, bills: Sequence[Bill]) -> None:
        """Add one part of a transcript to several bills.

        Args:
            part: Tokens, or events.
            model: Whose price holds; None = unknown.
            bills: Each takes all of it.
        """
        if part.kind in _EVENTS:
            for bill in bills:
                if part.kind == RESTART:
                    bill.restarts += part.requests
                elif part.kind == PLAN_HIT:
                    bill.plan_hits += part.requests
                else:
                    bill.compactions += part.requests
            return
        if not any(part.usage):
            return
        price = asked = None
        if self._prices is not None:
            at = self._time_of(part.day)
            price = asked = price_of(self._prices, part, model, at)
            if part.kind == SPENT and price is not None:
                question = part.usage._replace(output_tokens=0)
                asked_only = part._replace(usage=question, is_stated=False)
                asked = price_of(self._prices, asked_only, model, at)
        for bill in bills:
            if part.kind == SPENT:
                bill.usage = bill.usage.plus(part.usage)
                bill.cost.add(price)
                bill.asked.add(asked)
            elif part.kind == READ_AGAIN:
                bill.again.add(price)
            elif part.kind == MAYBE_READ_AGAIN:
                bill.maybe.add(price)

    def _time_of(self, day: str) -> float | None:
        if day not in self._times:
            self._times[day] = noon_of(day)
        return self._times[day]


def price_of(
    prices: PriceList, part: UsagePart, model: str | None, at: float | None
) -> Price | None:
    """Return what a part of a transcript costs.

    Args:
        prices: The prices.
        part: Tokens.
        model: Whose price holds; None = unknown.
        at: Epoch seconds; None = now.
    """
    return prices.price(
        part.usage,
        model,
        at,
        request_tokens=part.request_tokens,
        speed=part.speed,
        host_usd=part.host_usd,
    )


def price_data_of(prices: PriceList) -> PriceData:
    """Return where prices come from."""
    return PriceData(
        list_version=prices.data_version,
        list_date=prices.data_date,
        has_own_prices=prices.has_own,
        own_date=prices.own_date,
    )


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, _DIGITS)
