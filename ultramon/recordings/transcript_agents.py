"""Agents as their transcripts alone show them, whether hooks report them or not."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ultramon.hosts.transcripts.records import qualified_id
from ultramon.recordings.survey import limit_of
from ultramon.state.models import Model, utc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.context.config import ContextConfig
    from ultramon.recordings.index import Summarized


class TranscriptAgent(Model):
    """One agent by the last facts of its transcript."""

    agent_id: str
    """``<session>`` or ``<session>.<agent>``, as ``ultramon replay`` takes it."""
    host: str
    project: str | None
    model: str | None
    """None = the transcript does not name it."""
    transcript_path: str
    current_tokens: int | None
    """In the window after the last reply; None = unknown, as behind a compaction until then."""
    context_limit: int | None
    """As the host states it, else of the model; None = unknown."""
    usage_ratio: float | None
    """None where one of the two is unknown."""
    compactions: int
    last_record_at: datetime | None


def transcript_agents(
    found: Iterable[Summarized], config: ContextConfig, since: float
) -> list[TranscriptAgent]:
    """Return agents with a record since a time, the fullest first, the unknown last.

    Args:
        found: Their transcripts.
        config: Limits that a person has set win.
        since: Epoch seconds; 0 = all, also those without a time.
    """
    agents = [_agent(one, config) for one in found if (one.summary.ended_at or 0.0) >= since]
    agents.sort(key=lambda one: (-(one.usage_ratio or -1.0), -(one.current_tokens or 0)))
    return agents


def _agent(found: Summarized, config: ContextConfig) -> TranscriptAgent:
    summary = found.summary
    limit, held = limit_of(summary, config), summary.last_tokens
    ratio = round(held / limit, 6) if limit and held is not None else None
    return TranscriptAgent(
        agent_id=qualified_id(summary.session_id, summary.agent_id),
        host=summary.host,
        project=summary.project,
        model=summary.model,
        transcript_path=found.path,
        current_tokens=held,
        context_limit=limit,
        usage_ratio=ratio,
        compactions=summary.compactions,
        last_record_at=None if summary.ended_at is None else utc(summary.ended_at),
    )
