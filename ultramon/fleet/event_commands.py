"""Runs the user's commands at events, each event's once, whichever of several processes looks.

One process at a time holds the commands of a file of settings, as a consumer of the journal. It
stores that an event is done before it runs the command: an event runs it at most once. A process
that is suspended or killed between the two leaves one out; the other order would run it again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.regular_look import RegularLook
from ultramon.backends.toolkit import last_cursor
from ultramon.errors import AgentNotFoundError, ConfigurationError, StateCorruptError, StateError
from ultramon.fleet.consumer import Consumer
from ultramon.notices.commands import (
    BUDGET,
    WAITING,
    name_of_event,
    read_commands,
    values_of_event,
    values_of_wait,
)
from ultramon.notices.crossings import PLAN
from ultramon.state.command_runs import StoredRuns, commands_key
from ultramon.state.record import ANSWER, PERMISSION, WAITS_FOR, host_memory
from ultramon.system.bounded_program import ProgramEnd, run_program
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ultramon.backends.base import Backend
    from ultramon.notices.commands import EventCommand
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

LOOK_SECONDS = 2.0
"""Between two looks."""
LATE_SECONDS = 120.0
"""An event that is older when it is first seen runs nothing: it is no news any more."""
MOST_AT_ONCE = 8
"""Programs that run at the same time."""
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
)
"""The variables that a program is given, as far as the process that runs it has them."""
_OTHER_HOLDER_SECONDS = 6.0
_MINUTE_SECONDS = 60.0
_END_SECONDS = 2.0
_JOIN_SECONDS = 5.0
_WAITING = "waiting"
_TROUBLE = "commands at events wait"
_log = logging.getLogger("ultramon.fleet")


class _Occasion(NamedTuple):
    """One event for which a command is to run."""

    name: str
    values: Mapping[str, str]
    at: float
    is_child: bool


def program_environment(state_directory: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a program: `ENVIRONMENT`, and the state directory."""
    kept = {name: environ[name] for name in ENVIRONMENT if name in environ}
    return {**kept, "ULTRAMON_STATE_DIR": state_directory}


def run_command(
    command: EventCommand,
    values: Mapping[str, str],
    state_directory: str,
    is_given_up: threading.Event | None = None,
) -> ProgramEnd:
    """Run the command of an event to its end, in the home directory.

    Args:
        command: The command.
        values: By placeholder.
        state_directory: Its absolute path.
        is_given_up: Once set, the program is killed.
    """
    home = os.path.expanduser("~")
    return run_program(
        command.arguments(values),
        environ=program_environment(state_directory, os.environ),
        cwd=home if os.path.isdir(home) else "/",
        seconds=command.seconds,
        is_given_up=is_given_up,
    )


