"""How many turns and seconds remain before each rung, at the recent pace."""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.ladder import ResolvedLadder

HISTORY_TURNS = 8
MIN_TURNS = 2
COMPACTION = "compaction"
"""Name, among the rungs of a forecast, of where the host was seen to compact by itself."""


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


class TurnHistory:
    """The growth of one epoch, turn by turn.

    A turn is a provider report; while nothing was reported in the epoch, a tracked text.
    The median of the last eight turns is used: one large file read is no pace.

    Args:
        turns: ``[tokens, epoch seconds]`` of earlier reports, oldest first; changed in place.

    Attributes:
        turns: No more of them than the forecast needs.
    """

    __slots__ = ("_reported", "turns")

    def __init__(self, turns: list[list[float]] | None = None) -> None:
        self.turns = [] if turns is None else turns
        self._reported = bool(self.turns)

    def clear(self) -> None:
        """Forget everything; a new epoch has begun."""
        self.turns.clear()
        self._reported = False

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
            self.clear()
            self._reported = True
        if turns and turns[-1] == [tokens, at]:
            return
        # Of a row that does not grow both ends matter: every second turn kept is one that grew.
        if len(turns) > 1 and turns[-2][0] >= turns[-1][0] >= tokens:
            turns.pop()
        turns.append([tokens, at])
        del turns[: -2 * (HISTORY_TURNS + 1)]

    def _median_of(self, column: int) -> float | None:
        steps = [
            max(0.0, after[column] - before[column])
            for before, after in pairwise(self.turns)
            if after[0] > before[0]
        ][-HISTORY_TURNS:]
        return _median(steps) if len(steps) >= MIN_TURNS else None

    @property
    def tokens_per_turn(self) -> float | None:
        """Median growth of a turn in tokens, None before two turns."""
        return self._median_of(0)

    @property
    def seconds_per_turn(self) -> float | None:
        """Median length of a turn in seconds, None before two turns."""
        return self._median_of(1)


def forecast(
    history: TurnHistory,
    tokens: int,
    context_limit_tokens: int | None,
    ladder: ResolvedLadder,
    likely: tuple[int, int] | None = None,
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

    Returns:
        ``{"tokensPerTurn", "secondsPerTurn", "rungs": {name: {"turns", "seconds"}}}`` where
        ``turns`` is the number of turns that still end below the rung; None when unknowable.
    """
    pace = history.tokens_per_turn
    seconds = history.seconds_per_turn
    if pace is None or seconds is None or context_limit_tokens is None:
        return None
    rungs: dict[str, dict[str, float]] = {}
    ahead = [(rung.ratio * context_limit_tokens, rung.name) for rung in ladder.rungs]
    if COMPACTION in ladder.names:
        likely = None
    if likely is not None:
        ahead.append((likely[0], COMPACTION))
        ahead.sort()
    for at_tokens, name in ahead:
        left = at_tokens - tokens
        if left > 0:
            turns = turns_within(left, pace)
            rungs[name] = {"turns": turns, "seconds": round(turns * seconds, 1)}
            if name == COMPACTION and likely is not None:
                rungs[name]["tokens"], rungs[name]["seen"] = likely
    return {"tokensPerTurn": round(pace, 1), "secondsPerTurn": round(seconds, 3), "rungs": rungs}


def turns_within(left_tokens: float, tokens_per_turn: float) -> int:
    """Return the number of turns that still end with fewer tokens than are left."""
    # Rounded up without `math`, a library that no hook needs besides.
    return max(0, -int(-(left_tokens / tokens_per_turn) // 1) - 1)


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


def describe_turns(turns: int, rung: str) -> str:
    """Return a sentence about the turns that still end below a rung.

    Args:
        turns: Their number.
        rung: Where it lies, for people, e.g. ``85%``.
    """
    if not turns:
        return f"At the recent pace the next turn reaches {rung}."
    remain = "1 turn remains" if turns == 1 else f"{turns} turns remain"
    return f"At the recent pace about {remain} before {rung}."
