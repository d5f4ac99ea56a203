"""A sum of prices of which some may be unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.prices.price_list import Price
    from ultramon.state.observed import ObservedAgent

_SMALLEST_SHOWN_USD = 0.01
MIXED = "mixed"


@dataclass(slots=True)
class Cost:
    """What several things cost together.

    Attributes:
        usd: The priced part, 0.0 or more.
        priced: How many parts have a price.
        unpriced: How many have none.
        sources: The sources of the prices, see `ultramon.prices.price_list.Price`.
    """

    usd: float = 0.0
    priced: int = 0
    unpriced: int = 0
    sources: set[str] = field(default_factory=set)

    def add(self, price: Price | None) -> None:
        """Add one part; None = it has no known price."""
        if price is None:
            self.unpriced += 1
        else:
            self.usd += price.usd
            self.priced += 1
            self.sources.add(price.source)

    def merge(self, other: Cost) -> None:
        """Add all parts of another sum."""
        self.usd += other.usd
        self.priced += other.priced
        self.unpriced += other.unpriced
        self.sources |= other.sources

    @property
    def known_usd(self) -> float | None:
        """The priced part, None where nothing is priced."""
        return self.usd if self.priced else None

    @property
    def source(self) -> str | None:
        """``list``, ``own``, ``host``, or ``mixed``; None where nothing is priced."""
        if len(self.sources) > 1:
            return MIXED
        return next(iter(self.sources), None)

    @property
    def words(self) -> str:
        """The sum for people: ``$3.10``, ``≥ $3.10`` with an unpriced part, empty without parts."""
        return cost_words(self.known_usd, is_whole=not self.unpriced)


def cost_of_agents(
    agents: Iterable[ObservedAgent], costs: Mapping[str, Cost], *, is_all: bool = True
) -> Cost | None:
    """Return what several agents cost together.

    A host's agent whose cost is not known counts as an unpriced part, so that the sum is a lower
    bound.

    Args:
        agents: The agents.
        costs: What is known, by id.
        is_all: Whether these are all that belong together.

    Returns:
        The sum; None = the cost of none of them is known.
    """
    together, is_known = Cost(unpriced=not is_all), False
    for one in agents:
        if (cost := costs.get(one.record.agent_id)) is not None:
            together.merge(cost)
            is_known = True
        elif one.record.host is not None:
            together.add(None)
    return together if is_known else None


def cost_words(usd: float | None, *, is_whole: bool = True) -> str:
    """Return an amount for people.

    Args:
        usd: The priced part; None = nothing is priced.
        is_whole: Whether that is all there is.
    """
    if usd is None:
        return "" if is_whole else "unpriced"
    return dollars(usd) if is_whole else f"≥ {dollars(usd)}"


def range_words(least_usd: float, most_usd: float) -> str:
    """Return an amount that is known to lie between two: ``$38.00-52.00``, or one amount."""
    least, most = dollars(least_usd), dollars(most_usd)
    return least if least == most else f"{least}-{most.removeprefix('$')}"


def short_cost(usd: float | None, *, is_whole: bool = True) -> str:
    """Return an amount in at most six cells: ``$3.10``, ``≥$413``, ``≥$1.2k``; ``?`` for None."""
    if usd is None:
        return "" if is_whole else "?"
    least = "" if is_whole else "≥"
    # Bounds are where rounding would need a cell more: $9.995 is written $10, $999.50 $1.0k.
    if usd < 9.995:
        words = dollars(usd) if is_whole or usd >= _SMALLEST_SHOWN_USD else "$0"
    elif usd < 999.5:
        words = f"${usd:.0f}"
    else:
        words = f"${usd / 1_000:.1f}k" if usd < 99_950 else f"${usd / 1_000:,.0f}k"
    return least + words


def dollars(usd: float) -> str:
    """Write an amount: ``$0``, ``<$0.01``, ``$3.10``, ``$1,204.00``."""
    if 0 < usd < _SMALLEST_SHOWN_USD:
        return f"<${_SMALLEST_SHOWN_USD:.2f}"
    return f"${usd:,.2f}" if usd else "$0"
