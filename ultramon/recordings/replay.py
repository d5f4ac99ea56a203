"""Feeds one recording through a gauge, at the times that it recorded."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from ultramon.context.config import ContextConfig
from ultramon.context.ladder import CLAUDE_CODE_LADDER
from ultramon.context.monitor_gauge import MonitorGauge
from ultramon.recordings import timeline
from ultramon.recordings.recordings import JSON_LINES, TEXT, read_records
from ultramon.recordings.series import Series
from ultramon.recordings.summary import Follower, Summarizer
from ultramon.recordings.transcript_summary import TranscriptSummary
from ultramon.recordings.usage import is_possible
from ultramon.state.models import utc
from ultramon.state.record import StateRecord
from ultramon.state.runway import Runway

if TYPE_CHECKING:
    from datetime import datetime

    from ultramon.hosts.transcripts.records import Boundary, Content, Overflow, Report, Window
    from ultramon.recordings.recordings import Recording

_THRESHOLDS = (
    "warning_threshold",
    "critical_threshold",
    "warning_tokens_left",
    "critical_tokens_left",
    "rearm_margin",
)
_MAX_NAME_CHARS = 120


class ReplayClock:
    """The time of the recording; it never goes back."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return epoch seconds of the latest record so far, 0.0 before the first with a time."""
        return self._now

    def monotonic(self) -> float:
        """Return the same: recorded time only grows here."""
        return self._now

    def advance_to(self, at: float | None) -> None:
        """Advance to the time of a record; a record without a time, or an earlier one, waits."""
        if is_possible(at) and self._now <= at:
            self._now = at

    def stamp(self) -> datetime | None:
        """Return the time for people, None while no record had one."""
        return utc(self._now) if self._now else None


class _Replay(Follower):
    """One agent on its way through a gauge, which follows the sum of its transcript."""

    def __init__(self, recording: Recording, config: ContextConfig) -> None:
        self._recording = recording
        self._clock = ReplayClock()
        self._fixed_model = config.model is not None
        self._model = config.model or recording.model
        # The table of a host's own windows is asked for the model, as in a hook.
        record = StateRecord("", host=recording.kind)
        self._gauge = MonitorGauge(config, self._clock, record=record)
        self._series = Series(timeline.MAX_POINTS)
        self._last_report_tokens = 0
        self._highest_estimate_tokens = 0
        self._level = config.effective_ladder.base
        self._events: defaultdict[type[timeline.Event], list[Any]] = defaultdict(list)
        self._event_counts: Counter[type[timeline.Event]] = Counter()

    def run(self) -> timeline.Timeline:
        if self._model is not None:
            self._use_model(self._model)
        recording, count = self._recording, 0
        summary = TranscriptSummary(recording.kind, recording.id, model=self._model)
        fold = Summarizer(summary, follower=self)
        for count, record in enumerate(read_records(recording), 1):  # noqa: B007 - used behind it
            fold.feed(record)
        return self._timeline(fold.finish(), count)

    def on_report(self, report: Report) -> None:
        """Take a report, and the model that it names."""
        self._clock.advance_to(report.at)
        model = report.requested_model or report.model
        if model is not None and model != self._model and not self._fixed_model:
            self._use_model(model)
        # Only a lower report can be a fall, and only before it is taken is the old epoch whole.
        before = self._gauge.snapshot() if report.tokens < self._last_report_tokens else None
        self._gauge.report(report.tokens, report.output_tokens, None, None)
        self._gauge.decide()
        self._last_report_tokens = report.tokens
        if before is not None and before.epoch != self._gauge.record.epoch:
            self._begin_epoch(before, "fall", None, report.tokens)
        self._take_reading(report.tokens)

    def on_text(self, content: Content) -> None:
        """Estimate a text."""
        self._clock.advance_to(content.at)
        if self._gauge.add(content.text, content.source[:_MAX_NAME_CHARS]):
            self._gauge.decide()
        self._take_reading(self._gauge.tokens)

    def on_window(self, window: Window) -> None:
        """Take the window that the host states."""
        # A report of zero tokens is no reading: only its window is taken.
        self._gauge.report(0, 0, window.tokens, None)
        self._gauge.decide()

    def on_overflow(self, overflow: Overflow) -> None:
        """List a refusal; what was sent is not known, so it is no reading."""
        self._clock.advance_to(overflow.at)
        self._list(timeline.Overflow, tokens=self._gauge.tokens)

    def on_boundary(self, boundary: Boundary) -> None:
        """Begin an epoch."""
        self._clock.advance_to(boundary.at)
        before, left = self._gauge.snapshot(), boundary.post_tokens
        self._gauge.begin_epoch("compaction", left)
        self._gauge.decide()
        self._begin_epoch(before, "boundary", boundary.trigger, left)
        # After a compaction the next report is lower, which is no second fall.
        self._last_report_tokens = 0
        self._take_reading(left or 0)

    @property
    def state(self) -> StateRecord:
        """The state as it is now."""
        return self._gauge.snapshot()

    def _use_model(self, model: str) -> None:
        self._model = model
        self._gauge.set_model(model[:_MAX_NAME_CHARS])

    def _begin_epoch(
        self, before: StateRecord, reason: str, trigger: str | None, left: int | None
    ) -> None:
        self._note_highest(before)
        self._level = self._gauge.ladder.base
        self._list(
            timeline.Compaction,
            reason=reason,
            trigger=trigger,
            tokens_before=before.estimated_tokens,
            tokens_after=left,
        )

    def _note_highest(self, state: StateRecord) -> None:
        self._highest_estimate_tokens = max(self._highest_estimate_tokens, state.estimated_tokens)

    def _take_reading(self, tokens: int) -> None:
        """Take a reading, and list a rung that it reached; a fall only lowers the mark."""
        level, previous, ratio = self._gauge.level, self._level, self._gauge.least_ratio
        if level is not None and level != previous and ratio is not None:
            self._level = level
            if self._gauge.rank(level) > self._gauge.rank(previous):
                self._cross(level, previous, ratio)
        self._series.add(tokens)

    def _cross(self, level: str, previous: str, ratio: float) -> None:
        state = self._gauge.snapshot()
        ladder = self._gauge.ladder.resolve(state.context_limit)
        next_rung = next(iter(ladder.names[ladder.rank(level) + 1 :]), None)
        runway = Runway.of(state.forecast["rungs"].get(next_rung) if state.forecast else None)
        self._list(
            timeline.Crossing,
            level=level,
            previous_level=previous,
            action=state.action,
            tokens=state.estimated_tokens,
            tokens_source=state.tokens_source,
            usage_ratio=round(ratio, 6),
            context_limit=state.context_limit,
            next_rung=next_rung,
            turns_left=None if runway is None else runway.turns,
            turns_low=None if runway is None else runway.low,
            turns_high=None if runway is None else runway.high,
        )

    def _list(self, kind: type[timeline.Event], **facts: Any) -> None:
        """List an event of this moment; of a thousand and more of a kind only count them."""
        self._event_counts[kind] += 1
        if self._event_counts[kind] <= timeline.MAX_EVENTS:
            at, position = self._clock.stamp(), self._series.count
            self._events[kind].append(kind(at=at, position=position, **facts))

    def _timeline(self, summary: TranscriptSummary, record_count: int) -> timeline.Timeline:
        state = self._gauge.snapshot()
        self._note_highest(state)
        started, limit = summary.started_at, state.context_limit or 0
        by_source = Counter({name: round(n) for name, n in summary.tokens_by_source.items()})
        return timeline.Timeline(
            id=self._recording.id,
            kind=self._recording.kind,
            path=self._recording.paths[0],
            model=state.model,
            context_limit=state.context_limit,
            context_window=state.context_window,
            limit_source=state.limit_source,
            limit_suspect=state.limit_suspect,
            round_percent=self._gauge.ladder.round_percent,
            rungs=tuple(
                timeline.RungLine(
                    name=rung.name,
                    action=rung.action,
                    usage_ratio=rung.nominal_ratio,
                    tokens=rung.tokens(limit),
                )
                for rung in (self._gauge.ladder.resolve(limit).rungs if limit else ())
            ),
            started_at=None if started is None else utc(started),
            ended_at=self._clock.stamp(),
            records=record_count,
            reports=summary.reports,
            broken_lines=summary.broken_lines,
            peak_tokens=summary.peak_tokens or self._highest_estimate_tokens,
            peak_source="reported" if summary.peak_tokens else "estimated",
            epochs=state.epoch,
            crossings=tuple(self._events[timeline.Crossing]),
            crossing_count=self._event_counts[timeline.Crossing],
            compactions=tuple(self._events[timeline.Compaction]),
            compaction_count=self._event_counts[timeline.Compaction],
            overflows=tuple(self._events[timeline.Overflow]),
            overflow_count=self._event_counts[timeline.Overflow],
            by_source={source: held for source, held in by_source.most_common() if held},
            points=tuple(self._series.points),
            readings=self._series.count,
            readings_per_point=self._series.stride,
        )


