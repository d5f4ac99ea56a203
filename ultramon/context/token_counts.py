"""What the counts of one response say is in the window, where they contradict each other.

Standard library only, because hooks import it. The one place for all hosts and frameworks.
"""

from __future__ import annotations


def is_cache_inside(
    input_tokens: int, cache_tokens: int, output_tokens: int, total_tokens: int, *, usual: bool
) -> bool:
    """Return whether the input of a response includes its cached tokens.

    Providers count in two ways, and programs on the way from them pass on one as the other. A cache
    that is larger than the input lies beside it. Else a total that only one of the two ways adds
    up to decides; without such a total, the way that the shape stands for.

    Args:
        input_tokens: As stated, 0 or more.
        cache_tokens: Read from a cache and written to one, 0 or more.
        output_tokens: Of the reply.
        total_tokens: Of input and reply as stated; 0 = not stated.
        usual: What the shape of the counts stands for.
    """
    if not cache_tokens:
        return usual
    if cache_tokens > input_tokens:
        return False
    if total_tokens == input_tokens + output_tokens:
        return True
    return usual and total_tokens != input_tokens + cache_tokens + output_tokens


def input_side(input_tokens: int, cache_tokens: int, *, cache_in_input: bool) -> int:
    """Return the tokens of the input side of one response: new and cached ones.

    Args:
        input_tokens: As stated, 0 or more.
        cache_tokens: Read from a cache and written to one, 0 or more.
        cache_in_input: Whether the input is said to include the cache; one that is larger cannot
            be in it.
    """
    if is_cache_inside(input_tokens, cache_tokens, 0, 0, usual=cache_in_input):
        return input_tokens
    return input_tokens + cache_tokens
