"""The processes of supervised contexts: children, and those of an earlier orchestrator."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from ultramon.fleet.child_processes import WatchedPid, exit_of_code, return_code, watch_process
from ultramon.fleet.supervise.process_group import ProcessGroup, group_led_by, is_in_group
from ultramon.system.process_search import KnownProcess, processes_with, shows_environments
from ultramon.system.processes import process_started_at, sees_processes, this_machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.fleet.child_processes import Child
    from ultramon.fleet.journal_event import Exit, ProcessFacts
    from ultramon.fleet.run_view import RunView
    from ultramon.fleet.supervise.pool import WorkerContext

TERMINATE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL."""


def process_facts(pid: int) -> ProcessFacts:
    """Return the facts by which others find a process of this machine and know it again."""
    machine = this_machine()
    return {
        "pid": pid,
        "pidStartedAt": process_started_at(pid),
        "bootId": machine.boot_id,
        "hostname": machine.hostname,
    }


class Children:
    """Watches and ends the processes of contexts.

    Where a process leads a group of its own, the group is ended with it, and what is left in the
    group when the process has ended by itself. What has left the group is found by the marks of its
    context. No process is signalled that is not known for certain to be one of the context's.

    Args:
        agents: The agents of the run, which learn of each end.
    """

    def __init__(self, agents: RunView) -> None:
        self._agents = agents
        self._machine = this_machine()
        self._children: dict[str, Child] = {}
        self._adopted: dict[str, KnownProcess] = {}
        self._groups: dict[str, ProcessGroup] = {}
        self._left_over: dict[str, list[KnownProcess]] = {}
        self._terminated_at: dict[str, float] = {}

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._children

    def others_of(self, contexts: Iterable[WorkerContext]) -> list[WorkerContext]:
        """Return the contexts whose process is no child of this one."""
        return [context for context in contexts if context.agent_id not in self._children]

    @property
    def agent_ids(self) -> list[str]:
        """The agents of the children."""
        return list(self._children)

    @property
    def ended(self) -> list[str]:
        """The children that have ended."""
        return [agent_id for agent_id in self._children if not self.is_running(agent_id)]

    @property
    def are_running(self) -> bool:
        """Whether a child runs, whatever has become of those that it started."""
        return None in map(return_code, self._children.values())

    def is_running(self, agent_id: str) -> bool:
        """Whether the process of a context runs on this machine, or another one of its context."""
        return self._leader_runs(agent_id) or self.has_left_others(agent_id)

    def has_left_others(self, agent_id: str) -> bool:
        """Whether the process of a context has ended, and others of the context still run."""
        if any(process.runs for process in self._left_over.get(agent_id, ())):
            return True
        return self._group(agent_id) is not None and not self._leader_runs(agent_id)

    def find_left_over(self, agent_id: str, marks: Mapping[str, str]) -> bool:
        """Return whether a process with the marks of a context runs; it is one of its others then.

        Raises:
            StateError: As `processes_with`.
        """
        self._left_over[agent_id] = found = processes_with(marks)
        return bool(found)

    def sees(self, context: WorkerContext, supervisor: tuple[str, str]) -> bool:
        """Whether this machine shows every process of a context, and so the end of all of them.

        Args:
            context: The context.
            supervisor: Host name and boot id of the orchestrator that assigned it.
        """
        record, process = self._agents.records.get(context.agent_id), context.process
        places = [] if process is None else [(process["hostname"], process["bootId"])]
        places += [] if record is None else [(record.hostname, record.boot_id)]
        if not (context.agent_id in self._children or shows_environments()):
            return False
        return all(self._is_here(*place) for place in places or [supervisor])

    def _leader_runs(self, agent_id: str) -> bool:
        if (child := self._children.get(agent_id)) is not None:
            return return_code(child) is None
        leader = self._leader(agent_id)
        return leader is not None and leader.runs

    def _leader(self, agent_id: str) -> KnownProcess | None:
        """Return the process of a context that is no child of this one, as far as it is known.

        Where its orchestrator died before it could store it, it is the process of the agent.
        """
        record = self._agents.records.get(agent_id)
        if agent_id in self._adopted or record is None or not record.active:
            return self._adopted.get(agent_id)
        if record.pid is None or not self._is_here(record.hostname, record.boot_id):
            return None
        # An agent in this process is none to end.
        is_own = record.pid == os.getpid()
        return None if is_own else KnownProcess(record.pid, record.pid_started_at)

    def _group(self, agent_id: str) -> ProcessGroup | None:
        """Return the group of a context in which a process runs."""
        group = self._groups.get(agent_id)
        if group is None or self._leader_runs(agent_id) or group.runs_without_leader:
            return group
        del self._groups[agent_id]  # the system may give its number to others from now on
        return None

    def add(self, agent_id: str, child: Child) -> ProcessFacts:
        """Watch a child; return the facts by which others find its process and its group.

        Args:
            agent_id: Of its context.
            child: Of this process. A stand-in with a true ``ends_group`` ends its group by itself:
                its process may be followed by another.

        Raises:
            TypeError: It is no process.
        """
        watched = watch_process(child)
        self._children[agent_id] = child
        group = group_led_by(watched.pid)
        if group is not None and not getattr(child, "ends_group", False):
            self._groups[agent_id] = group
        with self._agents.lock:
            self._agents.processes.attach(agent_id, watched, 0)
        number = None if group is None else group.number
        return {**process_facts(watched.pid), "processGroup": number}

    def is_own(self, agent_id: str) -> bool:
        """Whether the process of a context was started here, and not by a stand-in."""
        child = self._children.get(agent_id)
        return child is not None and not getattr(child, "ends_group", False)

    def exit_of(self, agent_id: str) -> Exit:
        """Return the ``exit`` of a child that has ended in another way than with 0, else {}."""
        child = self._children.get(agent_id)
        code = None if child is None else return_code(child)
        return exit_of_code(code) if code else {}

    def last_lines_of(self, agent_id: str) -> list[str]:
        """Return what a child that `Job.popen` has started wrote to stderr last."""
        last_lines = getattr(self._children.get(agent_id), "last_lines", None)
        return [] if last_lines is None else last_lines()

    def take_over(self, agent_id: str, child: Child) -> None:
        """Watch what stands for the process of an earlier orchestrator, like a child.

        How such a process ended only its parent knows.
        """
        self._children[agent_id] = child
        with self._agents.lock:
            watched = WatchedPid(child.pid or 0, process_started_at(child.pid or 0))
            self._agents.processes.attach(agent_id, watched, 0)

    def adopt(self, context: WorkerContext, marks: Mapping[str, str]) -> None:
        """Watch the process that an earlier orchestrator started, if it is on this machine.

        Args:
            context: Whose process.
            marks: The variables that only its processes have.

        Raises:
            StateError: As `processes_with`.
        """
        process, agent_id = context.process, context.agent_id
        if process is None or agent_id in self._adopted:
            return
        pid = process["pid"]
        if pid == os.getpid() or not self._is_here(process["hostname"], process["bootId"]):
            return
        adopted = KnownProcess(pid, process["pidStartedAt"])
        if adopted.runs:
            group = group_led_by(pid)
        else:
            group = _group_left(process.get("processGroup", pid), marks)
        if group is not None:
            self._groups[agent_id] = group
        self._adopted[agent_id] = adopted
        if context.end is None:
            with self._agents.lock:
                watched = WatchedPid(pid, process["pidStartedAt"])
                self._agents.processes.attach(agent_id, watched, 0)

    def forget(self, agent_id: str) -> None:
        """Drop a process that has ended."""
        for known in (self._children, self._adopted, self._groups, self._left_over):
            known.pop(agent_id, None)

    def terminate(self, agent_id: str, now: float) -> None:
        """End the processes of a context: SIGTERM, and SIGKILL at a call long enough after.

        Args:
            agent_id: Of the context.
            now: Monotonic seconds.
        """
        is_first = agent_id not in self._terminated_at
        since = self._terminated_at.setdefault(agent_id, now)
        if is_first or now >= since + TERMINATE_SECONDS:
            self._send(agent_id, signal.SIGTERM if is_first else signal.SIGKILL)
            if not (is_first or sees_processes()):
                # A zombie cannot be told from what outlives SIGKILL: neither is waited for.
                self._groups.pop(agent_id, None)

    def kill(self) -> None:
        """End all children at once."""
        for agent_id in self._children:
            if self.is_running(agent_id):
                self._send(agent_id, signal.SIGKILL)

    def _send(self, agent_id: str, number: int) -> None:
        """Send a signal to all that is known to run of a context: group, process and others."""
        child, group, others = self._children.get(agent_id), self._group(agent_id), []
        if child is None and (leader := self._leader(agent_id)) is not None and leader.runs:
            group = group or group_led_by(leader.pid)
            others.append(leader)
        others += self._left_over.get(agent_id, ())
        with suppress(ProcessLookupError, PermissionError):
            if group is not None:
                group.send(number)
            elif child is not None:
                (child.kill if number == signal.SIGKILL else child.terminate)()
        # Those in the group have the signal already.
        for process in {process.pid: process for process in others}.values():
            if group is None or not is_in_group(process.pid, group.number):
                process.send(number)

    def _is_here(self, hostname: str | None, boot_id: str | None) -> bool:
        return (hostname, boot_id) == (self._machine.hostname, self._machine.boot_id)


def _group_left(number: int | None, marks: Mapping[str, str]) -> ProcessGroup | None:
    """Return the group of a process that has ended, where one with the marks is in it.

    The number alone may have been given to the group of a stranger meanwhile.
    """
    if number is None or number == os.getpgrp():
        return None
    is_left = any(is_in_group(process.pid, number) for process in processes_with(marks))
    return ProcessGroup(number) if is_left else None
