"""PROOF.md and proof.json: what a proof ran on, and what each row did, met and found."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.proof.judgement import CANNOT, GREEN, RED, ROOT, Judged
from ultramon.version import __version__

_PROGRAMS = ("postgres", "pgbouncer", "git", "mkfs.ext4")
_LIBRARIES = ("hypothesis", "pytest", "psycopg", "pydantic")
_CUT_AFTER = 20
HEAD = """\
# Proof

Written by `make proof`; the same numbers are in [proof.json](proof.json).
[README.md](README.md#proof) says how to read it.
"""
TRIVIAL = """\
## What a trivially passing run looks like

A run that does nothing breaks no promise: no item is lost where none is begun, and no write where
none is made. It would have 0 under *succeeded* and no faults. So each row names the least that must
have succeeded, and the least number of faults; a row below either is red, as is one whose program
ends without counts. The least is far below what a machine does: green says that something was
tried, the numbers say how much. A row that cannot run on a system says why, and is not green.
"""


@dataclass
class Proof:
    """A whole run.

    Attributes:
        began: Aware.
        minutes: What was asked for.
        duration_seconds: How long it took.
        seed: Of its first row.
        rows: In the order in which they ran.
    """

    began: datetime
    minutes: float
    duration_seconds: float
    seed: int
    rows: Sequence[Judged]

    @property
    def verdict(self) -> str:
        """``red`` where one row is, else ``green``; ``cannot run here`` where none could run."""
        verdicts = {each.verdict for each in self.rows}
        return next((each for each in (RED, GREEN) if each in verdicts), CANNOT)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "began": self.began.isoformat(timespec="seconds"),
            "durationSeconds": round(self.duration_seconds, 3),
            "minutes": self.minutes,
            "seed": self.seed,
            "verdict": self.verdict,
            "versions": versions(),
            "clients": recorded_clients(),
            "rows": [_row_json(each) for each in self.rows],
        }


def _row_json(judged: Judged) -> dict[str, Any]:
    row, found = judged.row, judged.found
    return {
        "name": row.name,
        "proves": row.proves,
        "verdict": judged.verdict,
        "why": judged.why,
        "seeds": found.seeds or [judged.seed],
        "minutes": round(judged.minutes, 2),
        "durationSeconds": round(judged.duration_seconds, 3),
        "operations": {
            kind: {
                **operations._asdict(),
                "leastSucceeded": _least(judged, kind),
            }
            for kind, operations in sorted(found.operations.items())
        },
        "faults": dict(sorted(found.faults.items())),
        "leastFaults": _least_faults(judged),
        "leftOut": found.left_out,
    }


def _least(judged: Judged, kind: str) -> int:
    least = judged.row.operations.get(kind)
    return least.within(judged.minutes) if least else 0


def _least_faults(judged: Judged) -> dict[str, int]:
    return {
        " or ".join(words) or "any": least.within(judged.minutes)
        for words, least in judged.row.faults.items()
    }


def versions() -> dict[str, str]:
    """Return the versions of what a proof runs on."""
    commit = _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    found = {
        "ultramon": f"{__version__} ({commit})" if commit else __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "kernel": f"{platform.system()} {platform.release()}",
    }
    for program in _PROGRAMS:
        option = "-V" if program == "mkfs.ext4" else "--version"
        if path := shutil.which(program) or _installed_postgres(program):
            found[program] = _said(path, option)
    for library in _LIBRARIES:
        found[library] = importlib.metadata.version(library)
    return found


def _installed_postgres(program: str) -> str | None:
    paths = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{program}"))
    return str(paths[-1]) if paths else None


def _said(*command: str) -> str:
    """Return the first line that a program prints, "" where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    lines = (done.stdout or done.stderr).splitlines() if not done.returncode else []
    return lines[0].strip() if lines else ""


def recorded_clients() -> list[str]:
    """Return the clients whose recorded calls the hosts' suite plays, with their versions."""
    return sorted({path.name for path in (ROOT / "tests/data/hooks").iterdir() if path.is_dir()})


def text(proof: Proof) -> str:
    """Return PROOF.md."""
    facts = {
        "verdict": f"**{proof.verdict}**",
        "began": f"{proof.began:%Y-%m-%d %H:%M} UTC",
        "took": f"{proof.duration_seconds / 60:.1f} minutes, asked for {proof.minutes:g}",
        "seed": f"{proof.seed}; again: `make proof MINUTES={proof.minutes:g} SEED={proof.seed}`",
        **versions(),
        "recorded clients": ", ".join(recorded_clients()),
    }
    lines = [HEAD, *_table([("", ""), *facts.items()]), "", "## Rows", ""]
    head = ("row", "verdict", "seconds", "seeds", "operation", "tried", "succeeded", "least")
    lines += _table([(*head, "refused", "faults met", "least"), *_rows(proof)])
    for each in proof.rows:
        lines += ["", f"**{each.row.name}**: {each.row.proves}."]
        lines += [f"- {each.verdict}: {_one_line(why)}" for why in each.why[:_CUT_AFTER]]
        lines += [
            f"- {number} not run here: {_one_line(reason)}"
            for reason, number in each.found.left_out.items()
        ]
    return "\n".join([*lines, "", TRIVIAL])


def _rows(proof: Proof) -> list[tuple[str, ...]]:
    rows = []
    for each in proof.rows:
        faults = _joined(dict(sorted(each.found.faults.items())))
        first = (each.row.name, each.verdict, f"{each.duration_seconds:.0f}", _seeds(each))
        last = (faults, _joined(_least_faults(each)))
        operations = sorted(each.found.operations.items()) or [("–", None)]
        for kind, counts in operations:
            numbers = (f"{counts.tried:,}", f"{counts.succeeded:,}") if counts else ("–", "–")
            refused = f"{counts.refused:,}" if counts else "–"
            rows.append((*first, kind, *numbers, str(_least(each, kind)), refused, *last))
            first, last = ("", "", "", ""), ("", "")
    return rows


def _joined(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in numbers.items()) or "–"


def _seeds(judged: Judged) -> str:
    seeds = judged.found.seeds or [judged.seed]
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def write(proof: Proof, directory: Path) -> None:
    """Write PROOF.md and proof.json."""
    (directory / "PROOF.md").write_text(text(proof), encoding="utf-8")
    values = json.dumps(proof.to_json(), indent=2, ensure_ascii=False)
    (directory / "proof.json").write_text(f"{values}\n", encoding="utf-8")