class EventCommands:
    """Runs the commands of ``[on]`` while it is started; without any it stores nothing.

    The settings are read again at each look, so that a change needs no restart.

    Args:
        backend: The store.
        directory: The state directory, where the runs are noted for the doctor.
        clock: For tests.

    Raises:
        ConfigurationError: A setting of ``[on]`` is wrong.
    """

    def __init__(self, backend: Backend, directory: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._backend = backend
        self._directory = os.path.abspath(directory)
        self._clock = clock
        self._commands, self._path = read_commands()
        self._problem = ""
        self._key = ""
        self._consumer: Consumer | None = None
        self._runs: StoredRuns | None = None
        self._memory: dict[str, Any] = {}
        self._seen: dict[str, Any] = {}
        self._waits: dict[str, StateRecord] = {}
        self._next_try_at = 0.0
        self._ends_at = inf
        self._looking = RegularLook(
            self.look, name="ultramon-commands", every_seconds=LOOK_SECONDS, trouble=_TROUBLE
        )
        self._is_given_up = threading.Event()
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __enter__(self) -> EventCommands:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Look every few seconds, in a thread of its own.

        Begins before it returns: what another part of this process announces next is seen.
        """
        try:
            self._take_hold()
        except StateError as error:
            _log.warning("the store refused a look, %s: %s", _TROUBLE, error)
        self._looking.start()

    def stop(self) -> None:
        """Look a last time and end the thread; programs are given a moment, then killed."""
        until = self._ends_at = time.monotonic() + _END_SECONDS
        # The end of a relay's last context comes just before its own. A store that refused lately
        # is not asked again: that may take long.
        if self._looking.stop() and self._consumer is not None and self._consumer.holds():
            with suppress(StateError):
                self.look()
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
        self._is_given_up.set()
        for worker in self._workers:
            worker.join(_JOIN_SECONDS)
        if self._consumer is not None:
            self._consumer.close()

    def look(self) -> int:
        """Look once, and begin the commands of what happened; return how many were begun.

        Raises:
            StateError: The store refused; the next look tries again.
        """
        self._read_settings()
        if not self._take_hold():
            return 0
        assert self._consumer is not None
        begun = 0
        if WAITING in self._commands:
            begun += sum(map(self._handle, self._begun_waits()))
        while time.monotonic() < self._ends_at and self._consumer.take_hold():
            event = self._consumer.read()
            if event is None:
                break
            self._consumer.move_on()
            occasion = self._occasion(event)
            begun += occasion is not None and self._handle(occasion)
        self._consumer.acknowledge(self._memory)
        return begun

    def _read_settings(self) -> None:
        try:
            self._commands, self._path = read_commands()
            self._problem = ""
        except ConfigurationError as error:
            if str(error) != self._problem:
                _log.warning("commands at events stay as they were: %s", error)
            self._problem = str(error)

    def _take_hold(self) -> bool:
        """Become or stay the one that runs these commands."""
        key = commands_key(self._path) if self._commands else ""
        if key != self._key and self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._key = key
        if not key:
            return False
        now = self._clock.now()
        if self._consumer is None:
            self._consumer = Consumer(self._backend, f"on:{key}", self._clock, self._remember)
            self._runs = StoredRuns(self._directory, key)
            self._next_try_at = now
        if not self._consumer.holds() and now < self._next_try_at:
            return False
        if not self._consumer.take_hold():
            self._next_try_at = now + _OTHER_HOLDER_SECONDS
            return False
        if self._consumer.cursor is None:
            # What happened before the first start is no news.
            end = last_cursor(self._backend) or self._backend.events(None, 1).cursor
            self._consumer.begin_at(end)
            if not self._consumer.acknowledge(self._memory):
                return False
        assert self._runs is not None
        self._runs.mark_watched(now)
        return True

    def _remember(self, memory: dict[str, Any]) -> None:
        self._memory = {
            name: dict(value) if isinstance(value := memory.get(name), dict) else {}
            for name in ("began", _WAITING)
        }

    def _occasion(self, event: dict[str, Any]) -> _Occasion | None:
        name = name_of_event(event)
        if name is None or name not in self._commands:
            return None
        record = None
        if name not in (BUDGET, PLAN):
            with suppress(AgentNotFoundError, StateCorruptError):
                record = self._backend.load(event["agentId"]).record
        at = parse_time(event.get("occurredAt"))
        is_child = record is not None and record.parent_id is not None
        return _Occasion(name, values_of_event(name, event, record), at or 0.0, is_child)

    def _begun_waits(self) -> Iterator[_Occasion]:
        """Yield the sessions that wait for a person since the last look."""
        assert self._consumer is not None
        found = self._backend.changes(None, self._seen)
        for agent_id in found.removed:
            self._waits.pop(agent_id, None)
        for agent in found.changed:
            record = agent.record
            if record is not None and _wait_of(record):
                self._waits[agent.agent_id] = record
            else:
                self._waits.pop(agent.agent_id, None)
        known = self._memory[_WAITING]
        new = [agent_id for agent_id in self._waits if agent_id not in known]
        if not new and len(known) == len(self._waits):
            return
        self._memory[_WAITING] = {agent_id: True for agent_id in self._waits}
        if not self._consumer.acknowledge(self._memory, is_new=True):
            return
        for agent_id in new:
            record = self._waits[agent_id]
            values = values_of_wait(record, _wait_of(record))
            is_child = record.parent_id is not None
            yield _Occasion(WAITING, values, record.last_activity, is_child)

    def _handle(self, occasion: _Occasion) -> bool:
        """Begin a command, unless it is too late or too often; return whether it was begun."""
        assert self._consumer is not None
        command, now = self._commands[occasion.name], self._clock.now()
        if occasion.is_child and not command.children:
            return False
        if now - occasion.at > LATE_SECONDS:
            self._note(occasion.name, late=1)
            return False
        began = self._memory["began"]
        recent = [at for at in began.get(occasion.name, []) if 0 <= now - at < _MINUTE_SECONDS]
        self._workers = [one for one in self._workers if one.is_alive()]
        if len(recent) >= command.per_minute or len(self._workers) >= MOST_AT_ONCE:
            self._note(occasion.name, skipped=1)
            return False
        began[occasion.name] = [*recent, now]
        if not self._consumer.acknowledge(self._memory, is_new=True):
            return False  # another process has it, and runs the command
        worker = threading.Thread(
            target=self._run_one, args=(command, occasion.values), name="ultramon-command"
        )
        self._workers.append(worker)
        worker.start()
        return True

    def _run_one(self, command: EventCommand, values: Mapping[str, str]) -> None:
        end = run_command(command, values, self._directory, self._is_given_up)
        if end.problem:
            _log.warning("the command at %s failed: %s", command.event, end.problem)
        self._note(command.event, ended_at=self._clock.now(), problem=end.problem)

    def _note(self, name: str, **what: Any) -> None:
        """Add to what the doctor shows; `StoredRuns.add` says what there is."""
        assert self._runs is not None
        with self._lock:
            try:
                self._runs.add(name, **what)
            except StateError as error:
                _log.warning("what commands did is not noted: %s", error)


def _wait_of(record: StateRecord) -> str:
    """Return what an agent waits for; empty = for no person."""
    if not record.active or record.phase != _WAITING:
        return ""
    try:
        reason = host_memory(record).get(WAITS_FOR)
    except StateCorruptError:  # the rest of it is decoded here
        return ""
    return str(reason) if reason in (PERMISSION, ANSWER) else ""
