"""The gauge of one agent: readings in; limit, level and epochs out.

Standard library only and cheap: every hook loads it. It keeps numbers in a stored record and sees
no text: a tracker makes readings of text, and a decider picks the level.
"""

from __future__ import annotations

from itertools import pairwise

from ultramon.context.forecast import TurnHistory, forecast
from ultramon.context.ladder import NONE, next_level

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ultramon.context.ladder import Ladder, ResolvedLadder
    from ultramon.context.tracker import ContextTracker
    from ultramon.state.models import AgentState
    from ultramon.state.record import StateRecord

    Positive = int
    Place = tuple[int, int, int]
    Decide = Callable[[str | None, float | None, ResolvedLadder], str | None]

CLOCK_SLACK_SECONDS = 5.0
"""How far ahead the last reading may lie; one that lies further shows a clock that was set back."""
NEAR_RATIO = 0.10
"""Within this share of the limit before a rung, a reading that lags is worth waiting for."""
NEAR_TURNS = 18
"""A reading within twice the longest of so many last steps before a rung is worth it, too."""


def is_lower_bound(record: StateRecord | AgentState) -> bool:
    """Return whether more than the tokens of a state may be in the window."""
    # Only a compaction of unknown size leaves a later epoch without an anchor and a ratio.
    return record.anchor is None and record.epoch > 1 and record.usage_ratio is None


def known_tokens(record: StateRecord | AgentState) -> int | None:
    """Return the tokens in the window; None before a reading, or where a share alone is known."""
    is_share = record.usage_ratio is not None and record.context_limit is None
    return None if record.measured_at is None or is_share else record.estimated_tokens


class GaugeMemory:
    """What a gauge keeps beside the state's own fields; subclasses say where.

    Attributes:
        window_tokens: The window as the host reports it, or None.
        trigger_tokens: Where the host compacts by itself, or None.
        refusal_tokens: Where a host that does not compact refuses requests, or None.
        observed_tokens: The window that the provider stated, or None.
        likely_tokens: Where the host was seen to compact by itself, or None: no limit, a forecast.
        likely_seen: How often it was seen there.
        highest_tokens: The highest count that was reported.
        turns: ``[tokens, epoch seconds]`` of the readings of this epoch, oldest first.
        readings_after: Epoch seconds; older readings belong to a window that is gone.
        reading_file: Names the file of the last reading of this epoch, or None.
        reading_end: Where in that file it ends, in bytes.
    """

    window_tokens: Positive | None
    trigger_tokens: Positive | None
    refusal_tokens: Positive | None
    observed_tokens: Positive | None
    likely_tokens: Positive | None
    likely_seen: int
    highest_tokens: int
    turns: list[list[float]]
    readings_after: float
    reading_file: Positive | None
    reading_end: int


