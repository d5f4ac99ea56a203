"""Refit the tables of the forecast: `python scripts/fit_forecast.py FOLDER`.

FOLDER holds one JSON file per session of a coding agent, numbers only, and is never committed:
`client`, `window` (tokens, null = unknown), `source` (repository and file) and `steps` with
`tokens`, and `compacted` where the window was compacted. Steps of an epoch that reaches 65 % of its
window are asked, at most 40 for each rung, how many more end below it: 65, 75 and 85 %, as far as
the epoch reached them. A window that is not known is taken as 200,000.

Each repository has the same say, and in it each epoch. `benchmarks/runway.py` leaves each
repository out of the whole fit, the choice of quantiles included.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean as mean
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ultramon.context.forecast import Growth, TurnHistory, turns_within  # noqa: E402

HOSTS = {"Claude Code": "claude-code", "Codex": "codex", "OpenCode": "opencode"}
RUNGS = (0.65, 0.75, 0.85)
UNKNOWN_WINDOW = 200_000
DISTANCES = (0.05, 0.1, 0.2, 0.4)
"""Of the window, to a rung: where the rows of tables and measurement end."""
ROWS = len(DISTANCES) + 1
MAX_POINTS = 40
EPOCH_FALL = 0.7
"""A reading below this share of the one before begins an epoch."""
KNOTS = 8
KNOT_WIDTH = 0.7
"""In doublings of the turns to expect: how far from an entry of a table what it is made of lies."""
LOW_QUANTILES = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.10, 0.12, 0.15)
HIGH_QUANTILES = (0.75, 0.78, 0.81, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94, 0.96)
GOALS = {"in range": 0.80, "not before the low end": 0.93, "width": 4.0, "middle": (0.85, 1.2)}

HEADER = '''"""Tables of the forecast, written by scripts/fit_forecast.py; not for editing.

