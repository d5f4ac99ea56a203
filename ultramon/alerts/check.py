"""The check of one session's window, and the alert where the check gives reason for one."""

from __future__ import annotations

import os
import sys
import time

from ultramon.alerts.config import RUNS, STALE, AlertConfig, log_problem
from ultramon.alerts.memory import memory_file
from ultramon.alerts.outcome import AlertOutcome
from ultramon.alerts.policy import advance, is_turn
from ultramon.alerts.readings import find_session, read_project, read_state
from ultramon.context.level_words import share_of
from ultramon.errors import StateWriteError, UltramonError
from ultramon.state.level_share import share_facts
from ultramon.system.environment import disabled, state_directory
from ultramon.system.locks import LockedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from ultramon.alerts.memory import AlertMemory
    from ultramon.alerts.readings import Reading
    from ultramon.state.level_share import LevelShare
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
    """Alert the agent on stderr when its window reached a higher status than the last alert had.

    Once per upward crossing, whichever process checks. Silent without a session, without data and
    without news. Never raises and never writes to stdout; a failure is one line in the log
    ``ultramon.alerts``.

    Args:
        force: Alert at any status and after any earlier alert, when there are data.
        command: The command that just ran; with a list of commands configured, only those alert.
        every: Check only at every so many runs of this command in a session, 1 to 1,000,000; None =
            as configured.
        session: The session; empty = none; None = ``ULTRAMON_AGENT_ID``, else what the project
            directory's ``.current-session`` holds.
        directory: The project directory; None = as configured.
        stream: Where to write; None = `sys.stderr`.
        config: Settings; None = `AlertConfig()`.
        state_dir: The state directory; None = ``ULTRAMON_STATE_DIR``, else the platform's.
        clock: For tests; None = the system's.

    Returns:
        The outcome; true when there was an alert.
    """
    try:
        if disabled():
            return AlertOutcome(None, reason="ULTRAMON_DISABLED is set")
        check = _Check(session, directory, config, state_dir, clock)
        # Above `force`: an off switch stays one.
        if not check.config.enabled:
            return AlertOutcome(None, reason="alerts are turned off")
        commands = check.config.commands
        if commands and command is not None and command not in commands and not force:
            return AlertOutcome(None, reason=f"{command} is not one of the commands that alert")
        return check.alert(command, every, force=force, stream=stream)
    except Exception as error:  # noqa: BLE001 - a command must not fail because of its alert
        reason = f"{type(error).__name__}: {error}"
        log_problem(f"no alert: {reason}")
        return AlertOutcome(STALE, reason=reason)


def check_context(
    *,
    session: str | None = None,
    directory: str | None = None,
    config: AlertConfig | None = None,
    state_dir: str | None = None,
    clock: Clock | None = None,
) -> AlertOutcome:
    """Return the status of a session's window, independent of earlier alerts.

    Stores nothing. Arguments as for `check_and_alert_context`.

    Returns:
        The status; ``stale`` with a ``reason`` without usable data.

    Raises:
        ConfigurationError: The configuration is not allowed.
    """
    check = _Check(session, directory, config, state_dir, clock)
    try:
        reading = check.read()
    except (UltramonError, OSError) as error:
        return AlertOutcome(STALE, session=check.session, reason=str(error))
    if reading is None:
        reason = "no session is named" if check.session is None else f"no data of {check.session}"
        return AlertOutcome(STALE, session=check.session, reason=reason)
    status = check.judge(reading)
    action = check.config.actions[status]
    return AlertOutcome(status, reading=reading, action=action, share=check.share(status))


