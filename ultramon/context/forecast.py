"""How many turns and seconds remain before each rung, as a range.

Steps between replies have a heavy tail, so no single number holds. The mean step of this epoch,
weighed against the mean step of other sessions, gives the turns to expect; the tables say what came
of so many expected turns.
"""

from __future__ import annotations

from itertools import pairwise

from ultramon.context.forecast_tables import (
    DISTANCES,
    ENDS,
    HOLDS_AT_DISTANCE,
    HOLDS_FOR_HOST,
    TOKENS_PER_TURN,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.ladder import ResolvedLadder

HISTORY_TURNS = 64
"""The number of steps of an epoch that its mean is made of."""
PRIOR_TURNS = 8
"""The weight, in steps, that the mean of other sessions has at most. Of 2 to 10, 6 to 10 give the
narrowest ranges on sessions of repositories that were left out."""
PRIOR_TURNS_OF_OTHERS = 2
"""That weight for a host whose sessions were not measured: its steps may be of another size."""
CLOCK_TURNS = 8
"""The number of turns whose median is the length of a turn; a pause of its user is no pace."""
MIN_TURNS = 2
COMPACTION = "compaction"
"""Name, among the rungs of a forecast, of where the host was seen to compact by itself."""


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


class Growth:
    """What steps added, in sums.

    Attributes:
        steps: How many they are.
        tokens: What they added.
        squares: The sum of the squares of it.
    """

    __slots__ = ("squares", "steps", "tokens")

    def __init__(self, steps: int = 0, tokens: float = 0, squares: float = 0) -> None:
        self.steps = steps
        self.tokens = tokens
        self.squares = squares

    def count(self, tokens: float, sign: int = 1) -> None:
        """Add a step, or with -1 take one back."""
        self.steps += sign
        self.tokens += sign * tokens
        self.squares += sign * tokens * tokens

    def weigh(self, prior_tokens_per_turn: float, prior_turns: float = PRIOR_TURNS) -> float:
        """Return the tokens that a turn is expected to add.

        Steps that are all alike say what the next one adds: then the prior counts for nothing. It
        counts whole from a variance of half the squared mean on, which most sessions have.

        Args:
            prior_tokens_per_turn: What a step of other sessions adds, on the average.
            prior_turns: How many steps that counts for at most.
        """
        variance_ratio = self.squares * self.steps / (self.tokens * self.tokens) - 1
        scatter = variance_ratio * self.steps / (self.steps - 1)
        prior_turns *= min(1.0, max(0.0, 2 * scatter))
        return (self.tokens + prior_turns * prior_tokens_per_turn) / (self.steps + prior_turns)


class TurnHistory:
    """The growth of one epoch, turn by turn.

    A turn is a provider report; while nothing was reported in the epoch, a tracked text.

    Args:
        turns: ``[tokens, epoch seconds]`` of earlier reports, oldest first; changed in place.

    Attributes:
        turns: No more of them than the forecast needs.
        growth: What the steps between them added.
    """

    __slots__ = ("_growths", "_reported", "growth", "turns")

    def __init__(self, turns: list[list[float]] | None = None) -> None:
        self.turns = [] if turns is None else turns
        self._reported = bool(self.turns)
        grown = [max(0.0, after[0] - before[0]) for before, after in pairwise(self.turns)]
        self.growth = Growth(len(grown), sum(grown), sum([tokens * tokens for tokens in grown]))
        self._growths = len(grown) - grown.count(0.0)

    def clear(self) -> None:
        """Forget everything; a new epoch has begun."""
        self.turns.clear()
        self._reported = False
        self.growth = Growth()
        self._growths = 0

    def record(self, tokens: int, at: float, *, reported: bool) -> None:
        """Add one turn.

        Args:
            tokens: Tokens in the window after it.
            at: When, epoch seconds.
            reported: Whether a provider reported the tokens.
        """
        turns = self.turns
        if reported != self._reported:
            if not reported:
                return
            # Texts that were tracked are no turns once reports say what a turn is.
            self.clear()
            self._reported = True
        if turns:
            # Hooks that run in parallel all read the same report.
            if turns[-1] == [tokens, at]:
                return
            self._count(turns[-1][0], tokens, 1)
        turns.append([tokens, at])
        while len(turns) > HISTORY_TURNS + 1:
            self._count(turns[0][0], turns[1][0], -1)
            del turns[0]

    def _count(self, before: float, after: float, sign: int) -> None:
        self.growth.count(max(0.0, after - before), sign)
        if after > before:
            self._growths += sign

    def tokens_per_turn(self, host: str | None = None) -> float | None:
        """Return the tokens that a turn is expected to add; None before two that added any.

        Args:
            host: Whose other sessions this epoch is weighed against. For None, and for a host whose
                sessions were not measured, those of all hosts, with less weight.
        """
        if self._growths < MIN_TURNS:
            return None
        prior = TOKENS_PER_TURN.get(host or "")
        if host and prior is not None:
            return self.growth.weigh(prior)
        return self.growth.weigh(TOKENS_PER_TURN[""], PRIOR_TURNS_OF_OTHERS)

    @property
    def seconds_per_turn(self) -> float | None:
        """Median length of the last eight turns that grew, in seconds; None before two."""
        if self._growths < MIN_TURNS:
            return None
        lengths: list[float] = []
        after, ended = self.turns[-1]
        for before, began in reversed(self.turns[:-1]):
            if after > before:
                lengths.append(ended - began if ended > began else 0.0)
                if len(lengths) == CLOCK_TURNS:
                    break
            after, ended = before, began
        return _median(lengths)


def forecast(
    history: TurnHistory,
    tokens: int,
    context_limit_tokens: int | None,
    ladder: ResolvedLadder,
    likely: tuple[int, int] | None = None,
    *,
    host: str | None = None,
) -> dict[str, Any] | None:
    """Return the pace and, per rung still ahead, the turns and seconds before it.

    Args:
        history: The turns of this epoch.
        tokens: In the window.
        context_limit_tokens: The limit; None = unknown.
        ladder: The rungs.
        likely: Where the host was seen to compact by itself, in tokens, and how often; None = it
            was not. It is one more rung, `COMPACTION`, with these two as ``tokens`` and ``seen``,
            unless the ladder has one of that name.
        host: As for `TurnHistory.tokens_per_turn`.

    Returns:
        ``{"tokensPerTurn", "secondsPerTurn", "limit": AHEAD, "rungs": {name: AHEAD}}`` where AHEAD
        is ``{"turns", "turnsLow", "turnsHigh", "seconds"}``, see `ultramon.state.runway.Runway`;
        ``limit`` is the context limit itself, null once it is reached. None when unknowable.
    """
    pace = history.tokens_per_turn(host)
    seconds = history.seconds_per_turn
    if pace is None or seconds is None or context_limit_tokens is None:
        return None

    least_low = least_middle = least_high = 0

    def ahead_of(left: float) -> dict[str, float | None]:
        """Return what lies before a rung; the nearer ones were asked for before."""
        nonlocal least_low, least_middle, least_high
        share, row = left / context_limit_tokens, 0
        while row < len(DISTANCES) and share >= DISTANCES[row]:
            row += 1
        low, middle, high = turns_within(left / pace + 1, ENDS[row])
        # Rows of distances differ a little: what is farther is never reached earlier.
        least_low = low = max(low, least_low)
        least_middle = middle = max(middle, least_middle)
        least_high = high = max(high, least_high)
        return {
            "turns": middle,
            "turnsLow": low,
            "turnsHigh": high if host_holds and HOLDS_AT_DISTANCE[row] else None,
            "seconds": round(middle * seconds, 1),
        }

    host_holds = HOLDS_FOR_HOST.get(host or "", HOLDS_FOR_HOST[""])
    rungs: dict[str, dict[str, float | None]] = {}
    ahead = [(rung.ratio * context_limit_tokens, rung.name) for rung in ladder.rungs]
    if COMPACTION in ladder.names:
        likely = None
    if likely is not None:
        ahead.append((likely[0], COMPACTION))
        ahead.sort()
    for at_tokens, name in ahead:
        left = at_tokens - tokens
        if left > 0:
            rungs[name] = ahead_of(left)
            if name == COMPACTION and likely is not None:
                rungs[name]["tokens"], rungs[name]["seen"] = likely
    left = context_limit_tokens - tokens
    return {
        "tokensPerTurn": round(pace, 1),
        "secondsPerTurn": round(seconds, 3),
        "limit": ahead_of(left) if left > 0 else None,
        "rungs": rungs,
    }


def turns_within(
    expected: float, table: tuple[tuple[float, float, float], ...]
) -> tuple[int, int, int]:
    """Return low end, middle and high end of the turns that still end below a rung.

    Args:
        expected: The turns to expect, with the one that reaches the rung; at least 1.0.
        table: The three where 1, 2, 4, … turns are to be expected.
    """
    # Between two entries lies a line, above the last one a proportion.
    knot = min(int(expected).bit_length(), len(table) - 1) - 1
    part = expected / (1 << knot) - 1
    low, middle, high = table[knot + 1]
    if part <= 1:
        low_before, middle_before, high_before = table[knot]
        low = low_before + (low - low_before) * part
        middle = middle_before + (middle - middle_before) * part
        high = high_before + (high - high_before) * part
    else:
        times = (1 + part) / 2
        low, middle, high = (low + 1) * times - 1, (middle + 1) * times - 1, (high + 1) * times - 1
    # Rounded up without `math`, a library that no hook needs besides.
    return int(low), int(middle + 0.5), -int(-high // 1)


def describe_compaction(forecast: dict[str, Any]) -> tuple[int, str] | None:
    """Return where a compaction is likely, in tokens, and words for it; None where none is known.

    Args:
        forecast: As `forecast` returns it.
    """
    ahead = forecast["rungs"].get(COMPACTION) or {}
    tokens, seen = ahead.get("tokens"), ahead.get("seen")
    if type(tokens) is not int or type(seen) is not int:
        return None
    times = "twice" if seen == 2 else f"{seen} times"
    return tokens, f"likely compaction near {round(tokens, -3):,}, seen {times}"
