"""Speed and error of the token estimator beside others: `python benchmarks/estimator.py CORPUS`.

Prints a Markdown table. CORPUS (.jsonl.gz, rows of `cat`, `split`, `text`, `tok`) is third-party
text and is never committed; only its `test` split is looked at. True counts: o200k_base from the
exact tokenizer, Claude from the offline reconstruction in the PyPI package ctok (not checked
against the API). LangChain and splintr-rs are measured if installed.
"""

import argparse
import gzip
import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from ultramon.context.estimator import FAMILIES, estimate_tokens

TRUTHS = ("o200k_base", "claude_v3", "claude_v47")
SESSION_ITEMS = 150
SESSIONS = 400
SESSION_MIX = {  # what a coding agent reads: share, kinds of the corpus
    "prose": (0.2, "en_guide en_markdown en_pydocs en_legal"),
    "code": (0.4, "py js ts_dts go rust c_h cpp sh sql css html"),
    "tool output": (
        0.4,
        "diff terminal log_real log_gen json_api json_pretty jsonl_chat csv_num yaml_toml uuid_sha",
    ),
}


def langchain():
    """Return LangChain's approximate counter, or None."""
    try:
        from langchain_core.messages import HumanMessage
        from langchain_core.messages.utils import count_tokens_approximately
    except ImportError:
        return None
    return lambda text: count_tokens_approximately([HumanMessage(text)])


def splintr():
    """Return the exact o200k_base counter of splintr-rs, or None."""
    try:
        from splintr import Tokenizer
    except ImportError:
        return None
    encode = Tokenizer.from_pretrained("o200k_base").encode
    return lambda text: len(encode(text))


def contestants():
    """Name every counter; None stands for one that is not installed."""
    found = {
        f"ultramon {family}": lambda text, family=family: estimate_tokens(text, family)
        for family in FAMILIES
    }
    found["LangChain count_tokens_approximately"] = langchain()
    found["splintr-rs o200k_base (exact)"] = splintr()
    return found


def seconds_per_call(count, text, rounds=7):
    """Return the best mean time of a call over several rounds of about 20 ms."""
    started = perf_counter()
    count(text)
    calls = max(1, int(0.02 / (perf_counter() - started + 1e-9)))
    best = float("inf")
    for _ in range(rounds):
        started = perf_counter()
        for _ in range(calls):
            count(text)
        best = min(best, (perf_counter() - started) / calls)
    return best


def megabytes_per_second(count, text):
    """Return the speed in MB of UTF-8, which means nothing for a counter that only asks len()."""
    speed = len(text.encode()) / seconds_per_call(count, text) / 1e6
    return f"{speed:.0f}" if speed < 10_000 else "len() only"


def speed_texts(rows):
    """Cut the texts whose counting is timed: 40 characters, 2 kB, 400 kB ASCII, 400 kB mixed."""
    code = "".join(row["text"] for row in rows if row["cat"] in ("py", "js"))
    ascii_text = "".join(c for c in code if c.isascii())
    mixed = "".join(row["text"] for row in rows)
    stretch = lambda text: (text * (400_000 // len(text) + 1))[:400_000]  # noqa: E731
    return ascii_text[:40], ascii_text[:2000], stretch(ascii_text), stretch(mixed)


def kind_error(rows, counts, truth):
    """Return the mean over kinds of text of the mean |relative error|."""
    errors = defaultdict(list)
    for row, count in zip(rows, counts, strict=True):
        errors[row["cat"]].append(abs(count / row["tok"][truth] - 1))
    return sum(sum(values) / len(values) for values in errors.values()) / len(errors)


def session_errors(rows, counts, truth):
    """Return (mean signed error, 95th percentile of |error|) of the sum over sampled sessions."""
    by_kind = defaultdict(list)
    for row, count in zip(rows, counts, strict=True):
        by_kind[row["cat"]].append((count, row["tok"][truth]))
    chance = random.Random(1)
    shares, groups = zip(
        *((share, kinds.split()) for share, kinds in SESSION_MIX.values()), strict=True
    )
    errors = []
    for _ in range(SESSIONS):
        drawn = chance.choices(groups, shares, k=SESSION_ITEMS)
        items = [chance.choice(by_kind[chance.choice(kinds)]) for kinds in drawn]
        errors.append(sum(count for count, _ in items) / sum(true for _, true in items) - 1)
    spread = sorted(map(abs, errors))
    return sum(errors) / SESSIONS, spread[int(0.95 * SESSIONS)]


def table_row(name, count, rows, texts):
    """Measure one counter against every truth it claims to count."""
    if count is None:
        return f"| {name} | not installed |" + " |" * 9
    short, page, ascii_text, mixed = texts
    cells = [
        f"{seconds_per_call(count, short) * 1e6:.2f}",
        f"{seconds_per_call(count, page) * 1e6:.1f}",
        megabytes_per_second(count, ascii_text),
        megabytes_per_second(count, mixed),
    ]
    counts = [count(row["text"]) for row in rows]
    cells += [f"{100 * kind_error(rows, counts, truth):.1f}" for truth in TRUTHS]
    for truth in TRUTHS:
        mean, p95 = session_errors(rows, counts, truth)
        cells.append(f"{100 * mean:+.1f} / {100 * p95:.1f}")
    return f"| {name} | " + " | ".join(cells) + " |"


def main():
    """Measure every contestant in one run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    with gzip.open(parser.parse_args().corpus, "rt", encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["split"] == "test"]
    texts = speed_texts(rows)
    columns = ["counter", "40 chars µs", "2 kB µs", "ASCII MB/s", "mixed MB/s"]
    columns += [f"error vs {truth} %" for truth in TRUTHS]
    columns += [f"session vs {truth} %, mean / p95" for truth in TRUTHS]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name, count in contestants().items():
        print(table_row(name, count, rows, texts), flush=True)


if __name__ == "__main__":
    main()
