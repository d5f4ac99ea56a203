"""Explains a reading: the sources of tokens and limit, and the rungs ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from ultramon.context.forecast import describe_compaction
from ultramon.context.gauge import is_lower_bound, known_tokens
from ultramon.context.ladder import Ladder
from ultramon.context.level_words import level_words
from ultramon.context.limits import limit_words
from ultramon.errors import ConfigurationError
from ultramon.state.liveness import Liveness
from ultramon.state.models import AgentState, Model
from ultramon.state.record import SETTING_SOURCES
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import usage_percent
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.state.history import HistoryPoint
    from ultramon.state.record import StateRecord

_MAX_PIN_CHARS = 100
_SOURCE_TEXT = {
    "reported": "counted by the provider",
    "anchored": "the provider's last count plus an estimate of what came since",
    "estimated": "an estimate; the provider has reported nothing in this epoch",
}
_VERDICT_TEXT = {
    "binding": "is the limit",
    "holds": "larger than the limit",
    "outranked": "a better source is known",
    "not_believed": "not believed: more than that was reported",
}


class RungAhead(Model):
    """One rung of the ladder, seen from the present reading."""

    name: str
    action: str
    usage_ratio: float
    tokens: int
    reached: bool
    turns_left: int | None
    """The middle of the turns that still end below it."""
    turns_low: int | None
    """Their low end."""
    turns_high: int | None
    """Their high end; None also where measurements bear none out."""
    seconds_left: float | None


class PastReading(Model):
    """One reading of the agent's history."""

    at: str
    used_tokens: int
    source: str
    epoch: int


class Explanation(Model):
    """The reading of one agent and its sources at ``explained_at``; ``str()`` is one screen."""

    explained_at: str
    state: AgentState
    liveness: str
    liveness_reason: str
    heartbeat_age_seconds: float | None
    reading_age_seconds: float | None
    estimated_delta_tokens: int
    """Tokens beyond what a provider counted."""
    calibration: float
    rungs: tuple[RungAhead, ...]
    likely_compaction: str | None
    """Where the agent's host was seen to compact by itself, in words; None = not known."""
    subagent_ends: dict[str, bool]
    """Subagents whose end was reported in the agent's conversation; false = with its next call."""
    pins: tuple[str, ...]
    """Rules that the conversation is given back after a compaction: texts, and paths of files."""
    session_tokens_left: int | None = None
    """Tokens left of the session's budget, as the agent's client counts them."""
    enforcement: str | None = None
    """How a hook ended the agent because it did not return, or (a dry run) would have."""
    settings: dict[str, str] = Field(default_factory=dict)
    """By setting, the variable or file that it came from; a keyword or a default has no entry."""
    filled_by: dict[str, int] = Field(default_factory=dict)
    """Tokens in the window by what brought them; empty = not known."""
    provenance: dict[str, str] = Field(default_factory=dict)
    """How sure these are: ``measured``, ``estimated`` or ``unknown``; empty = not said."""
    history: tuple[PastReading, ...] = ()
    """The last readings, oldest first, at most 64; a monitor, which asks no store, gives none."""

    def __str__(self) -> str:
        return "\n".join(self._lines()) + "\n"

    @property
    def percent(self) -> int | None:
        """How full the window is, as every other face says it; None = unknown."""
        return usage_percent(self.state)

    @property
    def held_words(self) -> str:
        """The tokens in the window, such as ``at least 12,000``, or ``unknown``."""
        tokens = known_tokens(self.state)
        at_least = "at least " if is_lower_bound(self.state) else ""
        return "unknown" if tokens is None else f"{at_least}{tokens:,}"

    @property
    def source_words(self) -> str:
        """Where the tokens come from."""
        return _SOURCE_TEXT.get(self.state.tokens_source, self.state.tokens_source)

    @property
    def reading_age_words(self) -> str | None:
        """How old the reading is, None without one."""
        return None if self.reading_age_seconds is None else _age(self.reading_age_seconds)

    @staticmethod
    def ahead(rung: RungAhead) -> str:
        """Say when a rung is expected."""
        return _ahead(rung)

    def _lines(self) -> list[str]:
        state = self.state
        share = "" if self.percent is None else f" = {self.percent}%"
        limit = "unknown" if state.context_limit is None else f"{state.context_limit:,}"
        lines = [
            f"agent {state.agent_id}  run {state.run}  model {state.model or 'not named'}",
            f"{self.held_words} of {limit} tokens{share}",
            f"level {level_words(state)}  action {state.action}",
            "",
            f"tokens    {self.source_words}",
        ]
        if state.anchor is not None:
            kind = "reported" if state.anchor.is_report else "left by the last compaction"
            lines.append(f"  anchor  {state.anchor.tokens:>12,}  {kind}")
        if self.estimated_delta_tokens:
            lines.append(
                f"  since   {self.estimated_delta_tokens:>12,}  "
                f"estimate × {self.calibration:.2f} learned calibration, and replies"
            )
        if self.reading_age_words is not None:
            lines.append(f"  age     {self.reading_age_words:>12}")
        if self.session_tokens_left is not None:
            lines.append(
                f"  client  {self.session_tokens_left:>12,}"
                "  left of its session's token budget, another number"
            )
        named = limit_words(state.context_limit, state.limit_source)
        lines += ["", f"limit     {named}, source {state.limit_source}"]
        if state.limit_suspect:
            lines.append("  suspect: the provider counted more tokens than the window holds")
        for candidate in state.limit_candidates or ():
            text = _VERDICT_TEXT.get(candidate.verdict, candidate.verdict)
            name = f"{candidate.source} {candidate.name}"
            lines.append(f"  {name:<17} {candidate.tokens:>12,}  {text}")
        if state.reserved_output_tokens:
            lines.append(f"  reserved output   {state.reserved_output_tokens:>12,}  off the window")
        lines += ["", f"ladder    {state.ladder_status}"]
        for rung in self.rungs:
            ahead = "reached" if rung.reached else _ahead(rung)
            at = f"{round(rung.usage_ratio * 100, 1):g}%"
            lines.append(f"  {rung.name:<9} {at:>7} {rung.tokens:>12,}  {rung.action}, {ahead}")
        if self.likely_compaction is not None:
            lines.append(f"  {self.likely_compaction}")
        if self.settings:
            lines += ["", "settings  that are no defaults, with what sets them"]
        for name, source in self.settings.items():
            lines.append(f"  {name}  {source}")
        lines += ["", f"liveness  {self.liveness}: {self.liveness_reason}"]
        if self.heartbeat_age_seconds is not None:
            lines.append(f"  heartbeat {_age(self.heartbeat_age_seconds)}")
        lines.append(f"  epoch {state.epoch}, generation {state.generation}, phase {state.phase}")
        if self.enforcement is not None:
            lines += ["", f"enforced  {self.enforcement}"]
        if self.subagent_ends:
            lines += ["", "subagents whose end is reported in the conversation"]
        for name, is_reported in self.subagent_ends.items():
            lines.append(f"  {name}  {'reported' if is_reported else 'with the next call'}")
        if self.pins:
            lines += ["", "pins      given back after a compaction"]
        for number, pin in enumerate(self.pins, 1):
            line = " ".join(pin.split())
            lines.append(f"  {number}  {line[:_MAX_PIN_CHARS]}{'…' * (len(line) > _MAX_PIN_CHARS)}")
        return lines


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"