class _Check:
    """One check of one session."""

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
        self._state_dir = state_dir

    def read(self) -> Reading | None:
        """Return the reading of the session; None without a session or without data."""
        self.session = find_session(self._given, self._directory)
        if self.session is None:
            return None
        given = self._state_dir
        self.state_directory = state_directory() if given is None else _absolute(given)
        return read_state(self.state_directory, self.session, self.now) or read_project(
            self._directory, self.session, self.now, self.config.stale_seconds
        )

    def judge(self, reading: Reading) -> str:
        """Return the status of a reading, independent of earlier ones."""
        if reading.problem or reading.usage_ratio is None:
            return STALE
        ladder = self.config.ladder.resolve(None)
        return ladder.names[ladder.rank_at(reading.judged_ratio or 0.0)]

    def share(self, status: str | None) -> LevelShare | None:
        """Return where a status begins; None for one that is no level."""
        return None if status is None else share_of(status, self.config.ladder.to_json(), None)

    def alert(
        self, command: str | None, every: int | None, *, force: bool, stream: TextIO | None
    ) -> AlertOutcome:
        """Alert where there is reason to."""
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
        RUNS.check("every", every)
        is_checked, alerts = self._remember(reading, status, command or "", every, force=force)
        if not is_checked:
            return AlertOutcome(None, reading=reading, reason=f"not the turn of {command}")
        share = self.share(status)
        outcome = AlertOutcome(status, alerted=alerts, reading=reading, action=action, share=share)
        if alerts:
            from ultramon.alerts.rendering import write_alert

            stream = sys.stderr if stream is None else stream
            try:
                if stream is not None:
                    write_alert(outcome, stream)
            except (OSError, ValueError) as error:
                log_problem(f"the alert cannot be written: {error}")
            self._store(reading, status, command, forced=force)
        return outcome

    def _remember(
        self, reading: Reading, status: str, command: str, every: int, *, force: bool
    ) -> tuple[bool, bool]:
        """Update the memory; return whether this run is checked, and whether to alert."""

        def load() -> AlertMemory:
            memory = file.load()
            memory.enter(reading.filling)
            return memory

        def decide(memory: AlertMemory, every: int) -> tuple[bool, bool]:
            if not (is_turn(command, every, memory.counts) or force):
                return False, False
            return True, advance(
                memory, status, reading.judged_ratio, self.config, self.now, force=force
            )

        file = memory_file(reading, self.state_directory)
        memory = load()
        before = memory.to_json()
        decision = decide(memory, every)
        # Most checks change nothing, and need neither the lock nor a write.
        if memory.to_json() == before:
            return decision
        try:
            # Read again under the lock: another process may have alerted meanwhile.
            with file.locked():
                memory = load()
                decision = decide(memory, every)
                file.save(memory)
        except LockedError:
            # The holder of the lock decides on the same readings: it alerts, or has no reason to.
            return True, False
        except StateWriteError as error:
            log_problem(f"the alert cannot be remembered and will come again: {error}")
            if not decision[0]:  # runs that cannot be counted are all checked
                return decide(load(), every=1)
        return decision

    def _store(self, reading: Reading, status: str, command: str | None, *, forced: bool) -> None:
        """Store the alert as an event of the journal."""
        # The journal loads SQLite, which only an alert needs.
        from ultramon.backends.local.journal import AGENT_TIMEOUT_SECONDS, Journal
        from ultramon.system.files import make_private_directory

        event = reading.record.event(
            CONTEXT_ALERT,
            source=f"agent:{reading.session}",
            at=self.now,
            # No count distinguishes forced and unremembered alerts; their time does.
            n=round(self.now * 1000),
            level=status,
            usageRatio=reading.usage_ratio,
            tokens=reading.tokens,
            contextLimit=reading.limit_tokens,
            command=command,
            forced=forced,
            directory=reading.directory,
            **share_facts(self.share(status)),
            **({"roundPercent": True} if reading.rounds else {}),
        )
        journal = Journal(self.state_directory)
        try:
            make_private_directory(self.state_directory)
            journal.append([event], AGENT_TIMEOUT_SECONDS)
        except (UltramonError, OSError) as error:
            log_problem(f"the alert is not in the journal: {error}")
        finally:
            journal.close()


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:  # the working directory was deleted
        return path
