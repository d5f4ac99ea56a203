"""What several workers of a relay save: items that conflict, an agent that takes time.

`make bench-workers`, on a quiet machine, writes the section of RESULTS.md in some eight minutes. It
needs the wheel claude-agent-sdk, which brings the client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers.relayed import RelayedProject, finish
from real_client.client import MODEL, Client, find_client, one_at_a_time
from real_client.item_agent import ItemAgent
from real_client.item_job import GOAL, RULES, ItemJob
from results import replace_section

TITLE = "Several workers of a relay"
WINDOW = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}
COUNT = 40

PAIRS = [f"p{number}-{side}" for side in "xy" for number in range(12)]
FREE = [f"f{number}" for number in range(16)]
SECONDS_AN_ITEM = 3
CHECK = ("--verify", "grep -Fxqre {item} made", "--verify-all", "! grep -rq bad made")


def measure(workers: int, *, with_paths: bool) -> str:
    """Return the row of a run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        project = RelayedProject(Path(name))
        path = Path(name, "items.tsv")
        rows = [f"{item}\tmade/{item.partition('-')[0]}" for item in PAIRS + FREE]
        path.write_text("item\tpaths\n" + "".join(f"{row}\n" for row in rows))
        items = ("--items", str(path)) if with_paths else project.items(*PAIRS, *FREE)
        environ = {"WORKERS": str(Path(name, "workers")), "TAKES": str(SECONDS_AN_ITEM)}
        began = time.monotonic()
        given = (*items, *CHECK, "--workers", str(workers), "--max-contexts", "100")
        code, result, told = finish(project.begin("commits", *given, **environ), 3600)
        seconds = time.monotonic() - began
        assert code == 0, told
        values = project.git("reflog", "--format=%H", "ultramon/job").split()[:-1]
    merges, counts = result["merges"], result["work"]["counts"]
    facts = [
        str(workers),
        "yes" if with_paths else "no",
        f"{seconds:.0f} s",
        f"{counts['verified']} of {counts['assigned']}",
        str(merges["conflicts"]),
        str(len(values)),
        str(merges["checks"]),
        str(len(result["contexts"])),
    ]
    return f"| {' | '.join(facts)} |"


def measure_client(workers: int) -> str:
    """Return the row of a run of the real client with a scripted model."""
    names = [f"part {number:02}" for number in range(1, COUNT + 1)]
    pairs = {name: f"pair {number % 12}" for number, name in enumerate(names[:24])}
    with tempfile.TemporaryDirectory(prefix="relay-workers-") as path, one_at_a_time():
        folder = Path(path)
        agent = ItemAgent(folder / "configuration", RULES, shared=pairs)
        try:
            client = Client(folder, agent)
            job = ItemJob(client.project, COUNT)
            rules = [word for rule in RULES for word in ("--rule", rule)]
            began = time.monotonic()
            done = subprocess.run(
                [
                    sys.executable, "-m", "ultramon", "relay", GOAL, "--items", "items.txt",
                    "--verify", job.check_command, "--verify-all", "test ! -e bad", *rules,
                    "--workers", str(workers), "--max-contexts", "100", "--json", "--",
                    "--model", MODEL,
                ],
                cwd=job.directory,
                env=client.environment(
                    **WINDOW, ULTRAMON_STATE_DIR=str(folder / "state"),
                    PATH=os.pathsep.join([str(client.program.parent), os.environ["PATH"]]),
                ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )  # fmt: skip
            seconds = time.monotonic() - began
        finally:
            agent.close()
    assert not done.returncode, done.stderr
    result = json.loads(done.stdout)
    merges, counts = result["merges"], result["work"]["counts"]
    uncached = sum(one.tokens - one.cached - one.shared for one in agent.measured)
    facts = [
        str(workers),
        f"{seconds:.0f} s",
        f"{counts['verified']} of {counts['assigned']}",
        str(merges["conflicts"]),
        str(merges["checks"]),
        str(len(result["contexts"])),
        str(len(agent.measured)),
        f"{sum(one.tokens for one in agent.measured):,}",
        f"{uncached:,}",
    ]
    return f"| {' | '.join(facts)} |"


def main() -> None:
    """Measure all, and write the section of the results."""
    done = subprocess.run([find_client(), "--version"], capture_output=True, text=True, check=True)
    parts = [
        f"Written by `make bench-workers`, {datetime.now(UTC):%Y-%m-%d}: 40 items, 24 of them in "
        "twelve pairs that write the end of one file. Every value that the branch had was checked. "
        "What each column means: [README](README.md#several-workers).",
        f"### A stand-in agent that takes {SECONDS_AN_ITEM} s an item",
        "| workers | paths known | time | merged | conflicts | moves | checks | contexts |\n"
        "|---|---|---|---|---|---|---|---|\n"
        + "\n".join(
            measure(workers, with_paths=with_paths)
            for workers, with_paths in ((1, False), (2, False), (4, False), (4, True))
        ),
        f"### Claude Code {done.stdout.split()[0]}, a scripted model that answers at once",
        "| workers | time | merged | conflicts | checks | contexts | requests | input tokens | "
        "uncached, where sessions share tools and system prompt |\n"
        "|---|---|---|---|---|---|---|---|---|\n" + "\n".join(map(measure_client, (1, 2, 4))),
    ]
    replace_section(TITLE, "\n\n".join(parts))


if __name__ == "__main__":
    main()
