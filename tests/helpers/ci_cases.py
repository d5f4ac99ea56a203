"""How many cases of a test CI runs, 0 and more, where not all: the rest is `exhaustive`.

`tests/data/ci_cases.tsv` has a line for each such test: what is cheaper to see elsewhere, or is the
same rule once more with another client, store or input. `make ci-full` runs all.
"""

from collections import Counter

from helpers import DATA
from helpers.durations import function_of

TABLE = DATA / "ci_cases.tsv"


def read_table():
    """Return the number of cases of each test that has a line."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {name: int(count) for count, name in (line.split("\t") for line in lines)}


def left_out(nodeids):
    """Return the tests of a run that CI leaves out; what it runs is spread over all cases."""
    kept_of = read_table()
    cases_of = Counter(function_of(nodeid) for nodeid in nodeids)
    seen = Counter()
    out = set()
    for nodeid in nodeids:
        name = function_of(nodeid)
        if name not in kept_of:
            continue
        if seen[name] * kept_of[name] % cases_of[name] >= kept_of[name]:
            out.add(nodeid)
        seen[name] += 1
    return out
