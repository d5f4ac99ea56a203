"""The gauge of a monitor: text goes in beside reports, and actions and notes come out.

Everything here is in memory; saving, locking and notifying others is the monitor's.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple

# Loaded here, not when a level first changes: by then the process may have no descriptor left.
import ultramon.context.level_words  # noqa: F401
from ultramon.context.gauge import Gauge, GaugeMemory
from ultramon.context.ladder import FORCE_RETURN, next_level
from ultramon.context.level_machine import LevelMachine
from ultramon.context.levels import UNKNOWN_LIMIT, UNKNOWN_USAGE, Level, ThresholdAction, as_level
from ultramon.context.limits import is_assumed
from ultramon.context.note import write_note
from ultramon.context.tracker import ContextTracker
from ultramon.errors import ConfigurationError
from ultramon.state.record import StateRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ultramon.context.config import ContextConfig
    from ultramon.context.ladder import Ladder
    from ultramon.system.clock import Clock

MESSAGES = "messages"
"""Source of what is counted from all the messages of a request."""
_RETURN_REQUESTED = "Return requested by the orchestrator - initiating checkpoint return"
_RESTORED = (
    "epoch", "epoch_started_at", "measured_at", "cumulative_chars", "estimated_tokens", "anchor",
    "by_source", "context_limit", "usage_ratio", "threshold_status",
)  # fmt: skip
"""The fields of a stored state with which its window continues; the rest follows from them."""


class Fit(NamedTuple):
    """Whether a text would fit."""

    ok: bool
    """False when the context limit would be passed, or a rung that asks to return is reached."""
    level_after: str | None
    """Level with the text in the window; None while limit or usage is unknown."""
    tokens_over: int
    """Tokens beyond the context limit, 0 when within it or unknown."""


class _Memory(GaugeMemory):
    """What a monitor keeps beside its state, for the life of its process."""

    def __init__(self, readings_after: float) -> None:
        self.window_tokens = self.trigger_tokens = self.refusal_tokens = None
        self.observed_tokens = self.likely_tokens = None
        self.highest_tokens = self.likely_seen = 0
        self.turns = []
        self.readings_after = readings_after
        self.reading_file = None
        self.reading_end = 0


class MonitorGauge(Gauge):
    """The readings of one agent, in memory.

    Args:
        config: Limits, ladder and estimator.
        clock: For the times of readings.
        count_tasks: Gives tasks completed and in all, for notes.
        record: The agent's state; None = one without an agent.

    Attributes:
        action: The action of the present level, as nothing new.
    """

    def __init__(
        self,
        config: ContextConfig,
        clock: Clock,
        count_tasks: Callable[[], tuple[int, int | None]] = lambda: (0, None),
        record: StateRecord | None = None,
    ) -> None:
        self.config = config
        self._count_tasks = count_tasks
        self._clock = clock
        self._return_requested = False
        self._compacts = False
        self._fence: str | None = None
        self._facts: list[tuple[str, dict[str, Any]]] = []
        record, ladder = record or StateRecord(""), config.effective_ladder
        record.model = config.model
        record.reserved_output_tokens = config.reserved_output_tokens
        record.epoch, record.epoch_started_at = 1, clock.now()
        record.announced = {"epoch": 1, "rungs": {}}
        record.by_source = dict(config.standing or {})
        record.estimated_tokens = sum(record.by_source.values())
        super().__init__(
            record,
            ladder,
            ContextTracker(config.effective_family, config.standing),
            clock.now,
            memory=_Memory(record.epoch_started_at),
            settings=_limits_of(config),
            decide=LevelMachine(ladder).decide,
        )
        self._resolve()

    def _resolve(self) -> None:
        """Work the limit out; where a project's settings do not fit it, the user's own decide.

        A project may only have an agent warned earlier. Its reserved output could leave nothing of
        a window, and a limit that drops rungs would leave them later than the user's, or nowhere.
        """
        own = self.config.without_project
        if own is not self.config:
            self._use(self.config)
            try:
                super()._resolve()
            except ConfigurationError:
                pass
            else:
                if self._resolved.status == "ok":
                    return
            self._use(own)
        super()._resolve()

    def _use(self, config: ContextConfig) -> None:
        self._settings = _limits_of(config)
        self.record.reserved_output_tokens = config.reserved_output_tokens
        if self.ladder != config.effective_ladder:
            self.ladder = config.effective_ladder
            self._next_level = LevelMachine(self.ladder).decide
            if self._level not in self.ladder.names:
                self._level = self.ladder.base

    def _set_level(self) -> None:
        super()._set_level()
        record = self.record
        # `tokens` of a tracker are compared against this one number on every call.
        limit = record.context_limit
        ratio = self._resolved.next_ratio(self._level)
        # One token early: the product of floats may miss by one, and `decide` compares exactly.
        self._act_at_tokens = None if limit is None or ratio is None else ratio * limit - 1
        name, action = record.threshold_status, record.action
        message = UNKNOWN_LIMIT if limit is None else UNKNOWN_USAGE
        if name is not None:
            message = self.ladder.message(name)
        if self._fence is not None:
            action, message = FORCE_RETURN, self._fence
        elif self._return_requested and action != FORCE_RETURN:
            action, message = FORCE_RETURN, _RETURN_REQUESTED
        record.action = action
        self.action = ThresholdAction(
            as_level(name or Level.UNKNOWN), action, message, note=self.note
        )

    @property
    def returns_on_request(self) -> bool:
        """Whether the agent should return only because an orchestrator asked."""
        return self._return_requested and self.action.message == _RETURN_REQUESTED

    def request_return(self, requested: bool) -> bool:
        """Ask for a return whatever the level, or no longer; return whether that is new."""
        is_new = requested != self._return_requested
        self._return_requested = requested
        self._set_level()
        return is_new

    def fence(self, message: str) -> None:
        """Ask for a return for good: the agent belongs to another owner now."""
        self._fence = message
        self._set_level()

    @property
    def announced(self) -> dict[str, int]:
        """How often each rung was reached in this epoch."""
        rungs: dict[str, int] = self.record.announced["rungs"]
        return rungs

    @property
    def tokens(self) -> int:
        """Tokens in the window now."""
        return self._tracker.tokens

    @property
    def level(self) -> str | None:
        """The level, None while usage or limit is unknown."""
        return self.record.threshold_status

    def event(self, kind: str, **details: Any) -> None:
        """Keep a fact for `decide`; the monitor makes its events itself."""
        self._compacts |= details.get("reason") == "compaction"
        self._facts.append((kind, details))

    def add(self, text: str, source: str | None) -> bool:
        """Count text; return whether the level may have to change."""
        record, tracker = self.record, self._tracker
        is_first = record.measured_at is None
        tracker.add(text, source)
        record.measured_at = now = self._clock.now()
        tokens = tracker.tokens
        self._history.record(tokens, now, reported=False)
        return is_first or (self._act_at_tokens is not None and tokens >= self._act_at_tokens)

    def recount(self, given: int | Iterable[str]) -> None:
        """Take an estimate of the whole window: a count, or the texts in it.

        In an epoch in which a provider has reported only a larger number counts: texts do not hold
        all that it counted.
        """
        tracker, now = self._tracker, self._clock.now()
        texts = [] if isinstance(given, int) else list(given)
        tokens = given if isinstance(given, int) else sum(map(tracker.estimate, texts))
        if tracker.source != "estimated" and tokens <= tracker.tokens:
            return
        tracker.start_epoch(given if isinstance(given, int) else 0, now)
        for text in texts:
            tracker.add(text, MESSAGES)
        self.record.measured_at = now
        self._history.record(tracker.tokens, now, reported=False)

    def report(
        self, tokens: int, output_tokens: int, window_tokens: int | None, at: float | None
    ) -> None:
        """Take a provider's count, which may show that a new epoch began.

        One older than this epoch or the last reading is stale and changes nothing. A count of
        nothing is no reading; a window that comes with it is believed. A time that has not come
        yet counts as now.
        """
        if at is not None and 0 <= at <= self._now() and self.is_stale(at):
            return
        if window_tokens is not None and window_tokens != self.memory.observed_tokens:
            self._observe_window(window_tokens)
        self._accept(tokens, output_tokens, at)

    def _observe_window(self, window_tokens: int) -> None:
        previous = self.memory.observed_tokens
        self.memory.observed_tokens = window_tokens
        try:
            self._resolve()
        except ConfigurationError:
            # A window smaller than the reserved output cannot be meant.
            self.memory.observed_tokens = previous

    def overflow(self, sent_tokens: int | None, window_tokens: int | None) -> None:
        """Take a provider's refusal as a full window, and believe the size that it names."""
        if window_tokens is not None:
            self._observe_window(window_tokens)
        full = max(sent_tokens or 0, self.record.context_limit or 0, self.tokens)
        if full:
            now = self._clock.now()
            self._tracker.report(full, 0, now)
            self.record.measured_at = now

    def set_model(self, model: str | None) -> None:
        """Change the model: another window, another tokenizer; what was observed is forgotten.

        Raises:
            ConfigurationError: The reserved output leaves nothing of the new window.
        """
        memory, former_model = self.memory, self.record.model
        former = memory.observed_tokens, memory.highest_tokens
        self.record.model = model
        # What the former model held neither states nor disproves the new one's window.
        memory.observed_tokens, memory.highest_tokens = None, 0
        try:
            self._resolve()
        except ConfigurationError:
            self.record.model = former_model
            memory.observed_tokens, memory.highest_tokens = former
            self._resolve()
            raise
        if self.config.tokenizer_family is None:
            from ultramon.context.estimator import family_for_model

            self._tracker.family = family_for_model(model)

    def set_host_limits(self, window_tokens: int | None, trigger_tokens: int | None) -> None:
        """Take the window of the framework, and where it compacts by itself.

        Raises:
            ConfigurationError: The reserved output leaves nothing of the window.
        """
        memory = self.memory
        former = memory.window_tokens, memory.trigger_tokens
        memory.window_tokens, memory.trigger_tokens = window_tokens, trigger_tokens
        try:
            self._resolve()
        except ConfigurationError:
            memory.window_tokens, memory.trigger_tokens = former
            self._resolve()
            raise
        self._compacts |= trigger_tokens is not None

    def decide(self) -> list[tuple[str, dict[str, Any]]]:
        """Move the level to where the reading puts it.

        Returns:
            Kind and details of what has happened since the last decision: an epoch began, the
            level changed.
        """
        self._decide()
        facts, self._facts = self._facts, []
        return facts

    def changed_action(self) -> ThresholdAction:
        """Return the present action as a change, with its note as it is now."""
        steady = self.action
        return ThresholdAction(
            steady.level, steady.action, steady.message, changed=True, note=self.note()
        )

    def fits(self, more: str | int) -> Fit:
        """Say what would happen if so much more entered the window."""
        if isinstance(more, str):
            after = self._tracker.tokens_with(self._tracker.estimate(more))
        else:
            after = self._tracker.tokens_with(0.0) + more
        fit = fit_more(after, self.record.context_limit, self.ladder, self._level)
        if self._tracker.is_lower_bound and fit.level_after == self.ladder.base:
            return fit._replace(level_after=None)
        return fit

    def note(self) -> str:
        """Return the facts as they are now, for the agent's own context."""
        record = self.record
        candidates, measured_at = record.limit_candidates or (), record.measured_at
        return write_note(
            self.tokens,
            record.context_limit,
            reading=None if measured_at is None else (self._tracker.source, measured_at),
            now=self._clock.now(),
            is_lower_bound=self._tracker.is_lower_bound,
            limit_name=next((c["name"] for c in candidates if c["verdict"] == "binding"), None),
            window_tokens=record.context_window,
            compacts=self._compacts,
            pace=self.describe_pace(),
            tasks=self._count_tasks(),
            action=record.action,
            critical_note=self.config.critical_note,
            rounds=self.ladder.round_percent,
            is_assumed=is_assumed(record.limit_source),
        )

    def snapshot(self) -> StateRecord:
        """Return a copy of the state as it is now."""
        self._show()
        record = copy(self.record)
        record.announced = {"epoch": record.epoch, "rungs": dict(self.announced)}
        return record

    def restore(self, record: StateRecord) -> None:
        """Continue the window of an owner that vanished: same epoch, level and announcements."""
        for name in _RESTORED:
            setattr(self.record, name, getattr(record, name))
        is_same = record.announced.get("epoch") == record.epoch
        rungs = dict(record.announced["rungs"]) if is_same else {}
        self.record.announced = {"epoch": record.epoch, "rungs": rungs}
        self.memory.readings_after = record.epoch_started_at
        for candidate in record.limit_candidates or ():
            tokens = candidate["tokens"]
            if candidate["source"] == "observed":
                self.memory.observed_tokens = tokens
            # More than that was reported; how much more is not stored.
            if candidate["verdict"] == "not_believed":
                self.memory.highest_tokens = max(self.memory.highest_tokens, tokens + 1)
        self._load()
        self._resolve()

    def move_to_epoch(self, epoch: int) -> None:
        """Count this filling of the window as another one of the agent."""
        self.record.epoch = epoch
        self.record.announced = {"epoch": epoch, "rungs": self.announced}

    def begin_after(self, record: StateRecord) -> None:
        """Start a fresh window of an agent that ended before under the same id."""
        self.move_to_epoch(record.epoch + 1)
        self._tracker.start_epoch(0, self.record.epoch_started_at)


def _limits_of(config: ContextConfig) -> dict[str, Any]:
    """Return what a configuration says to `ultramon.context.limits.resolve_limit`."""
    return {
        "explicit_limit_tokens": config.context_limit_tokens,
        "explicit_window_tokens": config.context_window_tokens,
        "reserved_output_tokens": config.reserved_output_tokens,
        "default_window_tokens": config.default_window_tokens,
    }


def fit_more(tokens_after: int, limit_tokens: int | None, ladder: Ladder, level: str | None) -> Fit:
    """Say whether a window may hold so many tokens.

    Args:
        tokens_after: Tokens in the window then.
        limit_tokens: The context limit; None = unknown, so that everything may.
        ladder: The rungs.
        level: The level now; None = unknown.
    """
    if limit_tokens is None:
        return Fit(True, None, 0)
    resolved = ladder.resolve(limit_tokens)
    name = next_level(level, tokens_after / limit_tokens, resolved) or ladder.base
    rung = ladder.rung(name)
    returns = rung is not None and rung.action == FORCE_RETURN
    is_fine = tokens_after <= limit_tokens and not returns
    return Fit(is_fine, as_level(name), max(0, tokens_after - limit_tokens))
