"""The result of a bench: for people a table, for programs JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.testing.bench.judge import Verdict

_COLUMNS = (
    "seed", "verified", "false done", "lost", "left", "repeated", "contexts", "tokens", "uncached",
    "per million", "time", "faults",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BenchRun:
    """A command on the job of one seed.

    Attributes:
        seed: The seed.
        verdict: What became of the items.
        answer_problems: What of the command's answer could not be used.
        exit_code: Of the command, negative for a signal; None = it was killed here.
        timed_out: Whether its time was up.
        seconds: How long it ran.
    """

    seed: int
    verdict: Verdict
    answer_problems: tuple[str, ...]
    exit_code: int | None
    timed_out: bool
    seconds: float

    @property
    def problems(self) -> list[str]:
        """What a reader of the numbers must know, a sentence each."""
        verdict, found = self.verdict, list(self.answer_problems)
        if self.timed_out:
            ended = "was killed" if self.exit_code is None else "ended when it was asked to"
            found.append(f"the time was up after {self.seconds:.0f} s, and the command {ended}")
        elif self.exit_code:
            found.append(f"the command ended with {self.exit_code}")
        if not verdict.contexts:
            found.append("no agent was started")
        elif not verdict.faults:
            found.append("no fault happened: this run says nothing about them")
        if verdict.unexplained:
            found.append(f"done by no agent: {' '.join(verdict.unexplained)}")
        if verdict.unsaid:
            found.append(f"done and not said to be: {' '.join(verdict.unsaid)}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        verdict = self.verdict
        return {
            "seed": self.seed,
            "verified": list(verdict.verified),
            "falseDone": list(verdict.false_done),
            "lost": list(verdict.lost),
            "left": list(verdict.left),
            "repeated": verdict.repeated,
            "contexts": verdict.contexts,
            "tokens": verdict.tokens,
            "uncachedTokens": verdict.uncached_tokens,
            "verifiedPerMillionTokens": _rounded(verdict.verified_per_million_tokens),
            "seconds": round(self.seconds, 3),
            "faults": verdict.faults,
            "exitCode": self.exit_code,
            "timedOut": self.timed_out,
            "problems": self.problems,
        }

    def numbers(self) -> Counter[str]:
        """Return what can be added up, by column."""
        verdict = self.verdict
        return Counter(
            {
                "verified": len(verdict.verified),
                "false done": len(verdict.false_done),
                "lost": len(verdict.lost),
                "left": len(verdict.left),
                "repeated": sum(verdict.repeated.values()),
                "contexts": verdict.contexts,
                "tokens": verdict.tokens,
                "uncached": verdict.uncached_tokens,
                "faults": sum(verdict.faults.values()),
            }
        )


def total(runs: Sequence[BenchRun]) -> dict[str, Any]:
    """Return the sums over all seeds, by column; ``faults`` by their names."""
    sums: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for run in runs:
        sums.update(run.numbers())
        faults.update(run.verdict.faults)
    per_million = sums["verified"] * 1e6 / sums["tokens"] if sums["tokens"] else None
    return {
        "items": sum(sums[name] for name in ("verified", "false done", "lost", "left")),
        "verified": sums["verified"],
        "falseDone": sums["false done"],
        "lost": sums["lost"],
        "left": sums["left"],
        "repeated": sums["repeated"],
        "contexts": sums["contexts"],
        "tokens": sums["tokens"],
        "uncachedTokens": sums["uncached"],
        "verifiedPerMillionTokens": _rounded(per_million),
        "seconds": round(sum(run.seconds for run in runs), 3),
        "faults": dict(faults),
        "timedOut": sum(run.timed_out for run in runs),
    }


def lines(runs: Sequence[BenchRun]) -> list[str]:
    """Return the table of all seeds, with their sum, and what is to be known beside it."""
    rows = [list(_COLUMNS)]
    for run in runs:
        rows.append(_row(str(run.seed), run.numbers(), run.seconds))
    if len(runs) > 1:
        sums: Counter[str] = Counter()
        for run in runs:
            sums.update(run.numbers())
        rows.append(_row("all", sums, sum(run.seconds for run in runs)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(map(str.rjust, row, widths)) for row in rows]
    said = [f"seed {run.seed}: {problem}" for run in runs for problem in run.problems]
    met = total(runs)["faults"]
    named = ", ".join(f"{count} × {name}" for name, count in met.items())
    return [*table, f"faults: {named or 'none'}", *said]


def _row(name: str, numbers: Counter[str], seconds: float) -> list[str]:
    tokens = numbers["tokens"]
    per_million = f"{numbers['verified'] * 1e6 / tokens:.1f}" if tokens else "-"
    own = {"seed": name, "per million": per_million, "time": f"{seconds:.0f} s"}
    return [own.get(column) or f"{numbers[column]:,}" for column in _COLUMNS]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