class Gauge:
    """The readings of one agent, kept in its state.

    Args:
        record: The state; changed in place.
        ladder: The rungs.
        tracker: Holds what is in the window now.
        now: Returns epoch seconds.
        memory: What is kept beside the state's own fields; changed in place.
        settings: Further arguments of `ultramon.context.limits.resolve_limit`, by name.
        decide: Returns the level after a reading, as `next_level`. A monitor passes its machine.
        falls_begin_epochs: Whether a fall that only a compaction explains starts an epoch. False
            where the source announces its compactions itself, so that a fall is just a number.
        takes_repeats: Whether a reading with the time of the last one is taken. True for hooks:
            those that run in parallel all read the same record. False for a monitor, whose caller
            reports each response once: an equal time is a late copy.

    Attributes:
        events: What happened, to be stored with the state.
    """

    def __init__(
        self,
        record: StateRecord,
        ladder: Ladder,
        tracker: ContextTracker,
        now: Callable[[], float],
        *,
        memory: GaugeMemory,
        settings: dict[str, Any] | None = None,
        decide: Decide = next_level,
        falls_begin_epochs: bool = True,
        takes_repeats: bool = False,
    ) -> None:
        self.record = record
        self.ladder = ladder
        self.memory = memory
        self.events: list[dict[str, Any]] = []
        self._tracker = tracker
        self._now = now
        self._settings = settings or {}
        self._next_level = decide
        self._falls_begin_epochs = falls_begin_epochs
        self._takes_repeats = takes_repeats
        self._share: float | None = None
        self._load()

    def _load(self) -> None:
        """Continue from the record."""
        record = self.record
        self._tracker.restore(record)
        self._tracker.is_lower_bound = is_lower_bound(record)
        self._history = TurnHistory(list(self.memory.turns))
        self.memory.turns = self._history.turns  # which changes it in place
        self._resolved = self.ladder.resolve(record.context_limit)
        self._is_set = False
        announced = record.announced
        rungs = announced["rungs"] if announced.get("epoch") == record.epoch else {}
        names = self.ladder.names
        # Stored as null while the limit is unknown: then the highest rung announced is the level.
        reached = [record.threshold_status] if record.threshold_status else rungs
        self._level = max(
            (name for name in names if name in reached), key=names.index, default=names[0]
        )

    def event(self, kind: str, **details: Any) -> None:
        """Note an event of this agent.

        Its number is that of the state it is stored with: a hook that is killed between the two
        writes makes the same event again at its next call, and it is stored once.
        """
        record = self.record
        self.events.append(record.event(kind, at=self._now(), n=record.seq, **details))

    @property
    def least_ratio(self) -> float | None:
        """Tokens by limit, 0.0 and more, not clamped; after a compaction maybe a lower bound.

        None before the first reading of the epoch, and while the limit is unknown.
        """
        limit = self.record.context_limit
        if limit is None or self.record.measured_at is None:
            return self._share
        return self._tracker.tokens / limit

    @property
    def usage_ratio(self) -> float | None:
        """`least_ratio`, but None where that is only a lower bound."""
        return None if self._tracker.is_lower_bound else self.least_ratio

    def resolve_limit(self) -> None:
        """Work the limit out anew, after the model or a number of the host has changed."""
        self._resolve()
        self._show()
        self._decide()

    def _resolve(self) -> None:
        from ultramon.context.limits import resolve_limit

        record, memory = self.record, self.memory
        resolve_limit(
            record,
            host_window_tokens=memory.window_tokens,
            host_trigger_tokens=memory.trigger_tokens,
            host_refusal_tokens=memory.refusal_tokens,
            observed_window_tokens=memory.observed_tokens,
            suspect_above_tokens=memory.highest_tokens,
            **self._settings,
        )
        self._resolved = self.ladder.resolve(record.context_limit)
        record.ladder = self.ladder.to_json()
        record.ladder_status = self._resolved.status
        self._set_level()

    def is_stale(self, at: float, place: Place | None = None) -> bool:
        """Return whether a reading is older than this window or than the last reading.

        Args:
            at: When it was made, epoch seconds.
            place: Where it stands; in the file of the last reading that says what is newer.
        """
        if (is_newer := self._follows(place)) is not None:
            return not is_newer
        newest = max(self.memory.readings_after, self._tracker.anchor_at or 0.0)
        # Where the clock was set back, the last reading bears a time that is yet to come.
        if newest > self._now() + CLOCK_SLACK_SECONDS:
            return False
        return at < newest or (at == newest and not self._takes_repeats)

    def _follows(self, place: Place | None) -> bool | None:
        """Return whether a reading stands behind the last one, None where only times can say.

        A file grows at its end, and a clock may step back between two of its lines.
        """
        memory = self.memory
        if place is None or place[0] != memory.reading_file:
            return None
        _, end, size = place
        if end == memory.reading_end or size < memory.reading_end:
            return None  # the same reading, or a file that was written anew
        return end > memory.reading_end

    def take(
        self,
        tokens: int,
        output_tokens: int = 0,
        at: float | None = None,
        place: Place | None = None,
    ) -> bool:
        """Take a count of what is in the window and decide the level; False = not taken.

        Args:
            tokens: Input side of the last response: new and cached. 0 is no reading.
            output_tokens: The reply to it.
            at: When it was made, epoch seconds; a stale one is not taken. None = now, and so is a
                time that has not come yet.
            place: Where it stands, see `LastReading.place` of the hosts; None = in no file.
        """
        if not self._accept(tokens, output_tokens, at, place):
            return False
        if place is not None:
            self.memory.reading_file, self.memory.reading_end = place[:2]
        self._show()
        self._decide()
        return True

    def take_share(self, ratio: float) -> None:
        """Take a share of the limit, 0.0 and more, without tokens: how many they are is unknown."""
        self.record.measured_at = self._now()
        # No tokens: a share of a limit that is not known cannot be converted.
        self._tracker.report(0)
        self._share = ratio
        self._show()
        self._decide()

    def _accept(
        self, tokens: int, output_tokens: int, at: float | None, place: Place | None = None
    ) -> bool:
        now = self._now()
        if at is None or not 0 <= at <= now:
            at = now
        elif self.is_stale(at, place):
            return False
        elif at < (self._tracker.anchor_at or 0.0):
            at = now  # newer all the same: the clock was set back between the two
        if tokens <= 0:
            return False
        record, memory = self.record, self.memory
        if self._falls_begin_epochs and self._tracker.has_fallen(tokens):
            self.begin_epoch("fall", tokens, at)
        self._tracker.report(tokens, output_tokens, at)
        record.measured_at = at
        self._history.record(tokens, at, reported=True)
        if tokens > memory.highest_tokens:
            memory.highest_tokens = tokens
            if record.limit_suspect or tokens > (record.context_window or tokens):
                self._resolve()
        return True

    def begin_epoch(
        self, reason: str, tokens_after: int | None = None, at: float | None = None
    ) -> None:
        """Start a new filling of the window: level, reading and forecast of the old one go.

        Args:
            reason: ``compaction``, ``clear`` or ``fall``.
            tokens_after: What is in it already; None = unknown.
            at: When it began, epoch seconds; None = now. Older readings are not taken any more.
        """
        record = self.record
        at = self._now() if at is None else at
        before = self._tracker.tokens
        record.epoch += 1
        record.epoch_started_at = self.memory.readings_after = at
        record.measured_at = None if tokens_after is None else at
        record.announced = {"epoch": record.epoch, "rungs": {}}
        # Assigned only where it is set: hooks store every member that is assigned.
        if self.memory.reading_file is not None:
            self.memory.reading_file = None
        self._tracker.start_epoch(tokens_after, at)
        self._history.clear()
        self._level = self.ladder.base
        self._show()
        self._set_level()
        self.event(
            "context_epoch_started", reason=reason, tokensBefore=before, tokensAfter=tokens_after
        )

    def _show(self) -> None:
        """Write the reading into the record."""
        record, tracker = self.record, self._tracker
        record.cumulative_chars = tracker.cumulative_chars
        record.estimated_tokens = tracker.tokens
        record.tokens_source = tracker.source
        record.anchor = tracker.to_json()
        record.by_source = {name: round(tokens) for name, tokens in tracker.by_source.items()}
        ratio = self.usage_ratio
        record.usage_ratio = None if ratio is None else round(ratio, 6)
        record.forecast = self.forecast()

    def _set_level(self) -> None:
        """Write the level into the record: null while unknown, whatever was reached before."""
        record = self.record
        is_reached = record.context_limit is not None and self._level != self.ladder.base
        is_known = is_reached or self.usage_ratio is not None
        rung = self.ladder.rung(self._level) if is_known else None
        record.threshold_status = self._level if is_known else None
        record.action = rung.action if rung else NONE
        self._is_set = True

    def _decide(self) -> None:
        """Move the level to where the reading puts it."""
        record, resolved, ratio = self.record, self._resolved, self.least_ratio
        level = previous = self._level
        is_bound = self._tracker.is_lower_bound
        # A lower bound reaches rungs and relaxes none; an unknown ratio does neither.
        if ratio is not None and not (is_bound and resolved.rank_at(ratio) <= self.rank(previous)):
            level = self._next_level(previous, ratio, resolved) or previous
        if level == previous:
            # A known level that stays needs nothing new, once this process has set it.
            if not (self._is_set and level == record.threshold_status and ratio is not None):
                self._set_level()
            return
        self._level = level
        self._set_level()
        names = self.ladder.names  # also those that the limit drops
        is_rise = names.index(level) > names.index(previous)
        # Imported here: most calls of a hook change no level.
        from ultramon.context.level_words import share_of
        from ultramon.state.level_share import share_facts

        if is_rise:
            rungs = record.announced["rungs"]
            rungs[level] = rungs.get(level, 0) + 1
        self.event(
            "context_threshold_reached" if is_rise else "context_relaxed",
            level=level,
            previousLevel=previous,
            action=record.action,
            usageRatio=round(ratio or 0.0, 6),
            tokens=None if record.context_limit is None else self._tracker.tokens,
            contextLimit=record.context_limit,
            tokensSource=self._tracker.source,
            **share_facts(share_of(level, record.ladder, record.context_limit)),
            **({"roundPercent": True} if self.ladder.round_percent else {}),
        )

    def forecast(self) -> dict[str, Any] | None:
        """Return the pace and what remains before each rung, None when unknowable."""
        limit = None if self.usage_ratio is None else self.record.context_limit
        likely, memory = None, self.memory
        # At the limit itself there is nothing that the limit does not say.
        if limit is not None and memory.likely_tokens is not None and memory.likely_tokens < limit:
            likely = memory.likely_tokens, memory.likely_seen
        return forecast(
            self._history,
            self._tracker.tokens,
            limit,
            self._resolved,
            likely,
            host=self.record.host,
        )

    def is_near(self, tokens: int) -> bool:
        """Return whether a reading that lags by one call matters.

        The next call may reach a rung; above the last one each reading may be among the final ones.
        """
        limit = self.record.context_limit
        if limit is None or not self._resolved.rungs:
            return False
        ratio = self._resolved.next_ratio(self._level)
        if ratio is None:
            return True
        turns = [turn[0] for turn in self._history.turns[-NEAR_TURNS:]] + [tokens]
        steps = [after - before for before, after in pairwise(turns)]
        stride = max(NEAR_RATIO * limit, 2 * max(steps, default=0))
        return tokens + stride >= ratio * limit

    @property
    def first_ratio(self) -> float:
        """The usage ratio at which the lowest rung is reached."""
        return self._resolved.rungs[0].ratio

    def rank(self, level: str) -> int:
        """Return the height of a level on the ladder."""
        return self._resolved.rank(level)

    def describe_pace(self) -> str:
        """Return a sentence about the turns left before the next rung; empty when unknown."""
        from ultramon.context.note import describe_pace

        limit, tokens = self.record.context_limit, self._tracker.tokens
        return describe_pace(self.forecast(), self._resolved, self._level, tokens, limit)
