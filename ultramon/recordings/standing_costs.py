"""What stands in every request of many sessions, and what that costs: what to throw out first."""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ultramon.hosts.registry import find_host
from ultramon.hosts.transcripts.mcp_names import server_of
from ultramon.hosts.transcripts.records import (
    AGENTS,
    MCP,
    MEMORY,
    SKILLS,
    SYSTEM,
)
from ultramon.recordings.source_words import servers_in
from ultramon.recordings.standing import FIRST, LATER, SKILL_TOOL, StandingPart
from ultramon.recordings.survey_models import StandingCost
from ultramon.recordings.transcript_summary import ESTIMATED, MEASURED, UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ultramon.recordings.transcript_summary import TranscriptSummary

    MemoryFiles = Callable[[str, str | None], Sequence[tuple[str, int]]]


class StandingAgent(NamedTuple):
    """One transcript.

    Attributes:
        session: What all agents of one session share.
        project: Of the session, or None.
        summary: Of the transcript.
        input_usd: What its requests cost without the replies; None = unpriced.
        input_tokens: That these held.
    """

    session: int
    project: str | None
    summary: TranscriptSummary
    input_usd: float | None
    input_tokens: int


class _Sum:
    def __init__(self) -> None:
        self.request_tokens = self.usd = 0.0
        self.requests = self.priced = 0
        self.is_measured = True
        self.sessions: set[int] = set()
        self.hosts: set[str] = set()

    def add(self, agent: StandingAgent, part: StandingPart) -> None:
        self.request_tokens += part.request_tokens
        self.requests += part.requests
        self.is_measured = self.is_measured and part.is_measured
        self.sessions.add(agent.session)
        self.hosts.add(agent.summary.host)
        if agent.input_usd is not None and agent.input_tokens:
            self.usd += part.request_tokens * agent.input_usd / agent.input_tokens
            self.priced += 1


def standing_costs(
    agents: Iterable[StandingAgent], memory_files: MemoryFiles | None = None
) -> tuple[StandingCost | None, tuple[StandingCost, ...]]:
    """Return all that stood before a person's first word, and its parts, dearest first.

    Args:
        agents: The transcripts.
        memory_files: Returns the files of instructions that a host would load in a project, each
            with its estimated tokens: for transcripts that do not hold them. None = not looked for.
    """
    whole, rest, sums = _Sum(), _Sum(), defaultdict[str, _Sum](_Sum)
    used: defaultdict[str, set[int]] = defaultdict(set)
    firsts: list[float] = []
    for agent in agents:
        summary = agent.summary
        servers = servers_in(summary.standing)
        for tool in summary.tools:
            server = server_of(tool, servers)
            if server is not None:
                used[f"{MCP}{server}"].add(agent.session)
            elif tool == SKILL_TOOL:
                used[SKILLS].add(agent.session)
        if summary.agent_id is not None:
            used[AGENTS].add(agent.session)
        parts = {name: StandingPart._make(row) for name, row in summary.standing.items()}
        first = parts.pop(FIRST, None)
        if first is None or not summary.reports:
            continue
        is_recorded = SYSTEM in parts or any(name.startswith(MEMORY) for name in parts)
        if memory_files is not None and not is_recorded:
            for path, tokens in memory_files(summary.host, agent.project):
                held = StandingPart(tokens * summary.reports, summary.reports, False)
                parts[f"{MEMORY}{path}"] = held
        if summary.agent_id is None:
            firsts.append(first.request_tokens)
        everything = first.request_tokens * summary.reports
        whole.add(agent, StandingPart(everything, summary.reports, True))
        explained = 0.0
        for name, part in parts.items():
            sums[name].add(agent, part)
            explained += part.request_tokens if name not in LATER else 0.0
        # Of sums of fractions: a rest below one token is rounding, in this session or in that.
        if everything - explained >= 1.0:
            rest.add(agent, StandingPart(everything - explained, summary.reports, False))
    if not whole.sessions:
        return None, ()
    found = [_cost(name, one, used) for name, one in sums.items()]
    if rest.sessions:
        found.append(_cost(None, rest, used))
    found.sort(key=lambda one: (-(one.cost_usd or 0.0), -one.request_tokens))
    total = _cost("", whole, used)
    tokens = round(median(firsts)) if firsts else total.tokens
    return total.model_copy(update={"tokens": tokens}), tuple(found)


def _cost(name: str | None, one: _Sum, used: dict[str, set[int]]) -> StandingCost:
    is_usable = name is not None and (name.startswith(MCP) or name in (SKILLS, AGENTS))
    # Codex reads a skill as any other file.
    if name == SKILLS and not all(find_host(host).transcripts.names_skills for host in one.hosts):
        is_usable = False
    provenance = UNKNOWN if name is None else MEASURED if one.is_measured else ESTIMATED
    return StandingCost(
        source=name,
        tokens=round(one.request_tokens / one.requests) if one.requests else 0,
        provenance=provenance,
        sessions=len(one.sessions),
        sessions_used=len(used[name] & one.sessions)
        if is_usable and name in used
        else (0 if is_usable else None),
        request_tokens=round(one.request_tokens),
        cost_usd=round(one.usd, 6) if one.priced else None,
    )
