"""What many transcripts say together: counts, what filled the windows, and the worst sessions.

Counts are of what the transcripts say; what they do not say is counted as unknown. Only the tokens
that one text or file brought are estimated, and their names here say so.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ultramon.context.limits import resolve_limit
from ultramon.recordings.bills import Bill, Biller, price_data_of
from ultramon.recordings.index import Summarized
from ultramon.recordings.short_names import id_lengths, short_names
from ultramon.recordings.standing_costs import StandingAgent, standing_costs
from ultramon.recordings.survey_models import (
    DayUse,
    ModelUse,
    ProjectUse,
    SessionFacts,
    Share,
    SourceShare,
    SubagentCost,
    Survey,
    UnreadableFile,
)
from ultramon.recordings.transcript_summary import (
    ESTIMATED,
    TranscriptSummary,
    provenance_of,
)
from ultramon.recordings.usage import date_of
from ultramon.state.models import utc
from ultramon.state.record import StateRecord
from ultramon.system import foreign_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ultramon.context.config import ContextConfig
    from ultramon.prices.price_list import PriceList
    from ultramon.recordings.index import Unreadable
    from ultramon.recordings.standing_costs import MemoryFiles

_Key = TypeVar("_Key")

NEAR_LIMIT_RATIO = 0.95
"""An agent whose last reply left its window this full ended near its limit."""
WORST_SESSIONS = 10
DEAREST_SUBAGENTS = 10
"""The most subagents listed of a session."""
MOST_NAMES = 50
"""The most sources, files and projects listed; what is left is added up."""


class _Agent(NamedTuple):
    path: str
    summary: TranscriptSummary
    limit_tokens: int | None
    near_limit: bool | None


class _Session:
    """The agents of one session."""

    def __init__(self, agents: list[_Agent], biller: Biller) -> None:
        self.agents = agents
        self.main = next((one for one in agents if one.summary.agent_id is None), None)
        self.first = self.main or agents[0]
        self.subagents = [one for one in agents if one.summary.agent_id is not None]
        self.ended_at = max((one.summary.ended_at or 0.0 for one in agents), default=0.0)
        self.project = self.first.summary.project
        returns: dict[str, bool] = {}
        for one in agents:
            returns.update(one.summary.returns)
        self.empty = [one for one in self.subagents if self._has_text(one, returns) is False]
        self.with_text = sum(bool(self._has_text(one, returns)) for one in self.subagents)
        self.near = [one for one in self.subagents if one.near_limit]
        self.bill = Bill()
        self.by_model: dict[str | None, Bill] = {}
        self.by_day: dict[str, Bill] = {}
        self.bills: dict[str, Bill] = {}
        """Of each agent, by its transcript."""
        model = self.first.summary.model
        for one in agents:
            rows, usual = one.summary.usage, one.summary.model or model
            own = biller.bill(rows, usual, self.by_model, self.by_day)
            self.bills[one.path] = own
            self.bill.merge(own)
        for bill in (self.bill, *self.bills.values(), *self.by_model.values()):
            bill.close_session()
        for bill in self.by_day.values():
            bill.close_session()

    @staticmethod
    def _has_text(agent: _Agent, returns: dict[str, bool]) -> bool | None:
        own = agent.summary.returns.get("")
        return returns.get(agent.summary.agent_id or "", own)

    @property
    def in_trouble(self) -> int:
        return len({one.path for one in (*self.empty, *self.near)})

    def total(self, name: str) -> int:
        """Add up one count of all agents."""
        return sum(getattr(one.summary, name) for one in self.agents)

    def own(self, name: str) -> int:
        """Return one count of the session itself; 0 where only its subagents are there."""
        return getattr(self.main.summary, name) if self.main else 0

    def of_subagents(self, name: str) -> int:
        """Add up one count of its subagents."""
        return sum(getattr(one.summary, name) for one in self.subagents)

    @property
    def badness(self) -> tuple[float, ...]:
        """Sort the worst first: work that was lost, then compactions, then how full it was."""
        main = self.main
        lost = self.in_trouble + self.total("overflows") + bool(main and main.near_limit)
        peak = _ratio(main.summary.peak_tokens, main.limit_tokens) if main else None
        return lost, self.total("compactions"), self.total("discarded_tokens"), peak or 0.0


def survey(
    found: Iterable[Summarized | Unreadable],
    config: ContextConfig,
    *,
    now: float,
    days: int | None = None,
    older_transcripts: int = 0,
    by_id: bool = False,
    prices: PriceList | None = None,
    memory_files: MemoryFiles | None = None,
) -> Survey:
    """Add up transcripts.

    Args:
        found: The transcripts, each once.
        config: Caps on windows, as for a replay.
        now: Epoch seconds.
        days: Leave out sessions that ended earlier; None = none.
        older_transcripts: How many files were left out unread.
        by_id: Whether ``ultramon replay`` finds the sessions by their ids.
        prices: None = nothing is priced.
        memory_files: As for `standing_costs`.
    """
    summarized, unreadable = [], []
    for one in found:
        if isinstance(one, Summarized):
            summarized.append(one)
        else:
            unreadable.append(UnreadableFile(path=one.path, reason=one.reason))
    sessions = _sessions(summarized, config, Biller(prices))
    _share_spellings(sessions)
    if days is not None:
        since = now - days * 86_400
        # Of a session without a time nothing says that it is old.
        recent = [one for one in sessions if not 0 < one.ended_at < since]
        older_transcripts += sum(len(one.agents) for one in sessions)
        older_transcripts -= sum(len(one.agents) for one in recent)
        sessions = recent
    agents = [agent for one in sessions for agent in one.agents]
    mains = [one.main for one in sessions if one.main is not None]
    subagents = [agent for one in sessions for agent in one.subagents]
    sources: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    files: Counter[str] = Counter()
    spelt: dict[str, str] = {}
    for agent in agents:
        for name, tokens in agent.summary.tokens_by_source.items():
            sources[name] += round(tokens)
        for name, tokens in agent.summary.measured_by_source.items():
            measured[name] += round(tokens)
        for path, tokens in agent.summary.tokens_by_file.items():
            # Tools name one file absolutely, or relative to the project.
            named = _absolute(path, agent.summary.project)
            shown = spelt.setdefault(foreign_paths.path_key(named), named)
            files[shown] += round(tokens)
    total = sum(sources.values())
    names = short_names({one.project for one in sessions if one.project is not None})
    shortest = id_lengths({one.first.summary.session_id for one in sessions}) if by_id else {}
    worst = sorted(sessions, key=lambda one: (one.badness, one.ended_at), reverse=True)
    dearest = sorted((one for one in sessions if one.bill.cost.usd), key=_dearest_first)
    standing, by_standing = standing_costs(_standing(sessions), memory_files)
    total_bill = Bill()
    for session in sessions:
        total_bill.merge(session.bill)
    return Survey(
        **total_bill.facts(),
        generated_at=utc(now),
        days=days,
        hosts=tuple(sorted({agent.summary.host for agent in agents})),
        transcripts=len(agents),
        sessions=len(sessions),
        subagents=len(subagents),
        projects=len(names),
        sessions_compacted=sum(bool(one.summary.compactions) for one in mains),
        subagents_compacted=sum(bool(one.summary.compactions) for one in subagents),
        compactions=sum(one.total("compactions") for one in sessions),
        discarded_tokens=sum(one.total("discarded_tokens") for one in sessions),
        unmeasured_compactions=sum(one.total("unmeasured_compactions") for one in sessions),
        subagents_with_text=sum(one.with_text for one in sessions),
        subagents_empty=sum(len(one.empty) for one in sessions),
        subagents_return_unknown=len(subagents)
        - sum(one.with_text + len(one.empty) for one in sessions),
        near_limit_ratio=NEAR_LIMIT_RATIO,
        sessions_near_limit=sum(bool(one.near_limit) for one in mains),
        subagents_near_limit=sum(bool(one.near_limit) for one in subagents),
        sessions_end_unknown=sum(one.near_limit is None for one in mains),
        subagents_end_unknown=sum(one.near_limit is None for one in subagents),
        subagents_in_trouble=sum(one.in_trouble for one in sessions),
        overflows=sum(one.total("overflows") for one in sessions),
        plan_wait_seconds=round(sum(one.summary.plan_wait_seconds for one in agents), 3),
        estimated_tokens=total,
        by_source=tuple(_source_share(one, measured) for one in _shares(sources, total)),
        by_file=_shares(files, total),
        standing=standing,
        by_standing=by_standing[:MOST_NAMES],
        by_project=_projects(sessions, names, total),
        by_model=_models(sessions),
        by_day=_days(sessions),
        worst_sessions=tuple(_facts(one, names, shortest) for one in worst[:WORST_SESSIONS]),
        dearest_sessions=tuple(_facts(one, names, shortest) for one in dearest[:WORST_SESSIONS]),
        price_data=None if prices is None else price_data_of(prices),
        broken_lines=sum(one.total("broken_lines") for one in sessions),
        unreadable=tuple(unreadable),
        older_transcripts=older_transcripts,
        copied_transcripts=sum(bool(agent.summary.copied) for agent in agents),
    )


def limit_of(summary: TranscriptSummary, config: ContextConfig) -> int | None:
    """Return the context limit of an agent as a replay decides it, None when unknown."""
    record = StateRecord("", host=summary.host, model=config.model or summary.model)
    resolve_limit(
        record,
        explicit_limit_tokens=config.context_limit_tokens,
        explicit_window_tokens=config.context_window_tokens,
        observed_window_tokens=summary.window_tokens,
        reserved_output_tokens=config.reserved_output_tokens,
        default_window_tokens=config.default_window_tokens,
        suspect_above_tokens=summary.peak_tokens,
    )
    return record.context_limit


def _standing(sessions: Iterable[_Session]) -> Iterator[StandingAgent]:
    for number, session in enumerate(sessions):
        for one in session.agents:
            bill = session.bills[one.path]
            yield StandingAgent(
                number,
                session.project,
                one.summary,
                bill.asked.known_usd,
                bill.usage.input_side_tokens,
            )


def _dearest_first(session: _Session) -> tuple[float, float]:
    return -session.bill.cost.usd, -session.ended_at


def _models(sessions: Iterable[_Session]) -> tuple[ModelUse, ...]:
    sums, counts = _merged(one.by_model for one in sessions)
    uses = [
        ModelUse(model=model, sessions=counts[model], **bill.facts())
        for model, bill in sums.items()
        if any(bill.usage)
    ]
    uses.sort(key=lambda one: (-(one.cost_usd or 0.0), -sum(one.spent.model_dump().values())))
    return tuple(uses[:MOST_NAMES])


def _days(sessions: Iterable[_Session]) -> tuple[DayUse, ...]:
    sums, counts = _merged(one.by_day for one in sessions)
    return tuple(
        DayUse(
            day=date_of(day),
            sessions=counts[day],
            compactions=bill.compactions,
            **bill.facts(),
        )
        for day, bill in sorted(sums.items())
    )


def _merged(groups: Iterable[Mapping[_Key, Bill]]) -> tuple[dict[_Key, Bill], Counter[_Key]]:
    """Return the sums of many sessions, and how many sessions are in each."""
    sums: dict[_Key, Bill] = {}
    counts: Counter[_Key] = Counter()
    for group in groups:
        for key, bill in group.items():
            sums.setdefault(key, Bill()).merge(bill)
            counts[key] += 1
    return sums, counts


def _sessions(found: Sequence[Summarized], config: ContextConfig, biller: Biller) -> list[_Session]:
    """Group transcripts; of two files of one agent the one that ends later counts."""
    groups: defaultdict[tuple[str, str], dict[str | None, Summarized]] = defaultdict(dict)
    for one in sorted(found, key=lambda one: one.summary.ended_at or 0.0):
        groups[one.summary.host, one.summary.session_id][one.summary.agent_id] = one
    limits = _Limits(config)
    return [
        _Session([_agent(one, limits) for one in group.values()], biller)
        for group in groups.values()
    ]


class _Limits:
    """Context limits, decided once for agents of one model in one client."""

    def __init__(self, config: ContextConfig) -> None:
        self._config = config
        self._known: dict[tuple[str, str | None, int | None], int | None] = {}

    def of(self, summary: TranscriptSummary) -> int | None:
        """Return the limit of an agent, see `limit_of`."""
        key = summary.host, summary.model, summary.window_tokens
        if key not in self._known:
            unfilled = TranscriptSummary(
                summary.host, "", model=summary.model, window_tokens=summary.window_tokens
            )
            self._known[key] = limit_of(unfilled, self._config)
        known = self._known[key]
        # Only a report above it can show that a window is not believed.
        if known is not None and (summary.peak_tokens or 0) <= known:
            return known
        return limit_of(summary, self._config)


def _share_spellings(sessions: list[_Session]) -> None:
    """Let sessions of one folder have one project, however its path is spelt."""
    spellings: dict[str, str] = {}
    for one in sessions:
        if one.project is not None:
            one.project = spellings.setdefault(foreign_paths.path_key(one.project), one.project)


def _agent(one: Summarized, limits: _Limits) -> _Agent:
    summary = one.summary
    limit = limits.of(summary)
    near: bool | None = None
    if summary.has_ended_in_overflow:
        near = True
    elif limit is not None and summary.last_tokens is not None:
        near = summary.last_tokens >= NEAR_LIMIT_RATIO * limit
    return _Agent(one.path, summary, limit, near)


def _facts(session: _Session, names: dict[str, str], id_lengths: dict[str, int]) -> SessionFacts:
    first, main = session.first, session.main
    own = first.summary
    length = id_lengths.get(own.session_id)
    # A copy under another name is not found by its id.
    is_named = main is not None and own.session_id in os.path.basename(main.path)
    return SessionFacts(
        id=own.session_id,
        host=own.host,
        project=None if session.project is None else names[session.project],
        path=first.path,
        replay_target=own.session_id[:length] if length is not None and is_named else first.path,
        model=own.model,
        started_at=_time(own.started_at or 0.0),
        ended_at=_time(session.ended_at),
        peak_tokens=main.summary.peak_tokens if main else None,
        context_limit_tokens=main.limit_tokens if main else None,
        peak_ratio=_ratio(main.summary.peak_tokens, main.limit_tokens) if main else None,
        is_near_limit=main.near_limit if main else None,
        first_prompt=main.summary.first_prompt if main else None,
        compactions=session.own("compactions"),
        unmeasured_compactions=session.own("unmeasured_compactions"),
        discarded_tokens=session.own("discarded_tokens"),
        overflows=session.own("overflows"),
        subagent_compactions=session.of_subagents("compactions"),
        subagent_discarded_tokens=session.of_subagents("discarded_tokens"),
        subagent_overflows=session.of_subagents("overflows"),
        subagents=len(session.subagents),
        subagents_empty=len(session.empty),
        subagents_near_limit=len(session.near),
        subagents_in_trouble=session.in_trouble,
        points=tuple(own.points),
        compaction_points=tuple(own.compaction_points),
        **session.bill.facts(),
        **_subagent_costs(session),
    )


def _subagent_costs(session: _Session) -> dict[str, Any]:
    together = Bill()
    costs = []
    for one in session.subagents:
        bill, summary = session.bills[one.path], one.summary
        together.merge(bill)
        costs.append(SubagentCost(id=summary.agent_id or "", model=summary.model, **bill.facts()))
    costs.sort(key=lambda one: -(one.cost_usd or 0.0))
    return {
        "subagent_cost_usd": together.facts()["cost_usd"],
        "dearest_subagents": tuple(costs[:DEAREST_SUBAGENTS]),
    }


def _projects(
    sessions: list[_Session], names: dict[str, str], total: float
) -> tuple[ProjectUse, ...]:
    groups: defaultdict[str | None, list[_Session]] = defaultdict(list)
    for one in sessions:
        groups[one.project].append(one)
    uses = []
    for path, group in groups.items():
        tokens = sum(
            sum(agent.summary.tokens_by_source.values()) for one in group for agent in one.agents
        )
        bill = Bill()
        for one in group:
            bill.merge(one.bill)
        uses.append(
            ProjectUse(
                **bill.facts(),
                name=None if path is None else names[path],
                estimated_tokens=round(tokens),
                share_ratio=_share(tokens, total),
                path=path,
                sessions=len(group),
                subagents=sum(len(one.subagents) for one in group),
                compactions=sum(one.total("compactions") for one in group),
                discarded_tokens=sum(one.total("discarded_tokens") for one in group),
            )
        )
    uses.sort(key=lambda one: -one.estimated_tokens)
    return tuple(uses[:MOST_NAMES])


def _shares(counts: Counter[str], total: int) -> tuple[Share, ...]:
    """List the largest, and the rest as one without a name."""
    listed: list[tuple[str | None, int]] = [*counts.most_common(MOST_NAMES)]
    rest = sum(counts.values()) - sum(tokens for _, tokens in listed)
    if len(counts) > MOST_NAMES:
        listed.append((None, rest))
    return tuple(
        Share(name=name, estimated_tokens=tokens, share_ratio=_share(tokens, total))
        for name, tokens in listed
        if tokens
    )


def _source_share(one: Share, measured: Mapping[str, float]) -> SourceShare:
    provenance = ESTIMATED
    if one.name is not None:
        provenance = provenance_of(one.name, one.estimated_tokens, measured)
    return SourceShare(**dict(one), provenance=provenance)


def _share(tokens: float, total: float) -> float:
    return round(tokens / total, 6) if total else 0.0


def _ratio(tokens: int | None, limit: int | None) -> float | None:
    return None if tokens is None or limit is None else round(tokens / limit, 4)


def _time(epoch_seconds: float) -> datetime | None:
    return utc(epoch_seconds) if epoch_seconds else None


def _absolute(path: str, project: str | None) -> str:
    return path if project is None else foreign_paths.join(project, path)
