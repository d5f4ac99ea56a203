"""Looks at one session's window, decides whether there is something new to say, and says it."""

from __future__ import annotations

import os
import sys
import time

from ultramon.alerts.config import STALE, AlertConfig, check_every
from ultramon.alerts.memory import memory_file
from ultramon.alerts.outcome import AlertOutcome
from ultramon.alerts.policy import Turns, advance
from ultramon.alerts.readings import find_session, read_project, read_state
from ultramon.errors import StateWriteError, UltramonError
from ultramon.system.environment import disabled, state_directory
from ultramon.system.ids import random_hex
from ultramon.system.locks import LockedError
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from ultramon.alerts.memory import AlertMemory
    from ultramon.alerts.readings import Reading
    from ultramon.system.clock import Clock

CONTEXT_ALERT = "context_alert"


def check_and_alert_context(
    *,
    force: bool = False,
    command: str | None = None,
    every: int | None = None,
    session: str | None = None,
    directory: str | None = None,
    stream: TextIO | None = None,
    config: AlertConfig | None = None,
    state_dir: str | None = None,
    clock: Clock | None = None,
) -> AlertOutcome:
    """Tell the agent how full its window is, if it became fuller since it was told last.

    Once per upward crossing, whichever process looks. Silent without a session, data, or anything
    new. Never raises, never writes to stdout; what goes wrong is one line in the log
    ``ultramon.alerts``.

    Args:
        force: Alert whatever the status is and whatever was said before, when there are data.
        command: What the caller just did; with a list of commands configured, those alone count.
        every: Look only at every so many calls for this command in a session, 1 to 1,000,000;
            None = as configured.
        session: The session; empty = none; None = ``ULTRAMON_AGENT_ID``, else what the project
            directory's ``.current-session`` holds.
        directory: The project directory; None = as configured.
        stream: Where to write; None = `sys.stderr`.
        config: None = `AlertConfig` made now.
        state_dir: The state directory; None = ``ULTRAMON_STATE_DIR``, else the platform's.
        clock: For tests; None = the system's.

    Returns:
        What came of it; true when there was an alert.
    """
    try:
        if disabled():
            return AlertOutcome(None, reason="ULTRAMON_DISABLED is set")
        look = _Look(session, directory, config, state_dir, clock)
        if not look.config.enabled:
            return AlertOutcome(None, reason="alerts are turned off")
        if not force and command is not None and command not in (look.config.commands or [command]):
            return AlertOutcome(None, reason=f"{command} is not one of the commands that alert")
        return look.alert(command, every, force=force, stream=stream)
    except Exception as error:  # noqa: BLE001 - a command must not fail because of its alert
        reason = f"{type(error).__name__}: {error}"
        _log(f"no alert: {reason}")
        return AlertOutcome(STALE, reason=reason)


def check_context(
    *,
    session: str | None = None,
    directory: str | None = None,
    config: AlertConfig | None = None,
    state_dir: str | None = None,
    clock: Clock | None = None,
) -> AlertOutcome:
    """Return the status of a session's window, whatever was said about it before.

    Remembers nothing and writes nothing. Arguments as for `check_and_alert_context`.

    Returns:
        The status; ``stale`` with a ``reason`` when there are no data that could be judged.

    Raises:
        ConfigurationError: The configuration is not allowed.
    """
    look = _Look(session, directory, config, state_dir, clock)
    try:
        reading = look.read()
    except (UltramonError, OSError) as error:
        return AlertOutcome(STALE, session=look.session, reason=str(error))
    if reading is None:
        reason = "no session is named" if look.session is None else f"no data of {look.session}"
        return AlertOutcome(STALE, session=look.session, reason=reason)
    status = look.judge(reading)
    return AlertOutcome(status, reading=reading, action=look.config.actions[status])


