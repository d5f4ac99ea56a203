"""Agents that no hook has to report, by their transcripts."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from ultramon.cli.output import print_json, say_by_reason

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent

_DAY_SECONDS = 86_400


def print_from_transcripts(
    agent: str | None, *, show_all: bool, limit: int | None, as_json: bool
) -> None:
    """Print agents by their transcripts, the fullest first.

    Args:
        agent: The beginning of an id; None = every agent.
        show_all: Also those without a record of the last day.
        limit: How many at most; None = all.
        as_json: Print `ultramon.recordings.transcript_agents.TranscriptAgent` under ``agents``.

    Raises:
        click.UsageError: No agent has such an id.
    """
    from ultramon.context.config import ContextConfig
    from ultramon.recordings.clients import client_files, split_by_age
    from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable, index_path
    from ultramon.recordings.transcript_agents import transcript_agents

    now, left_out = time.time(), []

    def refuse(error: OSError) -> None:
        left_out.append((os.fsdecode(error.filename), str(error.strerror)))

    since = 0.0 if show_all else now - _DAY_SECONDS
    files = list(client_files(os.environ, refuse))
    if not show_all:
        files, _ = split_by_age(files, since)
    with TranscriptIndex(index_path()) as index:
        found = list(index.summarize(files))
    left_out += [(one.path, one.reason) for one in found if isinstance(one, Unreadable)]
    read = [one for one in found if isinstance(one, Summarized)]
    agents = transcript_agents(read, ContextConfig().without_project, since)
    if agent is not None:
        agents = [one for one in agents if one.agent_id.startswith(agent)]
        if not agents:
            raise click.UsageError(f"no transcript of an agent {agent!r}")
    agents = agents[:limit]
    if as_json:
        print_json({"agents": [one.model_dump(mode="json", by_alias=True) for one in agents]})
    elif agents:
        from ultramon.cli.views.transcript_table import print_transcript_agents

        print_transcript_agents(agents, now)
    elif not left_out:
        click.echo("no transcripts" if show_all else "no transcripts of the last day")
    say_by_reason("left out", left_out)


def find_in_transcripts(name: str) -> StoredAgent | None:
    """Return an agent as its transcript shows it; None = no transcript, or several, fit.

    Args:
        name: The beginning of the id of a session or subagent.
    """
    from contextlib import suppress

    from ultramon.backends.base import StoredAgent
    from ultramon.hosts.registry import host_of_agent
    from ultramon.recordings.clients import find_by_id
    from ultramon.recordings.recordings import find_recordings
    from ultramon.recordings.replay import state_at_end
    from ultramon.system.processes import this_machine

    paths = find_by_id(name, os.environ)
    if len(paths) != 1:
        return None
    for one in find_recordings(paths).recordings:
        if one.paths == (paths[0],):
            with suppress(OSError):
                record = state_at_end(one)
                record.hostname = this_machine().hostname
                host, _ = host_of_agent(record)
                if host is not None:
                    # What fills it is read there, as of an agent that hooks report.
                    record.by_source = {}
                    record.extra[host.memory_field] = {"transcriptPath": paths[0]}
                record.outcome = "no hook reports it: this is its transcript"
                return StoredAgent(record.agent_id, record, record.last_activity)
    return None
