"""How long tests take, from a table: files that take longest begin first, long tests are `slow`.

`make durations` writes the table anew, on a machine with nothing else to do.
"""

from collections import Counter

from helpers import DATA

TABLE = DATA / "durations.tsv"
SLOW_SECONDS = 0.1
"""For one case of a test, with the fixtures that it was the first to ask for."""
ONE_AT_A_TIME = "tests/real_client"
"""A directory whose tests wait for each other wherever they run: one worker takes them all."""


def read_table():
    """Return the seconds of each slow test, all its cases together."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {name: float(seconds) for seconds, name in (line.split("\t") for line in lines)}


def function_of(nodeid):
    """Return a test without its case."""
    return nodeid.partition("[")[0]


def scope_of(nodeid):
    """Return what one worker runs as a whole."""
    if nodeid.startswith(f"{ONE_AT_A_TIME}/"):
        return ONE_AT_A_TIME
    return nodeid.partition("::")[0]


class Recorder:
    """Adds up what each test took, and writes the table at the end."""

    def __init__(self):
        self._cases = Counter()

    def pytest_runtest_logreport(self, report):
        self._cases[report.nodeid] += report.duration

    def pytest_sessionfinish(self):
        longest, total = Counter(), Counter()
        for nodeid, seconds in self._cases.items():
            name = function_of(nodeid)
            longest[name] = max(longest[name], seconds)
            total[name] += seconds
        lines = [
            f"{total[name]:.1f}\t{name}\n"
            for name in sorted(total)
            if longest[name] >= SLOW_SECONDS
        ]
        TABLE.write_text("".join(lines), encoding="utf-8")
