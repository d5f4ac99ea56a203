"""The price of tokens by model: a person's own prices first, then the makers' list prices.

List prices are those that the installed ``genai-prices`` carries. It is imported at the first
question it has to answer, and its updater, which alone would use the network, is never started.
"""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.limits import canonical_model_name
from ultramon.prices.rates import Rates, TierRates
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

    from ultramon.context.token_usage import TokenUsage
    from ultramon.prices.own_prices import OwnPrices
    from ultramon.system.clock import Clock

LIST = "list"
OWN = "own"
HOST = "host"

_KEYS = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok", "output_mtok")
# A dollar per million tokens is 1,000 billionths of a dollar per token.
_NANO_PER_MILLIONTH = 1000
# Claude Code's mark of a model's large window; the list prices have the model without it.
_LARGE_WINDOW_SUFFIX = "[1m]"
_OTHER_PRICES = (":free", ":batch")
"""Ways to ask a router for a model at another price than its maker's."""


class Price(NamedTuple):
    """What some tokens cost.

    Attributes:
        usd: In US dollars, 0.0 or more.
        source: ``list`` = the maker's list price; ``own`` = a person's own prices, a factor of the
            list price included; ``host`` = the client says so itself.
    """

    usd: float
    source: str


class PriceList:
    """Prices by model.

    Args:
        own: A person's own prices, which win over the list.
        clock: Tells the present, for usage without a time.
    """

    def __init__(self, own: OwnPrices | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self._own = own
        self._clock = clock
        self._models: dict[str, ModelInfo | None] = {}
        self._rates: dict[tuple[str, str | None, int], Rates | None] = {}

    def price(
        self,
        usage: TokenUsage,
        model: str | None,
        at: float | None = None,
        *,
        request_tokens: int | None = None,
        speed: str | None = None,
        host_usd: float | None = None,
    ) -> Price | None:
        """Return what tokens cost.

        A kind of cached tokens without a price of its own costs what input costs, and a write for
        one hour without one what a write costs.

        Args:
            usage: Of one request; of several only with `request_tokens`.
            model: The model that answered, in any spelling; None = unknown.
            at: Epoch seconds of the request, None = now: prices change.
            request_tokens: The input side of each request that `usage` sums up, which decides the
                tier. None = `usage` is one request.
            speed: As the provider states it, ``fast`` for the faster and dearer way.
            host_usd: What the client itself says that it cost; wins.

        Returns:
            None where the model has no known price. Never 0 for that reason.
        """
        if host_usd is not None:
            return Price(host_usd, HOST)
        if model is None:
            return None
        found = self._rates_of(model, speed, at)
        if found is None:
            return None
        rates, source = found
        if request_tokens is None:
            request_tokens = usage.input_side_tokens
        return Price(rates.cost_usd(usage, request_tokens), source)

    def token_weights(self, model: str) -> list[list[int]] | None:
        """Return what a token costs now in billionths of a dollar; None = the model has no price.

        For a program that multiplies and loads no prices, such as a hook.

        Args:
            model: The model that answers, in any spelling.

        Returns:
            One row a tier, the lowest first: above how many tokens of a request's input side it
            holds, then the price of a token of each kind, in the order of `TokenUsage`.
        """
        found = self._rates_of(model, None, None)
        if found is None:
            return None
        return [
            [tier.above_tokens, *(round(usd * _NANO_PER_MILLIONTH) for usd in tier[1:])]
            for tier in found[0].tiers
        ]

    @property
    def data_version(self) -> str:
        """The package that the list prices come from, with its version."""
        import importlib.metadata

        return f"genai-prices {importlib.metadata.version('genai-prices')}"

    @property
    def data_date(self) -> datetime.date | None:
        """The day of the newest change that the list prices know of, None without a dated one.

        The data has no date of its own; a change announced for a later day than that of its
        installation is no news of its age.
        """
        from genai_prices import data
        from genai_prices.types import StartDateConstraint

        # Data also hold prices of days to come, which say nothing about how new the data are.
        installed = os.stat(data.__file__).st_mtime
        limit = datetime.date.fromtimestamp(min(installed, self._clock.now()))
        constraints = [
            condition.constraint
            for provider in data.providers
            for model in provider.models
            if isinstance(model.prices, list)
            for condition in model.prices
        ]
        days = [one.start_date for one in constraints if isinstance(one, StartDateConstraint)]
        return max((day for day in days if day <= limit), default=None)

    @property
    def identity(self) -> str:
        """Return what is another text where a price may be another one."""
        return f"{self.data_version} {self._own!r}"

    @property
    def own_date(self) -> datetime.date | None:
        """Since when a person's own prices hold, None without."""
        return None if self._own is None else self._own.date

    @property
    def has_own(self) -> bool:
        """Whether a person's own prices are used."""
        return self._own is not None

    def _rates_of(
        self, model: str, speed: str | None, at: float | None
    ) -> tuple[Rates, str] | None:
        """Return the prices of a model, None = now, and their source."""
        own = None if self._own is None else self._own.rates.get(canonical_model_name(model))
        if own is not None:
            return own, OWN
        rates = self._list_rates(model, speed, self._clock.now() if at is None else at)
        if rates is None:
            return None
        return rates, LIST if self._list_price_factor is None else OWN

    @property
    def _list_price_factor(self) -> float | None:
        return None if self._own is None else self._own.list_price_factor

    def _list_rates(self, model: str, speed: str | None, at: float) -> Rates | None:
        """Return list prices, times the factor of a person's own ones."""
        # Every condition of the data begins and ends at a whole half hour.
        key = (model, speed, int(at // 1800))
        if key not in self._rates:
            found = self._find_model(model)
            rates = None if found is None else _rates_at(found, speed, at)
            if rates is not None and self._list_price_factor is not None:
                rates = rates.scaled(self._list_price_factor)
            self._rates[key] = rates
        return self._rates[key]

    def _find_model(self, model: str) -> ModelInfo | None:
        if model not in self._models:
            self._models[model] = _look_up(model)
        return self._models[model]


def open_prices(path: str | None = None, clock: Clock = SYSTEM_CLOCK) -> PriceList:
    """Return the prices, with those of a person's own file in front.

    Args:
        path: A file as `ultramon.prices.own_prices` describes it; None = list prices only.
        clock: Tells the present.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    if path is None:
        return PriceList(clock=clock)
    from ultramon.prices.own_prices import read_own_prices

    return PriceList(read_own_prices(path), clock)


def _look_up(model: str) -> ModelInfo | None:
    """Find a model at its maker: what others ask for it is not its list price."""
    canonical = canonical_model_name(model)
    # A colon that is left names a model on a person's own machine, such as llama3:70b.
    if not canonical or ":" in canonical or model.endswith(_OTHER_PRICES):
        return None
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    whole = model.strip().lower().removesuffix(_LARGE_WINDOW_SUFFIX)
    # The whole name first: of some models each release has a price of its own.
    for name in dict.fromkeys((whole, whole.rpartition("/")[2], canonical)):
        try:
            return snapshot.find_provider_model(name, None, None, None)[1]
        except LookupError:
            continue
    return None


def _rates_at(model: ModelInfo, speed: str | None, at: float) -> Rates | None:
    moment = datetime.datetime.fromtimestamp(at, datetime.UTC)
    prices = model.get_prices(moment, None if speed is None else {"speed": speed})
    # A kind of token without a price would count as free.
    if prices.input_mtok is None or prices.output_mtok is None:
        return None
    starts = {0}
    for key in _KEYS:
        starts.update(tier.start for tier in getattr(getattr(prices, key), "tiers", ()))
    return Rates(tuple(_tier(prices, start) for start in sorted(starts)))


def _tier(prices: ModelPrice, start: int) -> TierRates:
    found = [_price_above(getattr(prices, key), start) for key in _KEYS]
    plain, read, write, one_hour, output = found
    assert plain is not None
    assert output is not None
    # What has no price for caching costs what plain input costs.
    read = plain if read is None else read
    write = plain if write is None else write
    return TierRates(start, plain, read, write, write if one_hour is None else one_hour, output)


def _price_above(price: Any, start: int) -> float | None:
    """Return one kind's price in the tier that begins at `start`, None where it has none."""
    if price is None:
        return None
    if not hasattr(price, "tiers"):
        return float(price)
    found = price.base
    for tier in price.tiers:
        if tier.start <= start:
            found = tier.price
    return float(found)