By host (``""`` = all of them together) the mean tokens that a turn adds. By the distance to a rung,
whose rows end at these shares of the context limit: low end, middle and high end of the turns where
1, 2, 4, … were to be expected, the one that reaches the rung among them. And whether the range kept
its goals on repositories that were left out, by distance and by host. See benchmarks/RESULTS.md.
"""

'''


class Point(NamedTuple):
    """A moment at which a rung lay ahead."""

    repository: str
    host: str
    left_tokens: float
    share: float
    growth: Growth
    truth: int
    weight: float


class Session(NamedTuple):
    """The epochs of one session."""

    repository: str
    host: str
    window: int
    epochs: list[list[int]]


class Tables(NamedTuple):
    """What the forecast knows of other sessions."""

    tokens_per_turn: dict[str, float]
    ends: tuple[tuple[tuple[float, float, float], ...], ...]
    """By distance, then by turns to expect: low end, middle and high end."""

    def turns(self, point: Point) -> tuple[int, int, int]:
        """Return low end, middle and high end."""
        expected = expected_turns(point, self.tokens_per_turn)
        return turns_within(expected, self.ends[distance(point)])


def load(folder: Path) -> list[Session]:
    """Read the sessions of a folder."""
    sessions = []
    for path in sorted(folder.glob("*.json")):
        stored = json.loads(path.read_text(encoding="utf-8"))
        name = next((n for n in (*HOSTS, "Pi") if stored["client"].startswith(n)), "")
        sessions.append(
            Session(
                # A file that names no repository is taken as one of its own.
                stored.get("source", path.stem).split(" ")[0],
                HOSTS.get(name, name.lower()),
                stored.get("window") or UNKNOWN_WINDOW,
                split(stored["steps"]),
            )
        )
    return sessions


def split(steps: list[dict[str, Any]]) -> list[list[int]]:
    """Return the readings of each epoch."""
    epochs: list[list[int]] = [[]]
    for step in steps:
        if "compacted" in step:
            epochs.append([])
            continue
        epoch = epochs[-1]
        if epoch and step["tokens"] < EPOCH_FALL * epoch[-1]:
            epochs.append([])
        epochs[-1].append(step["tokens"])
    return [epoch for epoch in epochs if epoch]


def points_of(sessions: list[Session]) -> list[Point]:
    """Return the moments to measure, each repository and in it each epoch with the same weight."""
    found: dict[str, list[list[Point]]] = defaultdict(list)
    for session in sessions:
        for epoch in session.epochs:
            points = list(_points(session, epoch))
            if points:
                found[session.repository].append(points)
    return [
        point._replace(weight=1 / len(points) / len(epochs))
        for epochs in found.values()
        for points in epochs
        for point in points
    ]


def _points(session: Session, epoch: list[int]):
    if max(epoch) < RUNGS[0] * session.window:
        return
    history, known = TurnHistory(), []
    for place, tokens in enumerate(epoch):
        history.record(tokens, float(place), reported=True)
        is_known = history.tokens_per_turn() is not None
        growth = history.growth
        known.append(Growth(growth.steps, growth.tokens, growth.squares) if is_known else None)
    for ratio in RUNGS:
        rung = ratio * session.window
        reached = next((at for at, tokens in enumerate(epoch) if tokens >= rung), None)
        if reached is None:
            continue
        places = [place for place in range(reached) if known[place]]
        stride = max(1, math.ceil(len(places) / MAX_POINTS))
        for place in places[::stride]:
            left = rung - epoch[place]
            yield Point(
                session.repository, session.host, left, left / session.window,
                known[place], reached - place - 1, 1.0,
            )  # fmt: skip


def fit_priors(sessions: list[Session]) -> dict[str, float]:
    """Return the mean tokens of a turn by host: geometric means over repositories.

    That of a host is drawn towards that of all by the weight of one repository.
    """
    grown: dict[tuple[str, str], list[int]] = defaultdict(list)
    for session in sessions:
        for epoch in session.epochs:
            steps = [max(0, after - before) for before, after in pairwise(epoch)]
            grown[session.host, session.repository] += steps
    means = {key: math.log(sum(steps) / len(steps)) for key, steps in grown.items() if sum(steps)}
    everything = sum(means.values()) / len(means)
    priors = {"": math.exp(everything)}
    for host in sorted({host for host, _ in means}):
        own = [mean for (its, _), mean in means.items() if its == host]
        priors[host] = math.exp((sum(own) + everything) / (len(own) + 1))
    return priors


def expected_turns(point: Point, priors: dict[str, float]) -> float:
    """Return the turns to expect, the one that reaches the rung among them."""
    prior = priors.get(point.host, priors[""])
    return point.left_tokens / point.growth.weigh(prior) + 1


def fit_ends(
    points: list[Point], priors: dict[str, float], quantiles: tuple[float, ...]
) -> list[tuple[float, ...]]:
    """Return for each quantile the turns at 1, 2, 4, … turns to expect."""
    rows = []
    for point in points:
        expected = expected_turns(point, priors)
        rows.append(((point.truth + 1) / expected, math.log2(expected), point.weight))
    rows.sort()
    ratios = [ratio for ratio, *_ in rows]
    tables: list[list[float]] = [[] for _ in quantiles]
    for knot in range(KNOTS):
        sums = [
            *accumulate(
                weight * math.exp(-(((doublings - knot) / KNOT_WIDTH) ** 2))
                for _, doublings, weight in rows
            )
        ]
        for table, quantile in zip(tables, quantiles, strict=True):
            turns = 2**knot * ratios[bisect_left(sums, quantile * sums[-1])] - 1
            table.append(max(turns, table[-1] if table else 0.0))
    return [tuple(table) for table in tables]


def fit(sessions: list[Session], points: list[Point]) -> Tables:
    """Return the tables.

    Low and high end are, in each row of distances, the narrowest quantiles that reach the goals
    there where each repository of the fit is left out in turn.

    Args:
        sessions: All sessions of the repositories to fit.
        points: Their moments, from `points_of`.
    """
    quantiles = (*LOW_QUANTILES, *HIGH_QUANTILES)
    # By row and quantile: in what share of the moments the end is right, in each repository.
    right: dict[tuple[int, float], list[float]] = defaultdict(list)
    for repository in sorted({point.repository for point in points}):
        priors = fit_priors([one for one in sessions if one.repository != repository])
        own = [point for point in points if point.repository == repository]
        others = [point for point in points if point.repository != repository]
        ends = fit_ends(others, priors, quantiles)
        for row in {distance(point) for point in own}:
            of_row = [point for point in own if distance(point) == row]
            for quantile, table in zip(quantiles, ends, strict=True):
                tables = Tables(priors, (by_turns(table, table, table),) * ROWS)
                right[row, quantile].append(_share_right(of_row, tables, is_low=quantile < 0.5))
    priors = fit_priors(sessions)
    wanted = (*quantiles, 0.5)
    fitted = dict(zip(wanted, fit_ends(points, priors, wanted), strict=True))
    ends = []
    for row in range(ROWS):
        shares = {quantile: mean(right[row, quantile] or [0.0]) for quantile in quantiles}
        least = GOALS["not before the low end"]
        low = max((q for q in LOW_QUANTILES if shares[q] >= least), default=LOW_QUANTILES[0])
        least = GOALS["in range"] + 1 - shares[low]
        high = min((q for q in HIGH_QUANTILES if shares[q] >= least), default=HIGH_QUANTILES[-1])
        ends.append(by_turns(fitted[low], fitted[0.5], fitted[high]))
    return Tables(priors, tuple(ends))


def by_turns(
    low: tuple[float, ...], middle: tuple[float, ...], high: tuple[float, ...]
) -> tuple[tuple[float, float, float], ...]:
    """Return three tables as one of three columns."""
    return tuple(zip(low, middle, high, strict=True))


def _share_right(points: list[Point], tables: Tables, *, is_low: bool) -> float:
    """Return in what share of the points, by their weight, the low or the high end was right."""
    right = 0.0
    for point in points:
        low, _, high = tables.turns(point)
        right += point.weight * (low <= point.truth if is_low else point.truth <= high)
    return right / sum(point.weight for point in points)


class Score(NamedTuple):
    """How the forecast did on some moments of one repository."""

    in_range: float
    not_before_low: float
    width: float
    """(high + 1) ÷ (low + 1) at the median."""
    middle: float
    """(middle + 1) ÷ (truth + 1) at the median."""

    @property
    def misses(self) -> list[str]:
        """The goals that it fails, by name."""
        least, most = GOALS["middle"]
        reached = {
            "in range": self.in_range >= GOALS["in range"],
            "not before the low end": self.not_before_low >= GOALS["not before the low end"],
            "width": self.width <= GOALS["width"],
            "middle": least <= self.middle <= most,
        }
        return [goal for goal, is_reached in reached.items() if not is_reached]


Guess = tuple[Point, tuple[int, int, int]]


def guess_left_out(sessions: list[Session], points: list[Point]) -> Iterator[Guess]:
    """Yield the forecasts for each repository from tables fitted without it."""
    for repository in sorted({point.repository for point in points}):
        tables = fit(
            [one for one in sessions if one.repository != repository],
            [point for point in points if point.repository != repository],
        )
        for point in points:
            if point.repository == repository:
                yield point, tables.turns(point)


def score(guesses: list[Guess]) -> dict[str, Score]:
    """Return the score of each repository."""
    found: dict[str, list[Guess]] = defaultdict(list)
    for guess in guesses:
        found[guess[0].repository].append(guess)
    return {repository: _score(own) for repository, own in found.items()}


def _score(guesses: list[Guess]) -> Score:
    total = sum(point.weight for point, _ in guesses)

    def share(holds: Callable[[int, int, int, int], bool]) -> float:
        return sum(p.weight for p, ends in guesses if holds(p.truth, *ends)) / total

    def median(value: Callable[[int, int, int, int], float]) -> float:
        rows = sorted((value(p.truth, *ends), p.weight) for p, ends in guesses)
        return rows[bisect_left([*accumulate(w for _, w in rows)], total / 2)][0]

    return Score(
        share(lambda truth, low, _, high: low <= truth <= high),
        share(lambda truth, low, *_: low <= truth),
        median(lambda _, low, __, high: (high + 1) / (low + 1)),
        median(lambda truth, _, middle, __: (middle + 1) / (truth + 1)),
    )


def average(scores: Iterable[Score]) -> Score:
    """Return the mean score: each repository has the same say."""
    return Score(*map(mean, zip(*scores, strict=True)))


def distance(point: Point) -> int:
    """Return the row of `DISTANCES` that a moment is in."""
    return sum(point.share >= end for end in DISTANCES)


def held_ranges(guesses: list[Guess]) -> tuple[dict[str, bool], list[bool]]:
    """Return by host, ``""`` is all of them, and by distance whether all goals were reached."""

    def holds(own: list[Guess]) -> bool:
        return not average(score(own).values()).misses

    hosts = {
        host: [g for g in guesses if host in ("", g[0].host)] for host in ("", *HOSTS.values())
    }
    rows = [[g for g in guesses if distance(g[0]) == row] for row in range(ROWS)]
    return {host: holds(own) for host, own in hosts.items()}, [holds(own) for own in rows]


def write(tables: Tables, hosts: dict[str, bool], rows: list[bool], path: Path) -> None:
    """Write the module."""
    priors = {host: round(tables.tokens_per_turn[host]) for host in ("", *HOSTS.values())}
    text = f"{HEADER}TOKENS_PER_TURN = {priors!r}\n"
    ends = tuple(
        tuple(tuple(round(turns, 2) for turns in table) for table in row) for row in tables.ends
    )
    text += f"DISTANCES = {DISTANCES!r}\nENDS = {ends!r}\n"
    text += f"HOLDS_AT_DISTANCE = {tuple(rows)!r}\nHOLDS_FOR_HOST = {hosts!r}\n"
    path.write_text(text, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    sessions = load(parser.parse_args().folder)
    points = points_of(sessions)
    hosts, rows = held_ranges([*guess_left_out(sessions, points)])
    path = ROOT / "ultramon" / "context" / "forecast_tables.py"
    write(fit(sessions, points), hosts, rows, path)


if __name__ == "__main__":
    main()
