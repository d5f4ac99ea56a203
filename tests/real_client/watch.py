"""What a test sees of the session from outside: the states, and the notes in its conversation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from helpers import program

from real_client.api import Request
from ultramon.backends.local.backend import LocalBackend
from ultramon.state.record import StateRecord

_NOTE = re.compile(r"Context window: ([\d,]+) of ([\d,]+) tokens \((\d+) ?%\)")


class Note(NamedTuple):
    """What a warning says."""

    tokens: int
    limit_tokens: int
    percent: int


def notes(request: Request) -> list[Note]:
    """Return all warnings in a request, oldest first."""
    return [_note(found) for text in request.texts for found in _NOTE.finditer(text)]


def new_notes(request: Request) -> list[Note]:
    """Return the warnings that the model has not answered yet."""
    fresh = request.fresh("Context window: ")
    return [_note(found) for text in fresh for found in _NOTE.finditer(text)]


def _note(found: re.Match[str]) -> Note:
    return Note(*(int(number.replace(",", "")) for number in found.groups()))


class States:
    """The agents in a state directory.

    Args:
        directory: The state directory; none need be there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def all(self) -> dict[str, StateRecord]:
        """Return every agent by its id."""
        stored = LocalBackend(str(self.directory)).list_agents()
        return {agent.agent_id: agent.record for agent in stored if agent.record}

    def only(self) -> StateRecord:
        """Return the one agent there is."""
        (record,) = self.all().values()
        return record

    def status(self, *, show_all: bool = True) -> dict[str, dict[str, Any]]:
        """Return what `ultramon status --json` prints, with or without `--all`, by agent id."""
        choice = ["--all"] if show_all else []
        done = program.run("status", *choice, "--json", "--state-dir", self.directory)
        assert done.returncode == 0, done.stderr
        return {agent["agentId"]: agent for agent in json.loads(done.stdout)["agents"]}
