"""Ladders of rungs, and the function that decides which level a reading has.

Levels and actions are plain strings here; `ultramon.context.levels` gives them as enums.
"""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from ultramon.errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

NORMAL = "normal"
WARNING = "warning"
CAUTION = "caution"
CRITICAL = "critical"
EMERGENCY = "emergency"

LADDERS = {
    "sdk": {WARNING: 0.70, CRITICAL: 0.85},
    "alerts": {WARNING: 0.70, CAUTION: 0.85, CRITICAL: 0.90, EMERGENCY: 0.95},
    "claude-code": {WARNING: 0.65, CRITICAL: 0.75},
}
"""Default usage ratios of the three ladders, by name.

They differ because each keeps the numbers that its users know: ``sdk`` (`ContextConfig`, posted
readings) those of an orchestrator's context monitor, ``alerts`` (`AlertConfig`) those of the
context alerts in command-line tools, ``claude-code`` those of the hooks that warn a session at 35
and 25 % remaining."""

NONE = "none"
PREPARE_HANDOFF = "prepare_handoff"
FORCE_RETURN = "force_return"
ACTIONS = (NONE, PREPARE_HANDOFF, FORCE_RETURN)

DEFAULT_REARM_MARGIN = 0.05

_ADVICE = {
    NONE: "",
    PREPARE_HANDOFF: " - complete current task, prepare clean handoff",
    FORCE_RETURN: " - initiating checkpoint return",
}
_RUNG_FIELDS = {
    "name": "name",
    "ratio": "ratio",
    "tokensLeft": "tokens_left",
    "action": "action",
    "rearmRatio": "rearm_ratio",
}
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_MOST_TOKENS = 1_000_000_000


