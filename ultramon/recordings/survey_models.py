"""The facts of a report on many transcripts, as its JSON has them."""

from __future__ import annotations

from datetime import date, datetime

from ultramon.recordings.bills import CostFacts, PriceData
from ultramon.state.models import Model


class Share(Model):
    """What one source, file or project put into context windows."""

    name: str | None
    """None = the rest, or a project that no transcript names."""
    estimated_tokens: int
    share_ratio: float
    """Of all tokens that entered windows, 0.0-1.0."""


class SourceShare(Share):
    """What one source put into context windows."""

    provenance: str
    """``measured``, ``estimated`` or ``unknown``."""


class StandingCost(Model):
    """What stands in every request, beside the conversation."""

    source: str | None
    """As in `by_source`, empty = all of it; None = what no recorded text explains."""
    tokens: int
    """In a request, at the mean of those that held it."""
    provenance: str
    """``measured``, ``estimated`` or ``unknown``."""
    sessions: int
    """That held it."""
    sessions_used: int | None
    """Of these, that called it; None = it is nothing that is called, or a transcript does not show
    it."""
    request_tokens: int
    """Summed over all requests that held it."""
    cost_usd: float | None
    """Its share of what these requests cost without the replies; None = unpriced."""


class ProjectUse(Share, CostFacts):
    """What happened in one project."""

    path: str | None
    sessions: int
    subagents: int
    compactions: int
    discarded_tokens: int


class ModelUse(CostFacts):
    """What the requests to one model cost."""

    model: str | None
    """None = no transcript names it."""
    sessions: int


class DayUse(CostFacts):
    """What one day cost."""

    day: date | None
    """In the time zone of the machine; None = no line says when."""
    sessions: int
    compactions: int


class SubagentCost(CostFacts):
    """What one subagent cost."""

    id: str
    model: str | None


class SessionFacts(CostFacts):
    """One session with its subagents, whose costs are included."""

    id: str
    host: str
    project: str | None
    path: str | None
    """Of the transcript; of a subagent's where that of the session is not there."""
    replay_target: str | None
    """What to give to ``ultramon replay``: an id or a path."""
    model: str | None
    started_at: datetime | None
    ended_at: datetime | None
    peak_tokens: int | None
    """The session's own highest report; None without one."""
    context_limit_tokens: int | None
    peak_ratio: float | None
    is_near_limit: bool | None
    """Whether its last reply left 5 % or less; None = unknown."""
    first_prompt: str | None
    """Its beginning, 80 characters at most."""
    compactions: int
    """The session's own, as the three below; those of its subagents follow."""
    unmeasured_compactions: int
    discarded_tokens: int
    overflows: int
    subagent_compactions: int
    subagent_discarded_tokens: int
    subagent_overflows: int
    subagents: int
    subagents_empty: int
    subagents_near_limit: int
    subagents_in_trouble: int
    """Empty or near the limit, each counted once."""
    points: tuple[int, ...]
    """The session's own reported tokens, the highest of each stretch."""
    compaction_points: tuple[int, ...]
    """Indices into `points` where the window was emptied."""
    subagent_cost_usd: float | None
    """Of `cost_usd`, the priced part of its subagents."""
    dearest_subagents: tuple[SubagentCost, ...]
    """Up to ten."""


class UnreadableFile(Model):
    """A file or directory that could not be read."""

    path: str | None
    reason: str


class Survey(CostFacts):
    """What a set of transcripts says."""

    generated_at: datetime
    days: int | None
    """Only sessions with a record within so many days; None = all."""
    hosts: tuple[str, ...]
    transcripts: int
    sessions: int
    subagents: int
    projects: int
    sessions_compacted: int
    subagents_compacted: int
    compactions: int
    discarded_tokens: int
    """At least so many, by compactions."""
    unmeasured_compactions: int
    """Compactions of which `discarded_tokens` says nothing."""
    subagents_with_text: int
    subagents_empty: int
    """Came back without a text."""
    subagents_return_unknown: int
    """No transcript says how they came back."""
    near_limit_ratio: float
    sessions_near_limit: int
    subagents_near_limit: int
    """The last reply left the window at least so full, or the request after it was refused."""
    sessions_end_unknown: int
    subagents_end_unknown: int
    """The limit is unknown, or no reply was reported after the last compaction."""
    subagents_in_trouble: int
    """Empty or near the limit, each counted once."""
    overflows: int
    plan_wait_seconds: float
    """How long agents waited after requests counted in `plan_hits`, together; each five hours at
    most, and those that no reply followed not at all."""
    estimated_tokens: int
    """All tokens that entered windows; each text counts once."""
    by_source: tuple[SourceShare, ...]
    by_file: tuple[Share, ...]
    standing: StandingCost | None
    """All that requests held before a person's first word; its tokens are the median of sessions;
    None = no session says."""
    by_standing: tuple[StandingCost, ...]
    """Its parts, dearest first."""
    by_project: tuple[ProjectUse, ...]
    by_model: tuple[ModelUse, ...]
    """Dearest first."""
    by_day: tuple[DayUse, ...]
    """Days with requests, earliest first."""
    worst_sessions: tuple[SessionFacts, ...]
    dearest_sessions: tuple[SessionFacts, ...]
    price_data: PriceData | None
    """None = nothing was priced."""
    broken_lines: int
    unreadable: tuple[UnreadableFile, ...]
    older_transcripts: int
    """Left out by `days`."""
    copied_transcripts: int
    """Begin with replies of another transcript, which count there."""
