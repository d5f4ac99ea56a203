"""What a program of a row found: a JSON file that it writes at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Operations(NamedTuple):
    """How many operations of one kind were tried, succeeded, and were refused.

    What was neither met a fault: its worker was killed, its answer lost.
    """

    tried: int = 0
    succeeded: int = 0
    refused: int = 0


@dataclass
class Found:
    """What one program did and met.

    Attributes:
        operations: By their kind.
        faults: How often each kind of fault was met.
        broken: Promises that were broken, each a line for people.
        seeds: Which ones it used, where there is more than the one that it was given.
        left_out: Reasons why parts of it could not run here, and how many parts each concerns.
        cannot_run: Why none of it can run here; "" = it ran.
    """

    operations: dict[str, Operations] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    cannot_run: str = ""

    def met(self, words: tuple[str, ...]) -> int:
        """Return how many faults were met whose kind contains one of some words; () = all."""
        return sum(
            number
            for kind, number in self.faults.items()
            if not words or any(word in kind for word in words)
        )

    def write(self, path: Path) -> None:
        """Write it where `make proof` reads it."""
        values = asdict(self)
        values["operations"] = {
            kind: each._asdict() for kind, each in sorted(self.operations.items())
        }
        path.write_text(json.dumps(values), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Found | None:
        """Return what a program has written, None where that is nothing or no such file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            operations = {
                kind: Operations(**each) for kind, each in values.pop("operations").items()
            }
            return cls(operations=operations, **values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
