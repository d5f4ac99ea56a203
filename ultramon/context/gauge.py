"""How full one window is and what that means: tracker, limit, ladder, machine and forecast.

Everything here is in memory and decides; saving, locking and telling others is the monitor's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.context.forecast import TurnHistory, forecast
from ultramon.context.ladder import FORCE_RETURN, NONE, next_level
from ultramon.context.level_machine import LevelChange, LevelMachine
from ultramon.context.levels import ThresholdAction, as_level
from ultramon.context.limits import resolve_limit
from ultramon.context.note import describe_pace, write_note
from ultramon.context.tracker import ContextTracker
from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.context.config import ContextConfig
    from ultramon.context.ladder import ResolvedLadder
    from ultramon.context.limits import Limit
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock


_RETURN_REQUESTED = "Return requested by the orchestrator - initiating checkpoint return"


class Fit(NamedTuple):
    """Whether a text would fit."""

    ok: bool
    """False when the context limit would be passed, or a rung that asks to return is reached."""
    level_after: str | None
    """Level with the text in the window; None while the limit is unknown."""
    tokens_over: int
    """Tokens beyond the context limit, 0 when within it or unknown."""


class EpochStart(NamedTuple):
    """One window ended and the next began."""

    reason: str
    tokens_before: int
    tokens_after: int | None


class Gauge:
    """The readings of one agent.

    Args:
        config: Limits, ladder and estimator.
        clock: For the times of readings.
        count_tasks: Gives tasks completed and in all, for notes.
    """

    def __init__(
        self,
        config: ContextConfig,
        clock: Clock,
        count_tasks: Callable[[], tuple[int, int | None]] = lambda: (0, None),
    ) -> None:
        self._count_tasks = count_tasks
        self.config = config
        self.model = config.model
        self.ladder = config.effective_ladder
        self._clock = clock
        self._tracker = ContextTracker(config.effective_family)
        self._history = TurnHistory()
        self._machine = LevelMachine(self.ladder)
        self._observed_window_tokens: int | None = None
        self._highest_report_tokens = 0
        self.epoch = 1
        self.epoch_started_at = clock.now()
        self.measured_at: float | None = None
        self.announced: dict[str, int] = {}
        self._return_requested = False
        self._compacts = False
        self._fence: str | None = None
        self.limit: Limit
        self._resolved: ResolvedLadder
        self._resolve()

    def _resolve(self) -> None:
        config = self.config
        self.limit = resolve_limit(
            model=self.model,
            explicit_limit_tokens=config.context_limit_tokens,
            explicit_window_tokens=config.context_window_tokens,
            observed_window_tokens=self._observed_window_tokens,
            reserved_output_tokens=config.reserved_output_tokens,
            default_window_tokens=None if self.model else config.default_window_tokens,
            suspect_above_tokens=self._highest_report_tokens or None,
        )
        self._resolved = self.ladder.resolve(self.limit.context_limit_tokens)
        self._settle()

    def _settle(self) -> None:
        # `tokens` of a tracker are compared against this one number on every call.
        limit = self.limit.context_limit_tokens
        ratio = self._resolved.next_ratio(self._machine.level)
        self._act_at_tokens = None if limit is None or ratio is None else ratio * limit - 1
        level = self._machine.level
        rung = self.ladder.rung(level) if limit is not None else None
        name = rung.name if rung else self.ladder.base
        action, message = rung.action if rung else NONE, self.ladder.message(name)
        if self._fence is not None:
            action, message = FORCE_RETURN, self._fence
        elif self._return_requested and action != FORCE_RETURN:
            action, message = FORCE_RETURN, _RETURN_REQUESTED
        self._steady = ThresholdAction(as_level(name), action, message, note=self.note)

    @property
    def returns_on_request(self) -> bool:
        """Whether the agent should return only because an orchestrator asked."""
        return self._return_requested and self._steady.message == _RETURN_REQUESTED

    def request_return(self, requested: bool) -> bool:
        """Ask for a return whatever the level, or no longer; return whether that is new."""
        is_new = requested != self._return_requested
        self._return_requested = requested
        self._settle()
        return is_new

    def fence(self, message: str) -> None:
        """Ask for a return for good: the agent belongs to another owner now."""
        self._fence = message
        self._settle()

    @property
    def tokens(self) -> int:
        """Tokens in the window now."""
        return self._tracker.tokens

    @property
    def tokens_source(self) -> str:
        """How the tokens are known: ``reported``, ``anchored`` or ``estimated``."""
        return self._tracker.source

    @property
    def usage_ratio(self) -> float | None:
        """Tokens by limit, 0.0 and more, not clamped; None when either is unknown."""
        limit = self.limit.context_limit_tokens
        if limit is None or not (self._tracker.is_known or self.epoch == 1):
            return None
        return self._tracker.tokens / limit

    @property
    def level(self) -> str | None:
        """The level, None while the limit is unknown."""
        return None if self.limit.context_limit_tokens is None else self._machine.level

    @property
    def action(self) -> ThresholdAction:
        """The action of the present level, as nothing new."""
        return self._steady

    def add(self, text: str, source: str | None) -> bool:
        """Count text; return whether the level may have to change."""
        tracker = self._tracker
        tracker.add(text, source)
        now = self._clock.now()
        self.measured_at = now
        tokens = tracker.tokens
        self._history.record(tokens, now, reported=False)
        return self._act_at_tokens is not None and tokens >= self._act_at_tokens

    def report(
        self, tokens: int, output_tokens: int, window_tokens: int | None, at: float | None
    ) -> EpochStart | None:
        """Take a provider's count; return the epoch it started, if it shows that one began.

        One older than this epoch or the last reading is stale and changes nothing. A count of
        nothing is no reading; a window that comes with it is believed. A time that has not come
        yet counts as now.
        """
        now = self._clock.now()
        if at is not None and 0 <= at <= now:
            newest = max(self.epoch_started_at, self._tracker.anchor_at or 0.0)
            # Where the clock was set back, what is known bears times that are yet to come.
            if at <= newest <= now:
                return None
            now = at
        if window_tokens is not None and window_tokens != self._observed_window_tokens:
            self._observe_window(window_tokens)
        if not tokens:
            return None
        started = None
        before = self.tokens
        if self._tracker.report(tokens, output_tokens, now):
            started = self._begin_epoch("fall", before, tokens, now)
            self._tracker.report(tokens, output_tokens, now)
        self.measured_at = now
        self._history.record(tokens, now, reported=True)
        if tokens > self._highest_report_tokens:
            self._highest_report_tokens = tokens
            window = self.limit.context_window_tokens
            if self.limit.suspect or (window is not None and tokens > window):
                self._resolve()
        return started

    def _observe_window(self, window_tokens: int) -> None:
        previous, self._observed_window_tokens = self._observed_window_tokens, window_tokens
        try:
            self._resolve()
        except ConfigurationError:
            # A window smaller than the reserved output cannot be meant; keep what was known.
            self._observed_window_tokens = previous
            self._resolve()

    def overflow(self, sent_tokens: int | None, window_tokens: int | None) -> None:
        """Take a provider's refusal as a full window, and believe the size that it names."""
        if window_tokens is not None:
            self._observe_window(window_tokens)
        full = max(sent_tokens or 0, self.limit.context_limit_tokens or 0, self.tokens)
        if not full:
            return
        now = self._clock.now()
        self._tracker.report(full, 0, now)
        self.measured_at = now

    def set_model(self, model: str | None) -> None:
        """Change the model: another window, another tokenizer; what was observed is forgotten.

        Raises:
            ConfigurationError: The reserved output leaves nothing of the new window.
        """
        former = (self.model, self._observed_window_tokens, self._highest_report_tokens)
        self.model, self._observed_window_tokens, self._highest_report_tokens = model, None, 0
        try:
            self._resolve()
        except ConfigurationError:
            self.model, self._observed_window_tokens, self._highest_report_tokens = former
            self._resolve()
            raise
        if self.config.tokenizer_family is None:
            from ultramon.context.estimator import family_for_model

            self._tracker.family = family_for_model(model)

    def start_epoch(self, reason: str, tokens_after: int | None) -> EpochStart:
        """Advance the epoch: drop level, reading and forecast in one step."""
        return self._begin_epoch(reason, self.tokens, tokens_after, self._clock.now())

    def _begin_epoch(
        self, reason: str, before: int, tokens_after: int | None, at: float
    ) -> EpochStart:
        self.epoch += 1
        self._compacts |= reason == "compaction"
        self.epoch_started_at = at
        self._tracker.start_epoch(tokens_after, at)
        self._history.clear()
        self._machine.place(None)
        self.announced = {}
        self.measured_at = None if tokens_after is None else at
        self._settle()
        return EpochStart(reason, before, tokens_after)

    def decide(self) -> LevelChange | None:
        """Move the level to where the reading puts it; return the change, if any."""
        previous, names = self._machine.level, self._machine.names
        level = self._machine.decide(previous, self.usage_ratio, self._resolved)
        if level is None or level == previous:
            return None
        change = LevelChange(previous, level, names.index(level) > names.index(previous))
        if change.rising:
            self.announced[level] = self.announced.get(level, 0) + 1
        self._settle()
        return change

    def level_facts(self, previous: str) -> dict[str, Any]:
        """Return what an event says of a level that has changed."""
        return {
            "level": self.level,
            "previousLevel": previous,
            "action": self._steady.action.value,
            "usageRatio": round(self.usage_ratio or 0.0, 6),
            "tokens": self.tokens,
            "contextLimit": self.limit.context_limit_tokens,
            "tokensSource": self.tokens_source,
        }

    def changed_action(self) -> ThresholdAction:
        """Return the present action as a change, with its note as it is now."""
        steady = self._steady
        return ThresholdAction(
            steady.level, steady.action, steady.message, changed=True, note=self.note()
        )

    def fits(self, more: str | int) -> Fit:
        """Say what would happen if so much more entered the window."""
        if isinstance(more, str):
            from ultramon.context.estimator import estimate_tokens_float

            after = self._tracker.tokens_with(estimate_tokens_float(more, self._tracker.family))
        else:
            after = self._tracker.tokens_with(0.0) + more
        limit = self.limit.context_limit_tokens
        if limit is None:
            return Fit(True, None, 0)
        level = next_level(self._machine.level, after / limit, self._resolved)
        name = level or self.ladder.base
        rung = self.ladder.rung(name)
        returns = rung is not None and rung.action == "force_return"
        return Fit(after <= limit and not returns, as_level(name), max(0, after - limit))

    def forecast(self) -> dict[str, Any] | None:
        """Return the pace and what remains before each rung, None when unknowable."""
        return forecast(self._history, self.tokens, self.limit.context_limit_tokens, self._resolved)

    def note(self) -> str:
        """Return the facts as they are now, for the agent's own context."""
        limit = self.limit
        binding = next((c.name for c in limit.candidates if c.verdict == "binding"), None)
        source = self._tracker.source
        return write_note(
            self.tokens,
            limit.context_limit_tokens,
            reading=None if self.measured_at is None else (source, self.measured_at),
            now=self._clock.now(),
            limit_name=binding,
            window_tokens=limit.context_window_tokens,
            compacts=self._compacts,
            pace=describe_pace(
                self.forecast(),
                self._resolved,
                self._machine.level,
                self.tokens,
                limit.context_limit_tokens,
            ),
            tasks=self._count_tasks(),
            action=self._steady.action,
            critical_note=self.config.critical_note,
        )

    def fill(self, record: StateRecord) -> None:
        """Write the readings into a state."""
        tracker, limit = self._tracker, self.limit
        level = self.level
        record.model = self.model
        record.epoch = self.epoch
        record.epoch_started_at = self.epoch_started_at
        record.measured_at = self.measured_at
        record.cumulative_chars = tracker.cumulative_chars
        record.estimated_tokens = tracker.tokens
        record.tokens_source = tracker.source
        record.anchor = tracker.to_json()
        record.by_source = {name: round(tokens) for name, tokens in tracker.by_source.items()}
        record.context_limit = limit.context_limit_tokens
        record.context_window = limit.context_window_tokens
        record.reserved_output_tokens = self.config.reserved_output_tokens
        record.limit_source = limit.source
        record.limit_suspect = limit.suspect
        record.limit_candidates = [
            {"name": c.name, "source": c.source, "tokens": c.tokens, "verdict": c.verdict}
            for c in limit.candidates
        ]
        ratio = self.usage_ratio
        record.usage_ratio = None if ratio is None else round(ratio, 6)
        record.threshold_status = level
        record.action = self._steady.action.value
        record.ladder = self.ladder.to_json()
        record.ladder_status = self._resolved.status
        record.announced = {"epoch": self.epoch, "rungs": dict(self.announced)}
        record.forecast = self.forecast()

    def restore(self, record: StateRecord) -> None:
        """Continue the window of an owner that vanished: same epoch, level and announcements."""
        self.epoch = record.epoch
        self.epoch_started_at = record.epoch_started_at
        self.measured_at = record.measured_at
        self._tracker.restore(record)
        self._machine.place(record.threshold_status)
        if record.announced.get("epoch") == record.epoch:
            self.announced = dict(record.announced["rungs"])
        for candidate in record.limit_candidates or ():
            if candidate["source"] == "observed":
                self._observed_window_tokens = candidate["tokens"]
            if candidate["verdict"] == "not_believed":
                beyond = candidate["tokens"] + 1
                self._highest_report_tokens = max(self._highest_report_tokens, beyond)
        self._resolve()

    def begin_after(self, record: StateRecord) -> None:
        """Start a fresh window of an agent that ended before under the same id."""
        self.epoch = record.epoch + 1
        self._tracker.start_epoch(0, self.epoch_started_at)
