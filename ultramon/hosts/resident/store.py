"""The state directory during one call that a forwarder has sent.

Standard library only.
"""

from __future__ import annotations

import os

from ultramon.hosts.calls.store import HookStore
from ultramon.system.processes import process_started_at, started_at_boot_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.port import Host
    from ultramon.hosts.resident.exchange import Request
    from ultramon.state.record import StateRecord

    Mark = tuple[int, int, int] | None

_CLOCK_SECONDS = 0.001
"""Times in a state are rounded to less."""


class OvertakenError(Exception):
    """A newer call of the agent was handled meanwhile, whose state must stay."""


class ResidentStore(HookStore):
    """The state directory during one call that a forwarder has sent.

    Attributes:
        own_id: The agent that the call is about; None = not known yet.
        is_late: Whether the host has its answer already.
        stored: The agent as this call has stored it, and the mark of its file; None before.
    """

    own_id: str | None = None
    is_late = False
    stored: tuple[HostedAgent, Mark] | None = None

    def __init__(self, host: Host, directory: str, request: Request, forwarder_pid: int, *,
                 event: str, now: float) -> None:  # fmt: skip
        self._printer: list[Any] = [forwarder_pid, process_started_at(forwarder_pid)]
        path, environ = request.choices_path, request.environ
        super().__init__(host, directory, path, environ, event=event, now=now)
        if forwarder_pid != request.parent_pid:  # else the host itself calls, and lives on
            # When the host made the call, not when the resident got to it.
            self.began_at = started_at_boot_seconds(*self._printer)

    def printer(self) -> list[Any]:
        """Return the forwarder: it prints the answer, or handles the call itself."""
        return self._printer

    def _read(self, agent_id: str) -> StateRecord:
        record = super()._read(agent_id)
        # A process that was stopped and continued must not replace what came after its call.
        is_newer = record.last_heartbeat > self.now + _CLOCK_SECONDS
        has_ended = self.is_late and not record.active
        if agent_id == self.own_id and record.generation and (is_newer or has_ended):
            raise OvertakenError(agent_id)
        return record

    def _stored(self, agent: HostedAgent) -> None:
        if agent.record.agent_id == self.own_id:
            self.stored = agent, mark_of(self.directory.file(agent.record.agent_id))


def mark_of(path: str) -> Mark:
    """Return what differs when a file was replaced or changed; None when it is not there."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
