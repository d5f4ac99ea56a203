"""Processes attached to agents: when each ends, and how."""

from __future__ import annotations

import logging
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from ultramon.system import processes
from ultramon.system.processes import process_started_at

if TYPE_CHECKING:
    import asyncio
    import subprocess
    from collections.abc import Collection, Mapping
    from multiprocessing.process import BaseProcess

    from ultramon.fleet.journal_event import Exit
    from ultramon.state.record import StateRecord

    Child = subprocess.Popen[Any] | asyncio.subprocess.Process | BaseProcess
    Attachable = Child | int

_log = logging.getLogger("ultramon.fleet")

_CGROUPS = "/sys/fs/cgroup"
# Until so many looks at a process that is gone, asyncio may still learn how it ended.
_LOOKS_FOR_A_CODE = 5


class Watched(Protocol):
    """A watched process."""

    pid: int

    def ended(self) -> Exit | None:
        """Return the ``exit`` of an event about the process's end, None while it runs."""


class _Exit(NamedTuple):
    exited: Exit
    before: int
    """The generation stored before the process: what it starts has a higher one."""
    generation: int | None = None
    """The life that ran in it and did not stop; a later life is another process."""


class Processes:
    """The processes attached to the agents of a fleet."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Watched, int]] = {}
        self._exits: dict[str, _Exit] = {}
        self._closed: set[str] = set()
        self._ended: set[str] = set()

    def attach(self, agent_id: str, process: Watched, before: int) -> None:
        """Watch the process of an agent, instead of an earlier one.

        Args:
            agent_id: The agent.
            process: As `watch_process` returned it.
            before: The generation that was stored when the process began; 0 = none.
        """
        self._running[agent_id] = process, before
        self._exits.pop(agent_id, None)
        self._ended.discard(agent_id)
        self._closed.discard(agent_id)

    def poll(self) -> None:
        """Collect ended processes. Read states afterwards, which then include their last saves."""
        for agent_id, (process, before) in list(self._running.items()):
            exited = process.ended()
            if exited is not None:
                self._exits[agent_id] = _Exit(exited, before)
                self._ended.add(agent_id)
                del self._running[agent_id]

    def take_ended(self) -> set[str]:
        """Return the agents whose processes ended since the last call."""
        ended, self._ended = self._ended, set()
        return ended

    def match(self, records: Mapping[str, StateRecord]) -> None:
        """Assign each end to the stored generation; drop outdated ends."""
        for agent_id, found in list(self._exits.items()):
            record = records.get(agent_id)
            if record is None or record.generation <= found.before:
                if agent_id in self._closed:
                    self.forget(agent_id)
            elif record.active and found.generation in (None, record.generation):
                self._exits[agent_id] = found._replace(generation=record.generation)
            else:
                self.forget(agent_id)

    def note_end(self, agent_id: str, generation: int) -> None:
        """Note an end in the journal, after which the end of the process is no news.

        Args:
            agent_id: The agent.
            generation: The life that ended; 0 = an agent refused at its start.
        """
        if agent_id in self._running:
            _, before = self._running[agent_id]
        elif agent_id in self._exits:
            before = self._exits[agent_id].before
        else:
            return
        if generation == 0 or generation > before:
            self._closed.add(agent_id)

    @property
    def ended_agents(self) -> Collection[str]:
        """The agents whose processes ended before they stopped."""
        return self._exits.keys()

    def exit_of(self, record: StateRecord) -> Exit | None:
        """Return how the process of an active agent ended, None when unknown."""
        found = self._exits.get(record.agent_id)
        return None if found is None or found.generation != record.generation else found.exited

    def will_report(self, record: StateRecord) -> bool:
        """Return whether the exit of an agent's running process will be known."""
        process, _ = self._running.get(record.agent_id, (None, 0))
        return process is not None and process.pid == record.pid

    def is_attached(self, agent_id: str) -> bool:
        """Return whether the process of an agent is attached, running or ended."""
        return agent_id in self._running or agent_id in self._exits

    def without_agent(self) -> dict[str, Exit]:
        """Return the exits of processes whose agents never stored a state."""
        return {
            agent_id: found.exited
            for agent_id, found in self._exits.items()
            if found.generation is None and agent_id not in self._closed
        }

    def forget(self, agent_id: str) -> None:
        """Drop an ended process."""
        self._exits.pop(agent_id, None)
        self._closed.discard(agent_id)


