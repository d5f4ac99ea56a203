"""What the folder of a run keeps of each context: how it began, its output, how it ended."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.relay.launchers.outcome import RefusedCall, SpentTokens
from ultramon.relay.run_file import read_run_file, write_run_file
from ultramon.system.files import make_private_directory

if TYPE_CHECKING:
    from ultramon.relay.launchers.outcome import ContextOutcome

FOLDER = "contexts"
_SUFFIX = ".json"


@dataclass(slots=True)
class ContextRecord:
    """One context of a relay.

    Attributes:
        number: The number at the end of its agent's id.
        session_id: The client's name for its session; one of the relay's until it has said its own.
        started_at: Epoch seconds.
        fingerprint: Of the workspace at its start; None outside of git.
        parts: How many processes it had: one more after each pause for a limit.
        ended_parts: How many of them are counted in what follows.
        ended_at: Epoch seconds; None = it has not ended, or nobody has seen it.
        end: As in `ContextOutcome`.
        error: As in `ContextOutcome`.
        is_idle: Whether it ended with the workspace as it was.
        refused: The first refused calls.
        refused_count: All of them.
        spent: Tokens paid.
        cost_usd: As the client reckons; None = it did not say.
        agent: Its agent's name in the choices; empty in records from before there was a choice.
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
    agent: str = ""

    def add(self, outcome: ContextOutcome) -> None:
        """Take what its present process has said."""
        self.ended_parts = self.parts
        self.end, self.error = outcome.end, outcome.error
        self.refused = (*self.refused, *outcome.refused)
        self.refused_count += outcome.refused_count
        if outcome.is_session_sum:
            self.spent = outcome.spent if any(asdict(outcome.spent).values()) else self.spent
        else:
            pairs = zip(asdict(self.spent).values(), asdict(outcome.spent).values(), strict=True)
            self.spent = SpentTokens(*(before + more for before, more in pairs))
        self.session_id = outcome.session_id or self.session_id
        if outcome.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + outcome.cost_usd


class ContextRecords:
    """The contexts of a run, in its folder.

    Args:
        folder: Of the run.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, FOLDER)

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            StateError: The system refused.
        """
        make_private_directory(self._folder)

    def all(self) -> list[ContextRecord]:
        """Return every context, in the order of their start."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        numbers = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        found = (self.load(int(number)) for number in numbers if number.isdigit())
        return sorted((one for one in found if one is not None), key=lambda one: one.number)

    def load(self, number: int) -> ContextRecord | None:
        """Return one context; None when it was never begun.

        Raises:
            StateCorruptError: Its file is not what a relay wrote.
        """
        try:
            return read_run_file(self._path(number, _SUFFIX), _decode)
        except FileNotFoundError:
            return None

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
