"""`ultramon relay` as an orchestrator of the bench: ``relay.py WORKERS [--merged]``.

It knows of the bench what its contract says, and of ultramon the command line.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

RUN = "bench"


def main(workers: str, *more: str) -> int:
    """Run the relay, write the answer, return the relay's exit code."""
    given = {name: os.environ[f"BENCH_{name.upper()}"] for name in ("items", "agent", "check")}
    scratch, answer = os.environ["BENCH_SCRATCH"], os.environ["BENCH_ANSWER"]
    states, check = os.path.join(scratch, "states"), shlex.quote(given["check"])
    words = ["ultramon", "relay", "Do every item.", "--agent", "command", "--run", RUN]
    words += ["--items", given["items"], "--workers", workers, "--verify", f"{check} {{item}}"]
    if more:
        words += ["--verify-all", check]
    words += ["--grace", "5s", "--max-contexts", "1000", "--state-dir", states, "--json"]
    done = subprocess.run([*words, "--", given["agent"]], stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        return done.returncode
    work = json.loads(done.stdout)["work"]
    left = {*work["left"], *work["set_aside"], *work["unverified"]}
    tree = os.path.join(states, "relay", RUN, "worktree")
    if more:
        # The branch of a run that merges is checked out nowhere.
        tree = os.path.join(scratch, "tree")
        git = ("git", "worktree", "add", "--quiet", "--detach", tree, f"ultramon/{RUN}")
        subprocess.run(git, check=True)
    with open(given["items"], encoding="utf-8") as file:
        items = file.read().splitlines()
    with open(answer, "w", encoding="utf-8") as file:
        file.writelines(f"{'left' if item in left else 'done'} {item}\n" for item in items)
        file.write(f"tree {tree}\n")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
