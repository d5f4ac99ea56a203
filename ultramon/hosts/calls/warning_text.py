"""The warning that a session or subagent reads about its own window.

Standard library only; loaded when there is something to warn of.
"""

from __future__ import annotations

from ultramon.context import note
from ultramon.context.limits import is_assumed
from ultramon.state.record import StateRecord
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent


def write_warning(store: HookStore, agent: HostedAgent, transcript_path: str | None) -> str:
    """Return the text for an agent whose limit and reading are known."""
    record = agent.record
    candidates = record.limit_candidates or ()
    request = store.installed.critical_note
    if agent.must_return:
        from ultramon.hosts.calls.enforcement import write_rule

        request = " ".join(text for text in (request, write_rule(store, agent)) if text)
    files = store.host.transcripts
    budget = None if transcript_path is None else files.read_token_budget(transcript_path)
    return note.write_note(
        record.estimated_tokens,
        record.context_limit,
        reading=(record.tokens_source, record.measured_at or 0.0),
        now=store.now,
        limit_name=next((c["name"] for c in candidates if c["verdict"] == "binding"), None),
        window_tokens=record.context_window,
        # The host summarises also where the provider refuses a request, unless configured not to.
        compacts=all(candidate["name"] != "refusal" for candidate in candidates),
        has_token_budget=budget is not None,
        pace=agent.gauge.describe_pace(),
        action=record.action,
        critical_note=request,
        note_from=store.installed.note_from,
        rounds=agent.gauge.ladder.round_percent,
        is_assumed=is_assumed(record.limit_source),
    )


def write_unstored_warning(
    store: HookStore,
    event: HookEvent,
    agent_ids: tuple[str, str | None],
    transcript_path: str | None,
    stopped_at: float | None,
) -> str:
    """Return the warning where nothing can be stored, empty when none is due.

    The agent is warned of a rung once, where its last reply reached it and the one before had not.
    Of parallel calls the first warns, and a prompt warns of what no call could.

    Args:
        store: Where the agents are.
        event: The hook call.
        agent_ids: The agent and its parent.
        transcript_path: The agent's own, or None.
        stopped_at: When a person interrupted the agent after its last reply, or None.
    """
    agent_id, parent_id = agent_ids
    files, is_subagent = store.host.transcripts, parent_id is not None
    try:
        replies = (
            files.read_last_replies(transcript_path, is_subagent=is_subagent)
            if transcript_path
            else []
        )
    except (OSError, ValueError):
        return ""  # logged when the last reading was read
    if not replies:
        return ""
    calls = replies[0][1]
    if calls and calls[0] != event.call_id and stopped_at is None:
        return ""
    agent = store.hosted(StateRecord(agent_id))
    agent.start(event.session_id, parent_id, event.cwd)
    ranks = [0]
    for report, _ in reversed(replies):
        agent.take(report)
        ranks.append(agent.gauge.rank(agent.record.threshold_status or ""))
    return write_warning(store, agent, transcript_path) if ranks[-1] > ranks[-2] else ""


def write_compaction(at: float) -> str:
    """Return the text for an agent whose conversation was compacted, epoch seconds."""
    time = format_time(at)[11:16]
    return f"Context window compacted at {time}Z: earlier figures about it no longer hold."