def is_number(value: object) -> bool:
    """Return whether a value is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_ratio(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if not (is_number(value) and 0.0 < value <= 1.0):
        raise ConfigurationError(name, value, "a finite ratio, 0 < ratio <= 1")
    return float(value)


def _check_name(kind: str, name: object) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= 32 and _NAME_CHARACTERS.issuperset(name)):
        raise ConfigurationError(kind, name, "1-32 of a-z 0-9 _ -")
    return name


class Rung:
    """One step of a ladder.

    Args:
        name: Level name: lower-case letters, digits, ``_`` and ``-``, at most 32.
        ratio: Usage ratio at which the rung is reached, inclusive, in (0, 1]; None = no such arm.
        tokens_left: Tokens left before the context limit at which the rung is reached, inclusive,
            1 to 1,000,000,000; None = no such arm. With both arms the stricter one (reached
            earlier) decides.
        action: What the agent should do: ``none``, ``prepare_handoff`` or ``force_return``.
        rearm_ratio: Usage ratio below which the rung can fire again; None = the ladder's margin.

    Raises:
        ConfigurationError: A value is out of range, or both arms are missing.
    """

    __slots__ = ("action", "name", "ratio", "rearm_ratio", "tokens_left")

    def __init__(
        self,
        name: str,
        ratio: float | None = None,
        tokens_left: int | None = None,
        action: str = NONE,
        rearm_ratio: float | None = None,
    ) -> None:
        self.name = _check_name("rung name", name)
        if ratio is None and tokens_left is None:
            raise ConfigurationError(f"rung {name}", None, "given a ratio, tokens_left, or both")
        is_whole = isinstance(tokens_left, int) and not isinstance(tokens_left, bool)
        if tokens_left is not None and not (is_whole and 0 < tokens_left <= _MOST_TOKENS):
            allowed = f"a whole number from 1 to {_MOST_TOKENS:,}"
            raise ConfigurationError(f"{name} tokens_left", tokens_left, allowed)
        if action not in ACTIONS:
            raise ConfigurationError(f"{name} action", action, f"one of {', '.join(ACTIONS)}")
        self.ratio = _check_ratio(f"{name} ratio", ratio)
        self.tokens_left = tokens_left
        self.action = str(action)
        self.rearm_ratio = _check_ratio(f"{name} rearm_ratio", rearm_ratio)
        if self.rearm_ratio and self.ratio and self.rearm_ratio > self.ratio:
            allowed = f"at most the rung's ratio {self.ratio}"
            raise ConfigurationError(f"{name} rearm_ratio", rearm_ratio, allowed)

    def __repr__(self) -> str:
        return (
            f"Rung({self.name!r}, ratio={self.ratio}, tokens_left={self.tokens_left}, "
            f"action={self.action!r}, rearm_ratio={self.rearm_ratio})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rung) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(self.to_json().values()))

    def to_json(self) -> dict[str, Any]:
        """Return the rung as a state file has it."""
        return {name: getattr(self, attribute) for name, attribute in _RUNG_FIELDS.items()}

    def describe(self) -> str:
        """Return where the rung lies, for people: ``70%+``, ``20,000 tokens left``, or both."""
        arms = []
        if self.ratio is not None:
            arms.append(f"{self.ratio * 100:.6g}%+")
        if self.tokens_left is not None:
            arms.append(f"{self.tokens_left:,} tokens left")
        return " or ".join(arms)

    def message(self) -> str:
        """Return one line: the rung is reached, and what its action asks for."""
        return f"Context {self.name} ({self.describe()}){_ADVICE[self.action]}"


class ResolvedRung:
    """A rung against an actual context limit; ratios only.

    Attributes:
        ratio: Usage ratio at which it is reached.
        nominal_ratio: The same for people: on a ladder that rounds to whole percents a rung at
            0.65 is reached at 0.645.
    """

    __slots__ = ("action", "name", "nominal_ratio", "ratio", "rearm_ratio")

    def __init__(
        self, rung: Rung, ratio: float, nominal_ratio: float, rearm_ratio: float | None
    ) -> None:
        self.name = rung.name
        self.action = rung.action
        self.ratio = ratio
        self.nominal_ratio = nominal_ratio
        self.rearm_ratio = rearm_ratio

    def tokens(self, limit_tokens: int) -> int:
        """Return the fewest tokens of a limit that reach it: where a chart draws it."""
        tokens = ceil(self.ratio * limit_tokens)
        # As a reading is compared, which a product of floats may miss by one.
        while tokens / limit_tokens < self.ratio:
            tokens += 1
        while (tokens - 1) / limit_tokens >= self.ratio:
            tokens -= 1
        return tokens


class ResolvedLadder:
    """A ladder against one context limit: every arm is a ratio.

    Attributes:
        names: Level names from the base level upwards.
        rungs: The rungs that hold, in order; rung ``i`` leads to ``names[i + 1]``.
        status: ``ok``, or ``invalid`` when a tokens-left arm made no sense and was dropped.
        dropped: Names of the rungs that lost their tokens-left arm.
    """

    __slots__ = ("dropped", "names", "rungs", "status")

    def __init__(self, base: str, rungs: Sequence[ResolvedRung], dropped: Sequence[str]) -> None:
        self.names = (base, *(rung.name for rung in rungs))
        self.rungs = tuple(rungs)
        self.dropped = tuple(dropped)
        self.status = "invalid" if dropped else "ok"

    def rank(self, level: str | None) -> int:
        """Return the height of a level; a level this ladder does not have counts as its base."""
        return self.names.index(level) if level in self.names else 0

    def rank_at(self, usage_ratio: float) -> int:
        """Return the height of the highest rung that a usage ratio reaches."""
        height = 0
        for rung in self.rungs:
            if usage_ratio < rung.ratio:
                break
            height += 1
        return height

    def next_ratio(self, level: str | None) -> float | None:
        """Return the usage ratio of the next rung above a level, None at the top."""
        height = self.rank(level)
        return self.rungs[height].ratio if height < len(self.rungs) else None


class Ladder:
    """Ordered rungs above a base level.

    Args:
        rungs: From low to high; ratios strictly rise, tokens left strictly fall.
        base: Name of the level below the first rung.
        rearm_margin: How far below a rung (as a ratio, default 0.05) usage must fall before the
            rung can fire again; None = only a new epoch re-arms.
        round_percent: Decide on the percentage rounded to a whole number, as some hosts show it;
            ratios must then be whole percents.

    Attributes:
        names: Of the levels, from the base upwards.

    Raises:
        ConfigurationError: Empty, unordered, repeated names, or a margin outside [0, 1).
    """

    __slots__ = ("base", "names", "rearm_margin", "round_percent", "rungs")

    def __init__(
        self,
        rungs: Iterable[Rung],
        *,
        base: str = NORMAL,
        rearm_margin: float | None = DEFAULT_REARM_MARGIN,
        round_percent: bool = False,
    ) -> None:
        self.rungs = tuple(rungs)
        self.base = _check_name("ladder base", base)
        if rearm_margin is not None and not (is_number(rearm_margin) and 0 <= rearm_margin < 1):
            raise ConfigurationError("rearm_margin", rearm_margin, "None or 0 <= margin < 1")
        self.rearm_margin = rearm_margin
        self.round_percent = round_percent
        self.names = (base, *(rung.name for rung in self.rungs))
        if not self.rungs or len({*self.names}) != len(self.names):
            raise ConfigurationError("ladder", [*self.names], "at least one rung, every name once")
        ratios = [rung.ratio for rung in self.rungs if rung.ratio is not None]
        if any(low >= high for low, high in pairwise(ratios)):
            raise ConfigurationError("ladder ratios", ratios, "strictly rising from rung to rung")
        # Two rungs within one percent would be one rung, and one under half a percent always on.
        if round_percent and any(abs(ratio * 100 - round(ratio * 100)) > 1e-9 for ratio in ratios):
            raise ConfigurationError("ladder ratios", ratios, "whole percents with round_percent")
        lefts = [rung.tokens_left for rung in self.rungs if rung.tokens_left is not None]
        if any(low <= high for low, high in pairwise(lefts)):
            raise ConfigurationError("ladder tokens_left", lefts, "strictly falling rung to rung")

    def __repr__(self) -> str:
        return f"Ladder({list(self.rungs)!r}, base={self.base!r}, rearm_margin={self.rearm_margin})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ladder) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.base, self.rearm_margin, self.round_percent, self.rungs))

    @classmethod
    def default(
        cls,
        warning: float | None = LADDERS["sdk"][WARNING],
        critical: float | None = LADDERS["sdk"][CRITICAL],
        *,
        warning_tokens_left: int | None = None,
        critical_tokens_left: int | None = None,
        rearm_margin: float | None = DEFAULT_REARM_MARGIN,
        round_percent: bool = False,
    ) -> Ladder:
        """Return the two-rung ladder: warning → prepare_handoff, critical → force_return."""
        return cls(
            (
                Rung(WARNING, warning, warning_tokens_left, PREPARE_HANDOFF),
                Rung(CRITICAL, critical, critical_tokens_left, FORCE_RETURN),
            ),
            rearm_margin=rearm_margin,
            round_percent=round_percent,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the ladder as a state file has it."""
        return {
            "base": self.base,
            "rearmMargin": self.rearm_margin,
            "roundPercent": self.round_percent,
            "rungs": [rung.to_json() for rung in self.rungs],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Ladder:
        """Rebuild a ladder from a state file.

        Raises:
            ConfigurationError: The stored ladder is not a valid one.
        """
        try:
            return cls(
                [Rung(*(rung[name] for name in _RUNG_FIELDS)) for rung in value["rungs"]],
                base=value["base"],
                rearm_margin=value["rearmMargin"],
                round_percent=bool(value["roundPercent"]),
            )
        except (KeyError, TypeError, AttributeError):
            raise ConfigurationError("ladder", value, "a ladder as ultramon wrote it") from None

    def rung(self, level: str) -> Rung | None:
        """Return the rung of a level, None for the base and for unknown levels."""
        return next((rung for rung in self.rungs if rung.name == level), None)

    def message(self, level: str) -> str:
        """Return the one-line message of a level."""
        rung = self.rung(level)
        return rung.message() if rung else f"Context {self.base}"

    def resolve(self, context_limit_tokens: int | None) -> ResolvedLadder:
        """Convert the tokens-left arms to ratios of a context limit.

        Args:
            context_limit_tokens: The limit, or None while it is unknown: ratio arms only.

        Returns:
            The rungs in strictly rising order; a tokens-left arm that lies at or below zero, or
            that would break the order, is dropped and named in ``dropped``.
        """
        limit, dropped = context_limit_tokens, []
        arms = [
            (limit - rung.tokens_left) / limit if limit and rung.tokens_left else None
            for rung in self.rungs
        ]
        while (offender := self._offender(arms)) is not None:
            arms[offender] = None
            dropped.append(self.rungs[offender].name)
        resolved = []
        for rung, arm in zip(self.rungs, arms, strict=True):
            ratio = self._stricter(rung, arm)
            if ratio is not None:
                nominal = ratio if arm == ratio or rung.ratio is None else rung.ratio
                resolved.append(ResolvedRung(rung, ratio, nominal, self._rearm(rung, ratio)))
        return ResolvedLadder(self.base, resolved, dropped)

    def _stricter(self, rung: Rung, arm: float | None) -> float | None:
        ratio = rung.ratio
        # From half a percent below on, a reading is shown as the rung's whole percent.
        if ratio is not None and self.round_percent:
            ratio = (round(ratio * 100) - 0.5) / 100
        return min((value for value in (ratio, arm) if value is not None), default=None)

    def _offender(self, arms: Sequence[float | None]) -> int | None:
        lower: tuple[int, float] | None = None
        for index, rung in enumerate(self.rungs):
            arm = arms[index]
            if arm is not None and arm <= 0.0:
                return index
            ratio = self._stricter(rung, arm)
            if ratio is None:
                continue
            # At fault is the tokens-left arm that decides one of the two ratios: ratio arms alone
            # rise, as the constructor has checked.
            if lower is not None and lower[1] >= ratio:
                return index if arm is not None and arm <= ratio else lower[0]
            lower = (index, ratio)
        return None

    def _rearm(self, rung: Rung, ratio: float) -> float | None:
        if rung.rearm_ratio is not None:
            return min(rung.rearm_ratio, ratio)
        if self.rearm_margin is None:
            return None
        # A rung lower than the margin would otherwise wait for a negative ratio: silent for ever.
        return max(ratio - self.rearm_margin, ratio / 2)


DEFAULT_LADDER = Ladder.default()
"""``sdk``."""
CLAUDE_CODE_LADDER = Ladder.default(*LADDERS["claude-code"].values(), round_percent=True)
"""``claude-code``; decides on the rounded percent, as the client shows it."""


def next_level(
    previous: str | None, usage_ratio: float | None, ladder: ResolvedLadder
) -> str | None:
    """Return the level after a reading.

    Up at once to the highest rung reached; down rung by rung, each only below its re-arm ratio.

    Args:
        previous: The level before; None when it was unknown.
        usage_ratio: 0.0 and more; None while tokens or limit are unknown.
        ladder: The ladder resolved against the current limit.

    Returns:
        The level, or None when the usage ratio is unknown.
    """
    if usage_ratio is None:
        return None
    height = ladder.rank(previous)
    reached = ladder.rank_at(usage_ratio)
    if reached >= height:
        return ladder.names[reached]
    while height > reached:
        rearm_ratio = ladder.rungs[height - 1].rearm_ratio
        if rearm_ratio is None or usage_ratio >= rearm_ratio:
            break
        height -= 1
    return ladder.names[height]
