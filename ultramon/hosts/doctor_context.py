"""What the questions of the doctor look at, and the findings that answer them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateError, UltramonError
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.state.record import StateRecord
from ultramon.system.findings import OK, PROBLEM, WARNING, Finding


def ok(check: str, message: str) -> Finding:
    """Return the answer to a question where all is well."""
    return Finding(check, OK, message)


def warning(check: str, message: str, cure: str) -> Finding:
    """Return a finding that may be meant."""
    return Finding(check, WARNING, message, cure)


def problem(check: str, message: str, cure: str) -> Finding:
    """Return a finding that keeps an agent from being seen or warned."""
    return Finding(check, PROBLEM, message, cure)


@dataclass
class DoctorContext:
    """What the questions look at, read once.

    Attributes:
        cwd: The directory whose settings count.
        state_directory: Where states and choices are kept, absolute.
        now: Epoch seconds.
    """

    cwd: str
    state_directory: str
    now: float

    def choices(self, host: str) -> tuple[InstalledChoices | None, str | None]:
        """Return the stored choices of a host, None where there are none, and what is wrong."""
        path = choices_path(self.state_directory, host)
        try:
            return (InstalledChoices.load(path) if os.path.lexists(path) else None), None
        except (StateError, OSError) as error:
            return None, str(error)

    def states(self) -> Iterator[tuple[str, StateRecord | UltramonError]]:
        """Yield of every agent its state, or why it cannot be read; none if none can be listed."""
        directory = StateDirectory(self.state_directory)
        try:
            ids = directory.list_ids()
        except StateError:
            return  # `check_states` says so
        for agent_id in ids:
            try:
                yield agent_id, directory.read(agent_id)
            except AgentNotFoundError:
                continue  # pruned since the directory was listed
            except UltramonError as error:
                yield agent_id, error

    def agents(self, host: str) -> Iterator[StateRecord]:
        """Yield the readable states of a host's agents."""
        for _, state in self.states():
            if isinstance(state, StateRecord) and state.host == host:
                yield state