def replay(recording: Recording, config: ContextConfig | None = None) -> timeline.Timeline:
    """Feed one recording through a gauge, at the times that it recorded.

    Memory does not grow with the recording. Text that came between a response and a later
    correction of its usage stays counted, the correction then shows in the peak only.

    Args:
        recording: From `ultramon.recordings.find_recordings`.
        config: Limits and thresholds; None = from environment, file and defaults. A model named
            here outranks the recorded one; thresholds that it leaves out are those of the host that
            wrote the recording.

    Raises:
        OSError: The recording cannot be read.
        ConfigurationError: The reserved output leaves nothing of a model's window.
    """
    # A recording may be of any project, so what the one in the working directory says is left out.
    config = (config or ContextConfig()).without_project
    return _Replay(recording, _judged_by_host(config, recording.kind)).run()


def state_at_end(recording: Recording) -> StateRecord:
    """Return the state that hooks would have stored with the last record of a recording.

    It is no active one, as nothing reports it. Raises as `replay`.
    """
    config = ContextConfig().without_project
    one = _Replay(recording, _judged_by_host(config, recording.kind))
    timeline = one.run()
    record = one.state
    record.agent_id = recording.id
    record.session_id = recording.id.partition(".")[0]
    for name, at in (("started_at", timeline.started_at), ("last_activity", timeline.ended_at)):
        setattr(record, name, 0.0 if at is None else at.timestamp())
    record.last_heartbeat = record.last_activity
    return record


def _judged_by_host(config: ContextConfig, kind: str) -> ContextConfig:
    """Return a configuration with the thresholds of a host where it has none of its own."""
    if kind in (JSON_LINES, TEXT) or "ladder" in config.sources:
        return config
    if config.sources.keys().isdisjoint(_THRESHOLDS):
        return config.replace(ladder=CLAUDE_CODE_LADDER)
    ratios = {f"{rung.name}_threshold": rung.ratio for rung in CLAUDE_CODE_LADDER.rungs}
    return config.replace(
        **{name: ratio for name, ratio in ratios.items() if name not in config.sources}
    )
