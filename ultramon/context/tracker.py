"""How many tokens are in the window now: the last provider report plus what came since."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ultramon.state.record import StateRecord

UNTAGGED = "untagged"
REPLY = "reply"
OTHER = "other"
STANDING = "standing"
"""What a first report counts beyond the texts that came before it: system prompt, tools."""

FALL_RATIO = 0.70
"""A report below this share of the last one starts a new epoch: the window was compacted."""

MAX_SOURCES = 32
MAX_SOURCE_CHARS = 100
# With less text between two reports the noise is larger than the signal: nothing is learned.
_LEARN_FROM_TOKENS = 500
_LEARNING_RATE = 0.5
_DECAY = 0.9
# Bounded: one report that fits its delta badly must not scale every later estimate.
_CALIBRATION_RANGE = (0.5, 2.0)
# Sums of weights carry float noise; without the slack 3.0000000001 tokens would count as 4.
_ROUNDING_SLACK = 1e-6


class ContextTracker:
    """Counts one context window.

    The anchor is what the provider last reported to be in the window. The reply to that request
    joins the window with whatever follows it, as a number the provider gave; other text is
    estimated, and the estimate is scaled by a calibration learned from report to report.

    Args:
        family: Tokenizer family of the estimate; see `ultramon.context.estimator.FAMILIES`. None =
            the family that estimates highest.
        standing: Tokens by source that every window begins with; None = the first report shows
            them.

    Attributes:
        cumulative_chars: Characters tracked in this epoch.
        by_source: Estimated tokens tracked in this epoch, per source.
        calibration: Factor on the estimate, 0.5-2.0, 1.0 until learned.
        anchor_at: When the anchor was reported, epoch seconds; None without an anchor.
        is_lower_bound: Whether more may be in the window: it was compacted to an unknown size, and
            no report has come since.
    """

    __slots__ = (
        "_anchor_is_report",
        "_anchor_tokens",
        "_count_text",
        "_estimate",
        "_exact",
        "_reply_tokens",
        "_standing",
        "anchor_at",
        "by_source",
        "calibration",
        "cumulative_chars",
        "family",
        "is_lower_bound",
    )

    def __init__(
        self, family: str | None = None, standing: Mapping[str, int] | None = None
    ) -> None:
        self._standing = standing
        self._count_text: Callable[[str, str], float] | None = None
        self.family = family
        if family is not None:
            self.estimate("")
        self.calibration = 1.0
        self.start_epoch()
        self.is_lower_bound = False

    def estimate(self, text: str) -> float:
        """Return the uncalibrated estimate of a text in tokens; counts nothing."""
        if self._count_text is None:
            # Imported here: a hook has reports and no text, and the tables cost it milliseconds.
            from ultramon.context import estimator

            self.family = estimator.check_family(self.family or estimator.DEFAULT_FAMILY)
            self._count_text = estimator.estimate_tokens_float
        return self._count_text(text, self.family)  # type: ignore[arg-type]

    def start_epoch(self, tokens_after: int | None = None, at: float | None = None) -> None:
        """Empty the window, or leave what a compaction says it left.

        Args:
            tokens_after: Tokens left in the window; None = unknown, so that what follows is a lower
                bound until the next report.
            at: When, epoch seconds.
        """
        self.is_lower_bound = tokens_after is None
        self._anchor_tokens = tokens_after
        self._anchor_is_report = False
        self.anchor_at = None if tokens_after is None else at
        self._exact = 0
        self._reply_tokens = 0
        self.cumulative_chars = 0
        self.by_source: dict[str, float] = dict(self._standing or {})
        # What a compaction says it left includes it. Given, not estimated: it is not calibrated.
        standing = 0.0 if tokens_after is not None else sum(self.by_source.values())
        self._estimate = standing / self.calibration

    def add(self, text: str, source: str | None = None) -> float:
        """Count text that entered the window.

        Args:
            text: Any text, lone surrogates included.
            source: Where it came from, e.g. ``tool:read``; at most 32 names are kept apart, each up
                to 100 characters.

        Returns:
            The uncalibrated estimate in tokens.
        """
        tokens = self.estimate(text)
        if self._reply_tokens:
            self._exact += self._reply_tokens
            self._count(REPLY, self._reply_tokens)
            self._reply_tokens = 0
        self._estimate += tokens
        self.cumulative_chars += len(text)
        self._count(source[:MAX_SOURCE_CHARS] if source else UNTAGGED, tokens)
        return tokens

    def _count(self, source: str, tokens: float) -> None:
        by_source = self.by_source
        if source not in by_source and len(by_source) >= MAX_SOURCES:
            source = OTHER
        by_source[source] = by_source.get(source, 0.0) + tokens

    def report(self, tokens: int, output_tokens: int = 0, at: float | None = None) -> bool:
        """Take a provider's count of what is in the window as the new anchor.

        Args:
            tokens: Input side of one response: new, cache read and cache creation tokens.
            output_tokens: Tokens of the reply; they join the window with what follows.
            at: When, epoch seconds.

        Returns:
            True when the report lies so far below the last report that the window must have been
            compacted; the caller starts an epoch. An estimate never counts as the last report.
        """
        fell = self.has_fallen(tokens)
        if self._anchor_is_report and not fell:
            self._learn(tokens)
        # Only for a program that names its texts: without them this would hold the prompt, too.
        is_first = self._anchor_tokens is None and self.cumulative_chars > 0
        if self._standing is None and is_first and tokens > self._estimate:
            self._count(STANDING, tokens - self._estimate)
        self._anchor_tokens = tokens
        self._anchor_is_report = True
        self.is_lower_bound = False
        self.anchor_at = at
        self._exact = 0
        self._estimate = 0.0
        self._reply_tokens = output_tokens
        return fell

    def has_fallen(self, tokens: int) -> bool:
        """Return whether a report lies so far below the last one that the window was emptied."""
        return self._anchor_is_report and tokens < FALL_RATIO * (self._anchor_tokens or 0)

    def _learn(self, tokens: int) -> None:
        grown = tokens - (self._anchor_tokens or 0) - self._exact - self._reply_tokens
        # A window that shrank lost something older: that says nothing about the estimate.
        if self._estimate < _LEARN_FROM_TOKENS or grown <= 0:
            self.calibration = 1.0 + (self.calibration - 1.0) * _DECAY
            return
        low, high = _CALIBRATION_RANGE
        observed = min(max(grown / self._estimate, low), high)
        self.calibration += _LEARNING_RATE * (observed - self.calibration)

    @property
    def tokens(self) -> int:
        """Tokens in the window now, rounded up once."""
        total = self._exact + self.calibration * self._estimate + (self._anchor_tokens or 0)
        return -int(-(total - _ROUNDING_SLACK) // 1)

    def tokens_with(self, more_tokens: float) -> int:
        """Return the tokens in the window after so many more (uncalibrated) tokens."""
        total = self._exact + self._reply_tokens + (self._anchor_tokens or 0)
        total_float = total + self.calibration * (self._estimate + more_tokens)
        return -int(-(total_float - _ROUNDING_SLACK) // 1)

    @property
    def source(self) -> str:
        """How the tokens are known: ``reported``, ``anchored`` or ``estimated``."""
        if not self._anchor_is_report:
            return "estimated"
        return "anchored" if self._exact or self._estimate else "reported"

    def to_json(self) -> dict[str, Any] | None:
        """Return the anchor as a state file holds it, None without one."""
        if self._anchor_tokens is None:
            return None
        return {
            "tokens": self._anchor_tokens,
            "isReport": self._anchor_is_report,
            "replyTokens": self._reply_tokens,
            "exactTokens": self._exact,
            "calibration": round(self.calibration, 4),
        }

    def explain(self) -> dict[str, Any]:
        """Return the parts of the sum, for the explain screen."""
        return {
            "anchorTokens": self._anchor_tokens,
            "anchorIsReport": self._anchor_is_report,
            "replyTokens": self._exact,
            "replyTokensPending": self._reply_tokens,
            "estimatedDeltaTokens": round(self._estimate, 1),
            "calibration": round(self.calibration, 4),
            "family": self.family,
        }

    def restore(self, record: StateRecord) -> None:
        """Continue from a saved reading of the same window."""
        self.start_epoch()
        self.is_lower_bound = False
        anchor, tokens = record.anchor, record.estimated_tokens
        if anchor is not None:
            self._anchor_tokens = anchor["tokens"]
            self._anchor_is_report = anchor["isReport"]
            self._reply_tokens = anchor["replyTokens"]
            self._exact = anchor["exactTokens"]
            self.calibration = anchor["calibration"]
            self.anchor_at = record.measured_at
        known = self._exact + (self._anchor_tokens or 0)
        self._estimate = max(0.0, (tokens - known) / self.calibration)
        self.cumulative_chars = record.cumulative_chars
        self.by_source = {name: float(count) for name, count in (record.by_source or {}).items()}


def create_context_tracker(family: str | None = None) -> ContextTracker:
    """Return a tracker of one empty context window, for use without a monitor.

    Raises:
        ConfigurationError: The tokenizer family does not exist.
    """
    return ContextTracker(family)