class _Look:
    """One look at one session."""

    def __init__(
        self,
        session: str | None,
        directory: str | None,
        config: AlertConfig | None,
        state_dir: str | None,
        clock: Clock | None,
    ) -> None:
        self.config = AlertConfig() if config is None else config
        self.now = time.time() if clock is None else clock.now()
        self.session: str | None = None
        self._given = session
        self._directory = _absolute(directory or self.config.directory)
        self._state_directory = None if state_dir is None else _absolute(state_dir)

    @property
    def state_directory(self) -> str:
        if self._state_directory is None:
            self._state_directory = state_directory()
        return self._state_directory

    def read(self) -> Reading | None:
        """Return the reading of the session; None without a session or without data."""
        self.session = find_session(self._given, self._directory)
        if self.session is None:
            return None
        reading = read_state(self.state_directory, self.session, self.now)
        if reading is not None:
            return reading
        return read_project(self._directory, self.session, self.now, self.config.stale_seconds)

    def judge(self, reading: Reading) -> str:
        """Return the status of a reading, whatever was before."""
        if reading.is_stale or reading.usage_ratio is None:
            return STALE
        ladder = self.config.ladder.resolve(None)
        return ladder.names[ladder.rank_at(reading.usage_ratio)]

    def alert(
        self, command: str | None, every: int | None, *, force: bool, stream: TextIO | None
    ) -> AlertOutcome:
        """Alert if there is reason to."""
        reading = self.read()
        if reading is None:
            reason = "no data" if self.session else "no session"
            return AlertOutcome(STALE, session=self.session, reason=reason)
        status = self.judge(reading)
        action = self.config.actions[status]
        if reading.usage_ratio is None:
            return AlertOutcome(status, reading=reading, action=action)
        if every is None:
            every = self.config.every.get(command or "", 1)
        turns = Turns(command or "", check_every("every", every))
        is_turn, alerts = self._remember(reading, status, turns, force=force)
        if not is_turn:
            return AlertOutcome(None, reading=reading, reason=f"not the turn of {command}")
        outcome = AlertOutcome(status, alerted=alerts, reading=reading, action=action)
        if alerts:
            from ultramon.alerts.rendering import draw

            stream = sys.stderr if stream is None else stream
            try:
                if stream is not None:
                    draw(outcome, stream)
            except (OSError, ValueError) as error:
                _log(f"the alert cannot be written: {error}")
            self._note(reading, status, command, forced=force)
        return outcome

    def _remember(
        self, reading: Reading, status: str, turns: Turns, *, force: bool
    ) -> tuple[bool, bool]:
        """Bring the memory up to date; return whether it is this call's turn, and to alert."""

        def decide() -> tuple[AlertMemory, bool, bool, bool]:
            memory = file.load()
            memory.enter(reading.filling)
            before = memory.to_json()
            is_turn = turns.count(memory.counts) or force
            alerts = is_turn and advance(
                memory, status, reading.usage_ratio, self.config, self.now, force=force
            )
            return memory, memory.to_json() != before, is_turn, alerts

        file = memory_file(reading, self.state_directory)
        _, is_new, is_turn, alerts = decide()
        if not is_new:
            return is_turn, alerts
        try:
            with file.locked():
                memory, _, is_turn, alerts = decide()
                file.save(memory)
        except LockedError:
            # Whoever holds the lock decides on the same readings: it alerts, or has no reason to.
            return True, False
        except StateWriteError as error:
            _log(f"not remembered, so it will be said again: {error}")
            if not is_turn:  # what cannot be counted is looked at each time
                turns = Turns("", 1)
                _, _, is_turn, alerts = decide()
        return is_turn, alerts

    def _note(self, reading: Reading, status: str, command: str | None, *, forced: bool) -> None:
        """Store the alert in the journal, for those who look back."""
        from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal
        from ultramon.system.files import make_private_directory

        event = {
            "eventId": random_hex(16),
            "type": CONTEXT_ALERT,
            "agentId": reading.session,
            "sessionId": reading.session_id,
            "run": reading.run or os.environ.get("ULTRAMON_RUN") or "default",
            "generation": reading.generation,
            "epoch": reading.epoch,
            "source": f"agent:{reading.session}",
            "occurredAt": format_time(self.now),
            # Forced and unremembered alerts repeat what nothing counts: the time tells them apart.
            "n": round(self.now * 1000),
            "level": status,
            "usageRatio": reading.usage_ratio,
            "tokens": reading.tokens,
            "contextLimit": reading.limit_tokens,
            "command": command,
            "forced": forced,
            "directory": reading.directory,
        }
        journal = Journal(self.state_directory)
        try:
            make_private_directory(self.state_directory)
            journal.append([event], AGENT_TIMEOUT_SECONDS)
        except (UltramonError, OSError) as error:
            _log(f"the alert is not in the journal: {error}")
        finally:
            journal.close()


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was deleted
        return path


def _log(problem: str) -> None:
    import logging

    log = logging.getLogger("ultramon.alerts")
    if not log.handlers:
        # Without any handler Python itself would write to the caller's stderr.
        log.addHandler(logging.NullHandler())
    log.warning("%s", problem)
