"""Which agents may be deleted: the part of `Backend.prune` that is the same for every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.state.liveness import LOST, judge

if TYPE_CHECKING:
    from ultramon.backends.base import StoredAgent
    from ultramon.system.processes import HostIdentity


def is_over(agent: StoredAgent, before: float, now: float, host: HostIdentity) -> bool:
    """Return whether an agent has ended or is lost, and nothing was heard of it since a time.

    Args:
        agent: As it is stored now; one that cannot be read is not over.
        before: Epoch seconds.
        now: Epoch seconds.
        host: Of the caller, to judge whether the agent lives.
    """
    record = agent.record
    if record is None or record.last_activity >= before:
        return False
    if not record.active:
        return True
    try:
        liveness = judge(record, agent.heartbeat_at, now, host)
    except ArithmeticError:
        return False  # its numbers are none that an agent ever had
    return liveness.verdict == LOST and liveness.last_heartbeat_at < before