def _ahead(rung: RungAhead) -> str:
    if rung.turns_left is None or rung.turns_low is None or rung.seconds_left is None:
        return "the pace is not known yet"
    runway = Runway(rung.turns_left, rung.turns_low, rung.turns_high)
    if runway.is_next:
        return "the next turn may reach it"
    return f"in {runway} (~{rung.seconds_left:.0f} s)"


def explain(
    record: StateRecord,
    liveness: Liveness,
    now: float,
    *,
    session_tokens_left: int | None = None,
    subagent_ends: dict[str, bool] | None = None,
    pins: tuple[str, ...] = (),
    enforcement: str | None = None,
    settings: Mapping[str, str] | None = None,
    filled_by: Mapping[str, float] | None = None,
    provenance: Mapping[str, str] | None = None,
    history: Sequence[HistoryPoint] = (),
) -> Explanation:
    """Explain a stored or present state.

    Args:
        record: The state.
        liveness: The verdict of `ultramon.state.liveness.judge` on it.
        now: Epoch seconds.
        session_tokens_left: See `Explanation`; None = its client has no such budget.
        subagent_ends: See `Explanation`; None = its client has no subagents.
        pins: See `Explanation`.
        enforcement: See `Explanation`; None = nothing was enforced.
        settings: See `Explanation`; None = as the state says.
        filled_by: See `Explanation`; None = as the state says.
        provenance: See `Explanation`; None = not said.
        history: As `Backend.history` returns it.
    """
    state = AgentState.from_record(record)
    anchor = state.anchor
    found = (state.by_source or {}) if filled_by is None else filled_by
    parts = {source: round(tokens) for source, tokens in found.items() if round(tokens)}
    stored = record.extra.get(SETTING_SOURCES)
    sources = settings or (stored if isinstance(stored, dict) else {})
    return Explanation(
        explained_at=format_time(now),
        state=state,
        liveness=liveness.verdict,
        liveness_reason=liveness.reason,
        heartbeat_age_seconds=liveness.heartbeat_age_seconds,
        reading_age_seconds=None if record.measured_at is None else now - record.measured_at,
        estimated_delta_tokens=state.estimated_tokens - (anchor.tokens if anchor else 0),
        calibration=anchor.calibration if anchor else 1.0,
        rungs=tuple(_rungs(record)),
        likely_compaction=_likely_compaction(record),
        session_tokens_left=session_tokens_left,
        subagent_ends=subagent_ends or {},
        pins=pins,
        enforcement=enforcement,
        settings={str(name): str(source) for name, source in sources.items()},
        filled_by=parts,
        provenance={source: (provenance or {})[source] for source in parts if provenance},
        history=tuple(
            PastReading(
                at=format_time(point.at),
                used_tokens=point.used_tokens,
                source=point.source,
                epoch=point.epoch,
            )
            for point in history
        ),
    )


def _likely_compaction(record: StateRecord) -> str | None:
    likely = None if record.forecast is None else describe_compaction(record.forecast)
    return None if likely is None else likely[1]


def _rungs(record: StateRecord) -> list[RungAhead]:
    if record.context_limit is None:
        return []
    try:
        ladder = Ladder.from_json(record.ladder).resolve(record.context_limit)
    except ConfigurationError:
        return []
    paces: dict[str, Any] = (record.forecast or {}).get("rungs", {})
    runways = {name: Runway.of(pace) for name, pace in paces.items()}
    return [
        RungAhead(
            name=rung.name,
            action=rung.action,
            usage_ratio=rung.nominal_ratio,
            tokens=rung.tokens(record.context_limit),
            reached=ladder.rank(record.threshold_status) >= ladder.rank(rung.name),
            turns_left=None if runway is None else runway.turns,
            turns_low=None if runway is None else runway.low,
            turns_high=None if runway is None else runway.high,
            seconds_left=paces.get(rung.name, {}).get("seconds"),
        )
        for rung, runway in ((rung, runways.get(rung.name)) for rung in ladder.rungs)
    ]
