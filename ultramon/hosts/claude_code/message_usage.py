"""What one message of a transcript has cost, by the counts that it states."""

from __future__ import annotations

from ultramon.hosts.transcripts.jsonl import optional_token_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.transcripts.jsonl import JsonObject

USUAL_SPEED = "standard"
_BILLED_ITERATIONS = ("message", "fallback_message", "compaction")
_MOST_USD = 1e6
_ONE_HOUR = "ephemeral_1h_input_tokens"


def stated_usd(value: object) -> float | None:
    """Return an amount that the host states; None for what is no amount."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < _MOST_USD else None


def billed_tokens(usage: JsonObject) -> tuple[int, ...] | None:
    """Return what a message cost by kind of token, None where its counts say it as they are.

    Several requests may have made it, and what its outer numbers say of a request for a summary
    differs; each is billed.
    """
    iterations = usage.get("iterations")
    requests = iterations if isinstance(iterations, list) else []
    known = [
        one for one in requests if isinstance(one, dict) and one.get("type") in _BILLED_ITERATIONS
    ]
    if known:
        return tuple(map(sum, zip(*map(tokens_by_kind, known), strict=True)))
    split = usage.get("cache_creation")
    if not isinstance(split, dict) or not split.get(_ONE_HOUR):
        return None
    return tokens_by_kind(usage)


def tokens_by_kind(usage: JsonObject) -> tuple[int, ...]:
    """Return the counts of one request, in the order of `TokenUsage`."""
    new, read, written, output = (
        optional_token_count(usage, name) or 0
        for name in (
            "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens",
            "output_tokens",
        )
    )  # fmt: skip
    split = usage.get("cache_creation")
    # The split may be empty beside a sum: then the usual time holds.
    found = optional_token_count(split, _ONE_HOUR) if isinstance(split, dict) else None
    one_hour = min(found or 0, written)
    return new, read, written - one_hour, one_hour, output


def last_request(usage: JsonObject) -> JsonObject:
    """Return the usage of the last request that made a message.

    When tools run on the provider's side one message takes several requests: the outer numbers
    are their sum, which is no longer what is in the window. Where the only request was for a
    summary, its usage is empty: what it counted is replaced by that summary.
    """
    iterations = usage.get("iterations")
    if not isinstance(iterations, list):
        return usage
    known = [iteration for iteration in iterations if isinstance(iteration, dict)]
    requests = [one for one in known if one.get("type") in ("message", "fallback_message")]
    if requests:
        return requests[-1]
    return {} if any(one.get("type") == "compaction" for one in known) else usage
