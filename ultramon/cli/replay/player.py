"""Feeds one recording through a gauge, at the times that it recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.cli.replay.recordings import read_records
from ultramon.cli.replay.timeline import (
    MAX_EVENTS,
    UNRECORDED,
    Compaction,
    Crossing,
    RungLine,
    Series,
    Timeline,
)
from ultramon.cli.replay.timeline import Overflow as ShownOverflow
from ultramon.context.config import ContextConfig
from ultramon.context.ladder import CLAUDE_CODE_LADDER, Ladder
from ultramon.context.limits import window_for_model
from ultramon.context.monitor_gauge import MonitorGauge
from ultramon.hosts.claude_code import NAME as CLAUDE_CODE
from ultramon.hosts.records import Boundary, Broken, Content, Overflow, Report, Window
from ultramon.state.models import utc
from ultramon.state.record import StateRecord

if TYPE_CHECKING:
    from datetime import datetime

    from ultramon.cli.replay.recordings import Recording
    from ultramon.hosts.records import Record

_THRESHOLDS = (
    "warning_threshold",
    "critical_threshold",
    "warning_tokens_left",
    "critical_tokens_left",
    "rearm_margin",
)
_LAST_TIME = 253_402_214_400.0
_MAX_NAME_CHARS = 120


class ReplayClock:
    """The time of the recording; it never goes back."""

    def __init__(self) -> None:
        self._now = 0.0
        self.started_at: float | None = None

    def now(self) -> float:
        """Return epoch seconds of the latest record so far, 0.0 before the first with a time."""
        return self._now

    def monotonic(self) -> float:
        """Return the same: recorded time only grows here."""
        return self._now

    def advance_to(self, at: float | None) -> None:
        """Go on to the time of a record; a record without a time, or an earlier one, waits."""
        if at is not None and self._now <= at < _LAST_TIME:
            self._now = at
            if self.started_at is None:
                self.started_at = at

    def stamp(self) -> datetime | None:
        """Return the time for people, None while no record had one."""
        return None if self.started_at is None else utc(self._now)


class _Replay:
    """One agent on its way through a gauge."""

    def __init__(self, recording: Recording, config: ContextConfig) -> None:
        self._recording = recording
        self._clock = ReplayClock()
        self._fixed_model = config.model is not None
        self._model = config.model or recording.model
        self._gauge = MonitorGauge(config, self._clock)
        self._series = Series()
        self._held: Report | None = None
        self._last_report_tokens = 0
        self._highest_report_tokens = 0
        self._highest_estimate_tokens = 0
        self._records = self._reports = self._broken = 0
        self._left_by_compaction = 0
        self._level = config.effective_ladder.base
        self._crossings: list[Crossing] = []
        self._crossing_count = 0
        self._compactions: list[Compaction] = []
        self._compaction_count = 0
        self._overflows: list[ShownOverflow] = []
        self._overflow_count = 0
        self._by_source: dict[str, int] = {}

    def run(self) -> Timeline:
        if self._model is not None:
            self._use_model(self._model)
        for record in read_records(self._recording):
            self._records += 1
            self._feed(record)
        self._flush()
        state = self._state()
        self._close_epoch(state)
        return self._timeline(state)

    def _state(self) -> StateRecord:
        state = StateRecord("")
        self._gauge.fill(state)
        return state

    def _feed(self, record: Record) -> None:
        if isinstance(record, Report):
            self._hold(record)
        elif isinstance(record, Content):
            if not record.counted:
                self._flush()
                self._clock.advance_to(record.at)
                if self._gauge.add(record.text, record.source[:_MAX_NAME_CHARS]):
                    self._gauge.decide()
                self._series.add(lambda: self._gauge.tokens)
                self._note()
        elif isinstance(record, Boundary):
            self._flush()
            self._clock.advance_to(record.at)
            self._compact(record)
        elif isinstance(record, Window):
            self._observe_window(record.tokens)
        elif isinstance(record, Overflow):
            self._flush()
            self._clock.advance_to(record.at)
            self._overflow()
        elif isinstance(record, Broken):
            self._broken += 1

    def _hold(self, report: Report) -> None:
        """Keep a report until its corrections are in; they follow it line by line."""
        self._highest_report_tokens = max(self._highest_report_tokens, report.tokens)
        if report.update:
            # After other text the correction would take that text's place; the next report is near.
            if self._held is not None:
                self._held = report
            return
        self._flush()
        self._held = report
        self._reports += 1

    def _flush(self) -> None:
        report, self._held = self._held, None
        if report is None:
            return
        self._clock.advance_to(report.at)
        model = report.requested_model or report.model
        if model is not None and model != self._model and not self._fixed_model:
            self._use_model(model)
        # Only a lower report can be a fall, and only before it is taken is the old epoch whole.
        before = self._state() if report.tokens < self._last_report_tokens else None
        started = self._gauge.report(report.tokens, report.output_tokens, None, None)
        self._gauge.decide()
        self._last_report_tokens = report.tokens
        if before is not None and started is not None:
            self._close_epoch(before)
            self._begin_epoch("fall", None, before.estimated_tokens, report.tokens)
        self._series.add(lambda: report.tokens, exact=True)
        self._note()

    def _compact(self, boundary: Boundary) -> None:
        before = self._state()
        self._close_epoch(before)
        self._gauge.start_epoch("compaction", boundary.post_tokens)
        self._gauge.decide()
        self._begin_epoch(
            "boundary", boundary.trigger, before.estimated_tokens, boundary.post_tokens
        )
        self._left_by_compaction = boundary.post_tokens or 0
        self._last_report_tokens = 0
        self._series.add(lambda: boundary.post_tokens or 0, exact=True)
        self._note()

    def _overflow(self) -> None:
        """Show a request that was refused; what was sent is not known, so it is no reading."""
        self._overflow_count += 1
        if len(self._overflows) < MAX_EVENTS:
            self._overflows.append(
                ShownOverflow(
                    at=self._clock.stamp(), position=self._series.count, tokens=self._gauge.tokens
                )
            )

    def _use_model(self, model: str) -> None:
        self._model = model
        self._gauge.set_model(model[:_MAX_NAME_CHARS])
        if self._recording.kind == CLAUDE_CODE:
            self._observe_window(window_for_model(model, host="claude-code"))

    def _observe_window(self, tokens: int | None) -> None:
        self._gauge.report(0, 0, tokens, None)
        self._gauge.decide()

    def _begin_epoch(
        self, reason: str, trigger: str | None, before_tokens: int, after_tokens: int | None
    ) -> None:
        self._left_by_compaction = 0
        self._level = self._gauge.ladder.base
        self._compaction_count += 1
        if len(self._compactions) < MAX_EVENTS:
            self._compactions.append(
                Compaction(
                    at=self._clock.stamp(),
                    position=self._series.count,
                    reason=reason,
                    trigger=trigger,
                    tokens_before=before_tokens,
                    tokens_after=after_tokens,
                )
            )

    def _close_epoch(self, state: StateRecord) -> None:
        """Add up what filled the window that ends here."""
        known = dict(state.by_source or {})
        if self._left_by_compaction:
            known["summary"] = known.get("summary", 0) + self._left_by_compaction
        if state.anchor is not None and state.anchor["isReport"]:
            known[UNRECORDED] = max(0, state.estimated_tokens - sum(known.values()))
        for source, tokens in known.items():
            self._by_source[source] = self._by_source.get(source, 0) + tokens
        self._highest_estimate_tokens = max(self._highest_estimate_tokens, state.estimated_tokens)

    def _note(self) -> None:
        """Write down a rung that was reached; a fall within the epoch only lowers the mark."""
        level, previous, ratio = self._gauge.level, self._level, self._gauge.least_ratio
        if level is None or level == previous or ratio is None:
            return
        self._level = level
        state = self._state()
        ladder = self._gauge.ladder.resolve(state.context_limit)
        if state.context_limit is None or ladder.rank(level) <= ladder.rank(previous):
            return
        self._crossing_count += 1
        if len(self._crossings) == MAX_EVENTS:
            return
        above = ladder.names[ladder.rank(level) + 1 :]
        ahead = state.forecast["rungs"].get(above[0]) if state.forecast and above else None
        self._crossings.append(
            Crossing(
                at=self._clock.stamp(),
                position=self._series.count - 1,
                level=level,
                previous_level=previous,
                action=state.action,
                tokens=state.estimated_tokens,
                tokens_source=state.tokens_source,
                usage_ratio=round(ratio, 6),
                context_limit=state.context_limit,
                next_rung=above[0] if above else None,
                turns_left=ahead["turns"] if ahead else None,
            )
        )

    def _timeline(self, state: StateRecord) -> Timeline:
        started = self._clock.started_at
        largest_first = sorted(self._by_source.items(), key=lambda item: -item[1])
        return Timeline(
            id=self._recording.id,
            kind=self._recording.kind,
            path=self._recording.paths[0],
            model=state.model,
            context_limit=state.context_limit,
            context_window=state.context_window,
            limit_source=state.limit_source,
            limit_suspect=state.limit_suspect,
            rungs=tuple(_rungs(state)),
            started_at=None if started is None else utc(started),
            ended_at=self._clock.stamp(),
            records=self._records,
            reports=self._reports,
            broken_lines=self._broken,
            peak_tokens=self._highest_report_tokens or self._highest_estimate_tokens,
            peak_source="reported" if self._highest_report_tokens else "estimated",
            epochs=state.epoch,
            crossings=tuple(self._crossings),
            crossing_count=self._crossing_count,
            compactions=tuple(self._compactions),
            compaction_count=self._compaction_count,
            overflows=tuple(self._overflows),
            overflow_count=self._overflow_count,
            by_source={source: tokens for source, tokens in largest_first if tokens},
            points=tuple(self._series.points),
            readings=self._series.count,
            readings_per_point=self._series.stride,
        )


def _rungs(state: StateRecord) -> list[RungLine]:
    limit = state.context_limit
    if limit is None:
        return []
    return [
        RungLine(
            name=rung.name,
            action=rung.action,
            usage_ratio=rung.nominal_ratio,
            tokens=round(rung.nominal_ratio * limit),
        )
        for rung in Ladder.from_json(state.ladder).resolve(limit).rungs
    ]


def replay(recording: Recording, config: ContextConfig | None = None) -> Timeline:
    """Feed one recording through a gauge, at the times that it recorded.

    Memory does not grow with the recording. Text that came between a response and a later
    correction of its usage stays counted, the correction then shows in the peak only.

    Args:
        recording: From `ultramon.cli.replay.find_recordings`.
        config: Limits and thresholds; None = from environment, file and defaults. A model named
            here outranks the recorded one; thresholds that it leaves out are those of the host that
            wrote the recording.

    Raises:
        OSError: The recording cannot be read.
        ConfigurationError: The reserved output leaves nothing of a model's window.
    """
    return _Replay(recording, _judged_by_host(config or ContextConfig(), recording.kind)).run()


def _judged_by_host(config: ContextConfig, kind: str) -> ContextConfig:
    """Return a configuration with the thresholds of a host where it has none of its own."""
    if kind != CLAUDE_CODE or "ladder" in config.sources:
        return config
    if config.sources.keys().isdisjoint(_THRESHOLDS):
        return config.replace(ladder=CLAUDE_CODE_LADDER)
    ratios = {f"{rung.name}_threshold": rung.ratio for rung in CLAUDE_CODE_LADDER.rungs}
    return config.replace(
        **{name: ratio for name, ratio in ratios.items() if name not in config.sources}
    )
