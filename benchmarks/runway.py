"""How well the forecast of turns holds: `python benchmarks/runway.py FOLDER`. Prints Markdown.

FOLDER and moments as in `scripts/fit_forecast.py`. Each repository is measured with tables that
were fitted, quantiles and all, without it; each has the same say. The interval is a bootstrap over
repositories (90 %).
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from fit_forecast import (
    DISTANCES,
    HOSTS,
    Guess,
    Score,
    average,
    distance,
    guess_left_out,
    load,
    points_of,
    score,
)
from results import replace_section

TITLE = "Forecast of turns"
ROUNDS = 2_000
HEAD = """
| {} | repositories | moments | in range | not before low | width | middle ÷ truth | texts say |
|---|---|---|---|---|---|---|---|"""


def interval(scores: list[Score], column: int, chance: random.Random) -> tuple[float, float]:
    """Return the 90 % interval of a mean over repositories."""
    values = [one[column] for one in scores]
    means = sorted(sum(chance.choices(values, k=len(values))) / len(values) for _ in range(ROUNDS))
    return means[ROUNDS // 20], means[-ROUNDS // 20]


def row(name: str, guesses: list[Guess]) -> str:
    """Return one row of a table."""
    scores = list(score(guesses).values())
    found, chance = average(scores), random.Random(1)
    cells = [name, f"{len(scores)}", f"{len(guesses):,}"]
    for column, value in enumerate(found):
        low, high = interval(scores, column, chance)
        if column < 2:
            cells.append(f"{value:.0%} ({low:.0%} to {high:.0%})".replace("%", " %"))
        else:
            cells.append(f"{value:.2f} ({low:.2f} to {high:.2f})")
    cells.append("the low end: " + ", ".join(found.misses) if found.misses else "the range")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, and print or write the section."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write-results", action="store_true", help="also into RESULTS.md")
    given = parser.parse_args()
    sessions = load(given.folder)
    points = points_of(sessions)
    guesses = [*guess_left_out(sessions, points)]
    hosts = {**{host: name for name, host in HOSTS.items()}, "pi": "Pi"}
    ends = ["0", *(f"{end:.0%}".replace("%", " %") for end in DISTANCES)]
    distances = [f"{one} to {two}" for one, two in pairwise(ends)]
    distances.append(f"{ends[-1]} and more")
    of_rows = {n: [g for g in guesses if distance(g[0]) == n] for n in range(len(distances))}
    body = [
        f"Real sessions of {len({p.repository for p in points})} repositories, each measured with "
        "tables fitted without it, quantiles and all. Epochs that reach 65 % of their window, and "
        "the turns before 65, 75 and 85 %, as far as they came. Each repository has the same say; "
        "in brackets a bootstrap over repositories (90 %). Goals: 80 % in range, 93 % not before "
        "the low end, width ((high + 1) ÷ (low + 1), median) at most 4, middle ÷ truth (each + 1, "
        "median) 0.85 to 1.2. Where one is missed, what is missed is named, and texts say the low "
        "end alone. "
        "A window that no recording states is taken as 200,000.",
        HEAD.format("host"),
        row("all", guesses),
        *(row(hosts[h], [g for g in guesses if g[0].host == h]) for h in hosts),
        HEAD.format("distance to the rung"),
        *(row(distances[n], own) for n, own in of_rows.items() if own),
    ]
    text = "\n".join(body)
    print(text)
    if given.write_results:
        replace_section(TITLE, text)


if __name__ == "__main__":
    main()
