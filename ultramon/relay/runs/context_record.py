"""What the folder of a run keeps of each context: how it began, its output, how it ended."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.relay.launchers.outcome import RefusedCall, SpentTokens
from ultramon.relay.run_folder import read_run_file, write_run_file
from ultramon.relay.runs.run_reader import number_of
from ultramon.system.files import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.relay.launchers.outcome import ContextOutcome

FOLDER = "contexts"
_SUFFIX = ".json"


@dataclass(slots=True)
class ContextRecord:
    """One context of a relay.

    Attributes:
        number: The number at the end of its agent's id.
        session_id: The host's name for its session; one of the relay's until it has said its own.
        started_at: Epoch seconds.
        fingerprint: Of the workspace at its start; None outside of git.
        parts: How many processes it had: one more after each pause for a limit.
        ended_parts: How many of them are counted in what follows.
        ended_at: Epoch seconds; None = it has not ended, or no relay has seen it.
        end: As in `ContextOutcome`.
        error: As in `ContextOutcome`.
        is_idle: Whether it ended with the workspace as it was.
        refused: The first refused calls.
        refused_count: All of them.
        spent: Tokens paid.
        cost_usd: As the host reckons; None = it did not say.
        list_usd: At list price, by its tokens; None = they or the price are not known.
        agent: Its agent's name in the choices; empty in records from before there was a choice.
        worker: Whose worktree it works in.
    """

    number: int
    session_id: str
    started_at: float
    fingerprint: str | None = None
    parts: int = 1
    ended_parts: int = 0
    ended_at: float | None = None
    end: str | None = None
    error: str | None = None
    is_idle: bool = False
    refused: tuple[RefusedCall, ...] = ()
    refused_count: int = 0
    spent: SpentTokens = field(default_factory=SpentTokens)
    cost_usd: float | None = None
    list_usd: float | None = None
    agent: str = ""
    worker: int = 1

    @property
    def usd(self) -> float | None:
        """What it cost: as the host reckons, else by its tokens; None = unknown."""
        return self.list_usd if self.cost_usd is None else self.cost_usd

    def add(self, outcome: ContextOutcome) -> None:
        """Take what its present process has said."""
        self.ended_parts = self.parts
        self.end, self.error = outcome.end, outcome.error
        self.refused = (*self.refused, *outcome.refused)
        self.refused_count += outcome.refused_count
        # Codex reports the sum of its thread in each process; the others what this process spent.
        if not outcome.is_session_sum:
            self.spent += outcome.spent
        elif outcome.spent != SpentTokens():
            self.spent = outcome.spent
        self.session_id = outcome.session_id or self.session_id
        if outcome.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + outcome.cost_usd


class ContextRecords:
    """The contexts of a run, in the order of their start, kept in its folder.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, FOLDER)
        self._known: list[ContextRecord] = []

    def __iter__(self) -> Iterator[ContextRecord]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def read(self) -> None:
        """Read the contexts of earlier relays; make the folder where there is none.

        Raises:
            StateError: The system refused.
            StateCorruptError: A file is not what a relay wrote.
        """
        make_private_directory(self._folder)
        names = (name.removesuffix(_SUFFIX) for name in os.listdir(self._folder))
        paths = [self._path(int(name), _SUFFIX) for name in names if name.isdigit()]
        found = (read_run_file(path, _decode) for path in paths)
        self._known = sorted(found, key=lambda one: one.number)

    def of(self, agent_id: str) -> ContextRecord | None:
        """Return the context of an agent; None when none was begun."""
        number = number_of(agent_id)
        return next((one for one in self._known if one.number == number), None)

    def add(self, record: ContextRecord) -> None:
        """Take a context that was begun now."""
        self._known.append(record)

    def save(self, record: ContextRecord) -> None:
        """Store a context.

        Raises:
            StateError: The system refused.
        """
        write_run_file(self._path(record.number, _SUFFIX), asdict(record))

    def output(self, record: ContextRecord) -> str:
        """Return the path of what its present process prints."""
        return self._path(record.number, f".{record.parts}.out")

    def errors(self, record: ContextRecord) -> str:
        """Return the path of its errors."""
        return self._path(record.number, f".{record.parts}.err")

    def _path(self, number: int, suffix: str) -> str:
        return os.path.join(self._folder, f"{number}{suffix}")


def _decode(value: dict[str, Any]) -> ContextRecord:
    value["refused"] = tuple(RefusedCall(**one) for one in value["refused"])
    value["spent"] = SpentTokens(**value["spent"])
    return ContextRecord(**value)