def watch_process(process: Attachable) -> Watched:
    """Watch a `subprocess.Popen`, an asyncio or multiprocessing process, or a pid.

    Raises:
        TypeError: It is none of these.
    """
    if isinstance(process, int):
        return WatchedPid(process, process_started_at(process))
    has_code = hasattr(process, "returncode") or hasattr(process, "exitcode")
    if has_code and isinstance(getattr(process, "pid", None), int):
        return _WatchedChild(process)
    raise TypeError(f"attach a process that was started or a pid, not {type(process).__name__}")


def return_code(child: Child) -> int | None:
    """Return how a child ended, reaping it where its library does not; None while it runs."""
    poll = getattr(child, "poll", None)
    if poll is not None:
        code: int | None = poll()
        return code
    # multiprocessing looks at the process, asyncio says what its loop has learned.
    return child.exitcode if hasattr(child, "exitcode") else child.returncode


class _WatchedChild:
    def __init__(self, process: Child) -> None:
        self.pid = cast("int", process.pid)
        self._process = process
        self._looks_without_code = 0
        # Looked up now: a process that was reaped has no entry in /proc. The kernel counts for the
        # whole cgroup, so only a rise since then can be this process.
        self._memory_events = _memory_events_file(self.pid)
        self._out_of_memory_kills = _out_of_memory_kills(self._memory_events)

    def ended(self) -> Exit | None:
        code = return_code(self._process)
        if code is None:
            return self._ended_without_code()
        exited = exit_of_code(code)
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL):  # the latter of a shell
            kills = _out_of_memory_kills(self._memory_events)
            if kills is not None and self._out_of_memory_kills is not None:
                exited["outOfMemory"] = kills > self._out_of_memory_kills
        return exited

    def _ended_without_code(self) -> Exit | None:
        # asyncio learns the code in its loop, some time after the process is gone, or never.
        if process_started_at(self.pid) is None:
            self._looks_without_code += 1
        return {} if self._looks_without_code > _LOOKS_FOR_A_CODE else None


class WatchedPid:
    """A process of which only the pid is known.

    Args:
        pid: Its number.
        started_at: Its start, by `process_started_at`; None = it has ended.
    """

    def __init__(self, pid: int, started_at: str | None) -> None:
        self.pid = pid
        self._started_at = started_at

    def ended(self) -> Exit | None:
        """Return how it ended, as far as that can be known from its pid."""
        started_at = process_started_at(self.pid)
        if started_at is not None and started_at == self._started_at:
            return None
        return _exit_of_child(self.pid)


def exit_of_code(code: int) -> Exit:
    """Return the ``exit`` of an event for a code as `subprocess.Popen.returncode` is one."""
    if code >= 0:
        return {"returncode": code}
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return {"returncode": code, "signal": name}


def _exit_of_child(pid: int) -> Exit:
    """Return how a child ended that has not been waited for; empty for any other process."""
    if not hasattr(os, "waitid"):
        return {}
    try:
        # The code that started the process still has to reap it.
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return {}
    if found is None:
        return {}
    exited = found.si_code == os.CLD_EXITED
    return exit_of_code(found.si_status if exited else -found.si_status)


def _memory_events_file(pid: int) -> str | None:
    """Return the file in which the kernel counts out-of-memory kills of a process's cgroup."""
    try:
        with open(f"{processes.PROC}/{pid}/cgroup", encoding="utf-8") as file:
            for line in file:
                # Version 2 of cgroups, the one with that file of counts.
                if line.startswith("0::"):
                    return f"{_CGROUPS}{line[3:].strip()}/memory.events"
    except OSError:
        pass
    return None


def _out_of_memory_kills(path: str | None) -> int | None:
    if path is None:
        return None
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    except (OSError, ValueError):
        pass
    return None
