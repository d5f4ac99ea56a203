"""The prices of one model, and what tokens cost at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ultramon.context.token_usage import TokenUsage

_TOKENS_PER_UNIT = 1_000_000


class TierRates(NamedTuple):
    """Prices of the whole of a request whose input side is large enough, in USD per million.

    Attributes:
        above_tokens: The request's input side, cached tokens included, is larger than this.
        input_usd: Input outside of any cache.
        cache_read_usd: Input read from a cache.
        cache_write_usd: Input written to a cache for the usual time.
        cache_write_1h_usd: Input written to a cache for one hour.
        output_usd: The reply.
    """

    above_tokens: int
    input_usd: float
    cache_read_usd: float
    cache_write_usd: float
    cache_write_1h_usd: float
    output_usd: float


class Rates(NamedTuple):
    """All prices of a model at one time.

    Attributes:
        tiers: The first holds for every request, each later one above more tokens.
    """

    tiers: tuple[TierRates, ...]

    def cost_usd(self, usage: TokenUsage, request_tokens: int) -> float:
        """Return what tokens cost.

        Args:
            usage: Of one request, or of several in the same tier.
            request_tokens: The input side of one of these requests.
        """
        tier = self.tiers[0]
        for one in self.tiers[1:]:
            # A request of exactly so many tokens is still below the tier.
            if request_tokens > one.above_tokens:
                tier = one
        return (
            usage.input_tokens * tier.input_usd
            + usage.cache_read_tokens * tier.cache_read_usd
            + usage.cache_write_tokens * tier.cache_write_usd
            + usage.cache_write_1h_tokens * tier.cache_write_1h_usd
            + usage.output_tokens * tier.output_usd
        ) / _TOKENS_PER_UNIT

    def scaled(self, factor: float) -> Rates:
        """Return these prices times a factor."""
        return Rates(
            tuple(
                TierRates(one.above_tokens, *(price * factor for price in one[1:]))
                for one in self.tiers
            )
        )
