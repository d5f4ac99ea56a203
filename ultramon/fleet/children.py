"""The processes of supervised contexts: our children, and those of an orchestrator before us."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.fleet.child_processes import WatchedPid, return_code, watch_process
from ultramon.system.processes import process_started_at, this_host

if TYPE_CHECKING:
    from ultramon.fleet.child_processes import Child
    from ultramon.fleet.item_pool import Context
    from ultramon.fleet.run_view import RunView

TERMINATE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""


class Children:
    """Watches and ends the processes of contexts.

    Args:
        agents: The agents of the run, which learn of each end.
    """

    def __init__(self, agents: RunView) -> None:
        self._agents = agents
        self._host = this_host()
        self._children: dict[str, Child] = {}
        self._terminated_at: dict[str, float] = {}

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._children

    @property
    def ended(self) -> list[str]:
        """The children that have ended."""
        return [agent_id for agent_id in self._children if not self.is_running(agent_id)]

    @property
    def are_running(self) -> bool:
        """Whether a child runs."""
        return len(self.ended) < len(self._children)

    def is_running(self, agent_id: str) -> bool:
        """Whether the process of a context is our child and runs."""
        child = self._children.get(agent_id)
        return child is not None and return_code(child) is None

    def add(self, agent_id: str, child: Child) -> dict[str, Any]:
        """Watch a child; return the facts by which others find its process.

        Raises:
            TypeError: It is no process.
        """
        watched = watch_process(child)
        self._children[agent_id] = child
        with self._agents.lock:
            self._agents.processes.attach(agent_id, watched, 0)
        return {
            "pid": watched.pid,
            "pidStartedAt": process_started_at(watched.pid),
            "bootId": self._host.boot_id,
            "hostname": self._host.hostname,
        }

    def adopt(self, context: Context) -> None:
        """Watch the process that an orchestrator before us started, if it is on this host."""
        process, processes = context.process, self._agents.processes
        if process is None or processes.is_attached(context.agent_id) or not self._is_here(process):
            return
        with self._agents.lock:
            watched = WatchedPid(process["pid"], process["pidStartedAt"])
            processes.attach(context.agent_id, watched, 0)

    def forget(self, agent_id: str) -> None:
        """Drop a child that has ended."""
        self._children.pop(agent_id, None)

    def terminate(self, context: Context, now: float) -> None:
        """End a process: SIGTERM, and SIGKILL at a call that comes long enough after.

        Args:
            context: Whose process.
            now: Monotonic seconds.
        """
        agent_id = context.agent_id
        is_first = agent_id not in self._terminated_at
        since = self._terminated_at.setdefault(agent_id, now)
        if not is_first and now < since + TERMINATE_SECONDS:
            return
        child = self._children.get(agent_id)
        with suppress(ProcessLookupError):
            if child is not None:
                (child.terminate if is_first else child.kill)()
            elif (pid := self._pid_of(context)) is not None:
                os.kill(pid, signal.SIGTERM if is_first else signal.SIGKILL)

    def kill(self) -> None:
        """End all children at once."""
        for agent_id, child in self._children.items():
            if self.is_running(agent_id):
                with suppress(ProcessLookupError):
                    child.kill()

    def _pid_of(self, context: Context) -> int | None:
        """Return the pid of a process that is not our child, if it runs on this host."""
        record = self._agents.records.get(context.agent_id)
        known = context.process if record is None else record.to_json()
        if known is None or known["pid"] is None or not self._is_here(known):
            return None
        is_same = process_started_at(known["pid"]) == known["pidStartedAt"] is not None
        return known["pid"] if is_same else None

    def _is_here(self, known: dict[str, Any]) -> bool:
        return (known["hostname"], known["bootId"]) == (self._host.hostname, self._host.boot_id)
