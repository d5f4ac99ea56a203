"""The check of the bench: ``check ITEM`` for one item in the working directory, else for the tree.

Exit code 0: it is done; of a tree: whatever was begun in it is done. Else 1, and why.
"""

from __future__ import annotations

import os
import sys

from ultramon.testing.bench.job import BenchJob


def main(words: list[str]) -> int:
    """Check an item or a tree; return the exit code.

    Args:
        words: The folder of the job, and maybe the item.
    """
    job, tree = BenchJob.load(words[0]), os.getcwd()
    named = words[1:]
    unknown = [item for item in named if item not in job.items]
    if unknown or len(named) > 1:
        sys.stdout.write(f"not one item of this job: {' '.join(named)}\n")
        return 1
    wrong = [one for one in named if not job.is_done(tree, one)] if named else job.damaged(tree)
    if wrong:
        sys.stdout.write(f"not done: {' '.join(wrong)}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
