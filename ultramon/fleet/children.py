"""The processes of supervised contexts: our children, and those of an orchestrator before us."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.fleet.child_processes import WatchedPid, return_code, watch_process
from ultramon.fleet.process_group import group_led_by
from ultramon.system.processes import process_started_at, this_host

if TYPE_CHECKING:
    from ultramon.fleet.child_processes import Child
    from ultramon.fleet.item_pool import Context
    from ultramon.fleet.process_group import ProcessGroup
    from ultramon.fleet.run_view import RunView

TERMINATE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""


def process_facts(pid: int) -> dict[str, Any]:
    """Return the facts by which others find a process of this host, and know that it is the one."""
    host = this_host()
    return {
        "pid": pid,
        "pidStartedAt": process_started_at(pid),
        "bootId": host.boot_id,
        "hostname": host.hostname,
    }


class Children:
    """Watches and ends the processes of contexts.

    Where a process leads a group of its own, the group is ended with it, and what is left in the
    group when the process has ended by itself.

    Args:
        agents: The agents of the run, which learn of each end.
    """

    def __init__(self, agents: RunView) -> None:
        self._agents = agents
        self._host = this_host()
        self._children: dict[str, Child] = {}
        self._adopted: dict[str, WatchedPid] = {}
        self._groups: dict[str, ProcessGroup] = {}
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
        """Whether the process of a context is our child and runs, or others of its group do."""
        return self._has_running_child(agent_id) or self.has_left_others(agent_id)

    def has_left_others(self, agent_id: str) -> bool:
        """Whether the process of a context has ended, and others run on in the group it led."""
        return self._group(agent_id) is not None and not self._leader_runs(agent_id)

    def _has_running_child(self, agent_id: str) -> bool:
        child = self._children.get(agent_id)
        return child is not None and return_code(child) is None

    def _leader_runs(self, agent_id: str) -> bool:
        adopted = self._adopted.get(agent_id)
        is_adopted = adopted is not None and adopted.ended() is None
        return is_adopted or self._has_running_child(agent_id)

    def _group(self, agent_id: str) -> ProcessGroup | None:
        """Return the group of a context in which somebody runs."""
        group = self._groups.get(agent_id)
        if group is None or self._leader_runs(agent_id) or group.runs_without_leader:
            return group
        del self._groups[agent_id]  # its number may be given away from now on
        return None

    def add(self, agent_id: str, child: Child) -> dict[str, Any]:
        """Watch a child; return the facts by which others find its process.

        Args:
            agent_id: Of its context.
            child: Ours. A stand-in with a true ``ends_group`` ends its group by itself: its process
                may be followed by another.

        Raises:
            TypeError: It is no process.
        """
        watched = watch_process(child)
        self._children[agent_id] = child
        if not getattr(child, "ends_group", False):
            self._note_group(agent_id, watched.pid)
        with self._agents.lock:
            self._agents.processes.attach(agent_id, watched, 0)
        return process_facts(watched.pid)

    def take_over(self, agent_id: str, child: Child) -> None:
        """Watch what stands for the process of an orchestrator before us, as if it were ours.

        How such a process ended, nobody but its parent knows.
        """
        self._children[agent_id] = child
        with self._agents.lock:
            watched = WatchedPid(child.pid or 0, process_started_at(child.pid or 0))
            self._agents.processes.attach(agent_id, watched, 0)

    def adopt(self, context: Context) -> None:
        """Watch the process that an orchestrator before us started, if it is on this host."""
        process, processes = context.process, self._agents.processes
        if process is None or processes.is_attached(context.agent_id) or not self._is_here(process):
            return
        with self._agents.lock:
            watched = WatchedPid(process["pid"], process["pidStartedAt"])
            processes.attach(context.agent_id, watched, 0)
        if process_started_at(process["pid"]) == process["pidStartedAt"] is not None:
            self._adopted[context.agent_id] = watched
            self._note_group(context.agent_id, process["pid"])

    def _note_group(self, agent_id: str, pid: int) -> None:
        if (group := group_led_by(pid)) is not None:
            self._groups[agent_id] = group

    def forget(self, agent_id: str) -> None:
        """Drop a process that has ended."""
        for known in (self._children, self._adopted, self._groups):
            known.pop(agent_id, None)

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
        self._send(agent_id, signal.SIGTERM if is_first else signal.SIGKILL, self._pid_of(context))
        if not is_first and self.has_left_others(agent_id):
            del self._groups[agent_id]  # what outlives SIGKILL is not waited for

    def kill(self) -> None:
        """End all children at once."""
        for agent_id in self._children:
            if self.is_running(agent_id):
                self._send(agent_id, signal.SIGKILL)

    def _send(self, agent_id: str, number: int, pid: int | None = None) -> None:
        """Send a signal to the group of a context, else to our child, else to a pid."""
        child = self._children.get(agent_id)
        with suppress(ProcessLookupError):
            if (group := self._group(agent_id)) is not None:
                group.send(number)
            elif child is not None:
                (child.kill if number == signal.SIGKILL else child.terminate)()
            elif pid is not None:
                group = group_led_by(pid)
                group.send(number) if group is not None else os.kill(pid, number)

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
