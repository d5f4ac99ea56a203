"""A usage ratio in whole percents, as the ladder that judges it decides: for every face.

A percentage that was rounded otherwise would deny the level beside it: 84.6 % shown as 85 % where
`critical` begins at 85. Cheap to import: hooks do.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.state.models import AgentState
    from ultramon.state.record import StateRecord


def whole_percent(ratio: float, *, rounds: bool) -> int:
    """Return a usage ratio as a whole percentage.

    It is at least the percentage of a rung that lies at a whole one exactly if the rung is reached.

    Args:
        ratio: 0.0 and more.
        rounds: Whether the ladder decides on the rounded percentage (its ``roundPercent``): then
            halves go up, else everything goes down.
    """
    half = 0.5 if rounds else 0.0
    percent = int(ratio * 100 + half)
    # Compared as a ladder compares: 0.29 * 100 is 28.999999999999996.
    if ratio >= (percent + 1 - half) / 100:
        return percent + 1
    return percent - 1 if ratio < (percent - half) / 100 else percent


def percent_down(ratio: float) -> float:
    """Return a usage ratio as a percentage with one decimal, rounded down, for programs."""
    tenths = int(ratio * 1000)
    return (tenths + 1 if ratio >= (tenths + 1) / 1000 else tenths) / 10


def exact_ratio(ratio: float, tokens: int | None, limit_tokens: int | None) -> float:
    """Return tokens ÷ limit where a stored ratio is that, rounded to six decimals; else the ratio.

    Rounded, a ratio may lie on the other side of a rung.
    """
    if tokens is None or not limit_tokens:
        return ratio
    exact = tokens / limit_tokens
    return exact if round(exact, 6) == ratio else ratio


def usage_ratio(record: StateRecord | AgentState) -> float | None:
    """Return the usage ratio of an agent, unrounded where tokens and limit are known."""
    if record.usage_ratio is None:
        return None
    return exact_ratio(record.usage_ratio, record.estimated_tokens, record.context_limit)


def usage_percent(record: StateRecord | AgentState) -> int | None:
    """Return how full an agent's window is, in whole percents; None when unknown."""
    ratio, rounds = usage_ratio(record), bool(record.ladder.get("roundPercent"))
    return None if ratio is None else whole_percent(ratio, rounds=rounds)


def usage_words(record: StateRecord) -> str:
    """Return how full an agent's window is, such as ``84 %``; ``?`` when unknown."""
    percent = usage_percent(record)
    return "?" if percent is None else f"{percent} %"
