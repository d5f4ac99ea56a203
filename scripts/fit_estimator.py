"""Refit the weights of the token estimator: `python scripts/fit_estimator.py CORPUS.jsonl.gz ...`.

Needs numpy and scipy, nothing of which ultramon needs. A corpus has one JSON object per line:
`cat` (kind of text), `split` (`train` or `test`), `text`, `tok` (true counts per family) and
optionally `weight` (of the kind against the others, default 1). Samples are third-party text and
are never committed. OpenAI counts come from the exact tokenizers; Claude counts from the offline
reconstruction in the package ctok.

Non-negative least squares on the relative error, every kind of text with the same say. Cells seen
too rarely to be measured are drawn towards a smaller model, in which the classes of neighbouring
characters contribute independently; blocks of Unicode never seen keep a cautious default.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

sys.path.insert(0, str(Path(__file__).parent.parent))

from ultramon.context.estimator import (
    PAIR_CLASSES,
    TRIPLE_CLASSES,
    block_codes,
    masked,
    pair_codes,
    triple_codes,
)

FAMILIES = ("o200k_base", "cl100k_base", "claude_v3", "claude_v47")
CELLS = 256
TRIPLE_CELLS = len(TRIPLE_CLASSES) ** 3
TWO_BYTE_BLOCKS = 16
DEFAULT_TOKENS_PER_BYTE = 0.7
MAX_TOKENS_PER_UNIT = 4.0
CONTEXT_PULL = 0.03  # chosen by leaving whole kinds of text out
BLOCK_PULL = 0.01

HEADER = '''"""Weights of the token estimator, written by scripts/fit_estimator.py; not for editing.

Per family: pair table, triple table, tokens per unit of both; block table, tokens per unit.
OpenAI families are fitted to exact counts, Claude families to the reconstruction in ctok.
"""

TABLES: dict[str, tuple[bytes, bytes, float, bytes, float]] = {
'''


def load(paths):
    """Read the rows of several corpora."""
    rows = []
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows += [json.loads(line) for line in lines]
    return rows


def features(text):
    """Count how often each cell of the three tables is looked up for a text."""
    data = masked(text)
    views = (pair_codes(data)[: len(data)], triple_codes(data)[: len(data)], block_codes(text))
    counts = [np.bincount(np.frombuffer(view, np.uint8), minlength=CELLS) for view in views]
    counts[2][0] = 0
    return np.concatenate(counts)


def default_blocks():
    """Guess tokens per UTF-16 unit of a block from the bytes UTF-8 needs for it."""
    blocks = np.full(CELLS, 3 * DEFAULT_TOKENS_PER_BYTE)
    blocks[:TWO_BYTE_BLOCKS] = 2 * DEFAULT_TOKENS_PER_BYTE
    blocks[0] = 0.0
    return blocks


def independent_classes():
    """Return the class at each position of each cell, for pairs and for triples."""
    cells = np.arange(CELLS)
    pairs = [cells // 16**at % 16 == code for at in (0, 1) for code in range(len(PAIR_CLASSES))]
    triples = [
        (cells // 6**at % 6 == code) & (cells < TRIPLE_CELLS)
        for at in (0, 1, 2)
        for code in range(len(TRIPLE_CLASSES))
    ]
    return np.array(pairs, float), np.array(triples, float)


def solve(counts, tokens, say, prior, pull):
    """Fit weights >= 0 to the relative error, each drawn towards its prior."""
    seen = counts.sum(0) > 0
    root = np.sqrt(say)
    matrix = np.vstack([counts[:, seen] * (root / tokens)[:, None], np.diag(pull[seen])])
    wanted = np.concatenate([root, (pull * prior)[seen]])
    fitted = prior.copy()
    fitted[seen], _ = nnls(matrix, wanted, maxiter=100_000)
    return fitted


def fit(counts, tokens, say):
    """Fit the three tables of one family: 256 pair, 256 triple, 256 block weights in tokens."""
    pairs, triples = independent_classes()
    small = np.hstack(
        [
            counts[:, :CELLS] @ pairs.T,
            counts[:, CELLS : 2 * CELLS] @ triples.T,
            counts[:, 2 * CELLS :],
        ]
    )
    contexts = len(pairs) + len(triples)
    prior = np.concatenate([np.full(contexts, 0.05), default_blocks()])
    pull = np.concatenate([np.full(contexts, 0.02), np.full(CELLS, BLOCK_PULL)])
    first = solve(small, tokens, say, prior, pull)
    prior = np.concatenate(
        [first[: len(pairs)] @ pairs, first[len(pairs) : contexts] @ triples, first[contexts:]]
    )
    pull = np.concatenate([np.full(2 * CELLS, CONTEXT_PULL), np.full(CELLS, BLOCK_PULL)])
    weights = solve(counts, tokens, say, prior, pull)
    weights[2 * CELLS :] = np.minimum(weights[2 * CELLS :], MAX_TOKENS_PER_UNIT)
    return weights


def quantised(weights):
    """Round to bytes: at most 127 for contexts and 255 for blocks, each with its unit in tokens."""
    contexts, blocks = weights[: 2 * CELLS], weights[2 * CELLS :]
    context_unit, block_unit = contexts.max() / 127, blocks.max() / 255
    return (
        np.rint(contexts / context_unit).astype(np.uint8),
        context_unit,
        np.rint(blocks / block_unit).astype(np.uint8),
        block_unit,
    )


def kind_error(rows, counts, weights, family):
    """Return the mean over kinds of the mean |relative error|, in percent."""
    errors = defaultdict(list)
    for row, count in zip(rows, counts, strict=True):
        errors[row["cat"]].append(abs(count @ weights / row["tok"][family] - 1))
    return 100 * np.mean([np.mean(values) for values in errors.values()])


def literal(table, indent=8):
    """Write a table as a bytes.fromhex call."""
    text = table.tobytes().hex()
    lines = [f'{" " * (indent + 4)}"{text[at : at + 80]}"' for at in range(0, len(text), 80)]
    return f"{' ' * indent}bytes.fromhex(\n" + "\n".join(lines) + f"\n{' ' * indent}),\n"


def main():
    """Fit every family, say how well it went, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument(
        "--output", default="ultramon/context/estimator_weights.py", help="where to write"
    )
    options = parser.parse_args()
    rows = load(options.corpus)
    train = [row for row in rows if row["split"] == "train"]
    test = [row for row in rows if row["split"] == "test"]
    kinds = Counter(row["cat"] for row in train)
    say = np.array([row.get("weight", 1) / kinds[row["cat"]] for row in train])
    counts = np.array([features(row["text"]) for row in train], float)
    test_counts = np.array([features(row["text"]) for row in test], float)
    out = [HEADER]
    for family in FAMILIES:
        tokens = np.array([row["tok"][family] for row in train], float)
        contexts, context_unit, blocks, block_unit = quantised(fit(counts, tokens, say))
        weights = np.concatenate([contexts * context_unit, blocks * block_unit])
        print(
            f"{family}: train {kind_error(train, counts, weights, family):.2f} %"
            + (f", test {kind_error(test, test_counts, weights, family):.2f} %" if test else "")
        )
        out.append(f'    "{family}": (\n{literal(contexts[:CELLS])}{literal(contexts[CELLS:])}')
        out.append(
            f"        {context_unit:.8f},\n{literal(blocks)}        {block_unit:.8f},\n    ),\n"
        )
    out.append("}\n")
    Path(options.output).write_text("".join(out), encoding="utf-8")


if __name__ == "__main__":
    main()
