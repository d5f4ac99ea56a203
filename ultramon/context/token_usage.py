"""The tokens of one request or a sum of requests, by the kinds that have prices of their own."""

from __future__ import annotations

from typing import NamedTuple

SIZE_CLASSES = (32_000, 100_000, 128_000, 199_999, 200_000, 256_000, 272_000, 512_000, 524_288)
"""Input sides above which some provider charges other prices for the whole request.

Sums of requests are kept by class, so that prices can be applied later; a test compares the list
with the tiers of the price data.
"""


class TokenUsage(NamedTuple):
    """Tokens of one request or of a sum of requests; no token is in two of the counts.

    Attributes:
        input_tokens: Input that was neither read from a cache nor written to one.
        cache_read_tokens: Input read from a cache.
        cache_write_tokens: Input written to a cache for the provider's usual time: five minutes at
            Anthropic. Writes whose time is not stated are counted here.
        cache_write_1h_tokens: Input written to a cache for one hour.
        output_tokens: The reply, reasoning included.
    """

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0

    @property
    def input_side_tokens(self) -> int:
        """All tokens of the input side, cached and not."""
        return sum(self[:4])

    @property
    def tokens(self) -> int:
        """All tokens, input side and reply."""
        return sum(self)

    def plus(self, other: TokenUsage) -> TokenUsage:
        """Return the sum of both, kind by kind."""
        return TokenUsage(*(one + two for one, two in zip(self, other, strict=True)))


def size_class(input_side_tokens: int) -> int:
    """Return the highest of `SIZE_CLASSES` that a request's input side exceeds, 0 for none."""
    found = 0
    for above in SIZE_CLASSES:
        if input_side_tokens <= above:
            break
        found = above
    return found
