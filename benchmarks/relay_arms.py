"""Four ways to have one long job done, with the real client and a scripted model on loopback.

`make bench-relay` runs every arm twice, undisturbed and with SIGKILLs, and writes the section of
RESULTS.md. It takes some minutes and needs the wheel claude-agent-sdk, which brings the client.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from helpers.relayed import ended_at_last  # noqa: E402
from real_client.client import MODEL, Client, find_client, one_at_a_time  # noqa: E402
from real_client.item_agent import CHARS_PER_TOKEN, NO_FILE, STUB, ItemAgent  # noqa: E402
from real_client.item_job import GOAL, RULES, SOURCE_CHARS, ItemJob  # noqa: E402
from results import replace_section  # noqa: E402

TITLE = "Long jobs, four ways: a scripted model, plumbing and tokens, not quality"
WINDOW = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}
COMPACTED_AT_TOKENS = 67_000
RUN_SECONDS = 600
RUN = "bench"
TRIES = 5
RELAY = "`ultramon relay`"
OF_KILLS = ("clients killed", "relays killed", "started again by hand")
"""Rows that say nothing where nobody was killed."""


@dataclass(frozen=True)
class Plan:
    """What a run of an arm has to bear.

    Attributes:
        count: Number of items.
        false_claims: Items that the model says are done without doing them, the first time.
        killed_in: Items during whose tool call the client is killed.
        relay_killed_in: The item during whose tool call the relay is killed.
        task_words: What the model writes before the name of an item in its task list.
        lists_one: Whether it puts a single item into its task list when it is asked to.
    """

    count: int
    false_claims: Mapping[str, str] = field(default_factory=dict)
    killed_in: tuple[str, ...] = ()
    relay_killed_in: str | None = None
    task_words: str = ""
    lists_one: bool = True


UNDISTURBED = Plan(40, {"part 09": STUB, "part 23": NO_FILE})
KILLED = replace(UNDISTURBED, killed_in=("part 06", "part 18"), relay_killed_in="part 29")


@dataclass(frozen=True)
class Outcome:
    """What an arm says at its end.

    Attributes:
        claimed: The items that it counts as done.
        reported: Further items that it names as not done.
        tree: Where the notes are.
    """

    claimed: frozenset[str]
    reported: frozenset[str] = frozenset()
    tree: Path | None = None


@dataclass
class Bench:
    """A client with a job and a model of its own.

    Attributes:
        plan: What it has to bear.
        pauses: Where a tool waits to be killed, by item.
        kills: How often the client was killed.
        relay_kills: How often the relay was.
        by_hand: How often a person had to start something again.
    """

    plan: Plan
    client: Client
    job: ItemJob
    agent: ItemAgent
    state: Path
    pauses: dict[str, Path]
    kills: int = 0
    relay_kills: int = 0
    by_hand: int = 0

    def variables(self) -> dict[str, str]:
        """Return what client and ultramon see beside the client's own, the same in each arm."""
        folders = [self.client.program.parent, Path(sys.executable).parent]
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        return {**WINDOW, "PATH": path, "ULTRAMON_STATE_DIR": str(self.state)}

    def ultramon(self, *arguments: str) -> None:
        """Run a command of ultramon to its end."""
        subprocess.run(
            [sys.executable, "-m", "ultramon", *arguments],
            cwd=self.job.directory,
            env=self.client.environment(**self.variables()),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )

    def session(self, prompt: str, *arguments: str) -> int:
        """Run one headless session of the client; return its exit code."""
        process = self.client.start(prompt, *arguments, **self.variables())
        with self._killing(), ended_at_last(process):
            process.communicate(timeout=RUN_SECONDS)
        return process.returncode

    def relay(self, *arguments: str) -> Any:
        """Run a relay; return its result, None if it was killed."""
        process = subprocess.Popen(
            [sys.executable, "-m", "ultramon", "relay", *arguments],
            cwd=self.job.directory,
            env=self.client.environment(**self.variables()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with self._killing(process), ended_at_last(process):
            printed, told = process.communicate(timeout=RUN_SECONDS)
        if process.returncode == -signal.SIGKILL:
            return None
        assert printed, told
        return json.loads(printed)

    @contextmanager
    def _killing(self, relay: subprocess.Popen[str] | None = None) -> Iterator[None]:
        """Send SIGKILL where a tool waits: to its client, or to the relay."""
        ended = threading.Event()
        thread = threading.Thread(target=self._kill, args=(relay, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _kill(self, relay: subprocess.Popen[str] | None, ended: threading.Event) -> None:
        while not ended.wait(0.02):
            for item, pause in list(self.pauses.items()):
                if not (pause / "pid").exists():
                    continue
                del self.pauses[item]
                tool = int((pause / "pid").read_text())
                if item != self.plan.relay_killed_in:
                    self.kills += 1
                    os.kill(client_of(tool), signal.SIGKILL)
                    os.kill(tool, signal.SIGKILL)
                elif relay is not None:
                    self.relay_kills += 1
                    relay.kill()
                    # Its client goes on alone.
                    (pause / "gate").write_text("\n")


def client_of(pid: int) -> int:
    """Return the client that a tool belongs to."""
    while not os.readlink(f"/proc/{pid}/exe").endswith("/claude"):
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)[1])
    return pid


def own_compaction(bench: Bench) -> Outcome:
    """One session for all items; after a kill a person goes on with it."""
    session_id = str(uuid.uuid4())
    code = bench.session(bench.job.prompt(bench.job.items), "--session-id", session_id)
    while code and bench.by_hand < TRIES:
        bench.by_hand += 1
        code = bench.session("Go on.", "--resume", session_id)
    return Outcome(frozenset(bench.agent.claimed))


def with_pins(bench: Bench) -> Outcome:
    """The same, with ultramon's hooks, and the rules as pins."""
    bench.ultramon("install", "claude-code", "--force", "--pins")
    for rule in RULES:
        bench.ultramon("host", "pin", rule)
    return own_compaction(bench)


def fresh_processes(bench: Bench) -> Outcome:
    """A loop in a shell: a session for each item, and another one when the client fails."""
    for item in bench.job.items:
        for _ in range(TRIES):
            if bench.session(bench.job.prompt([item])) == 0:
                break
    return Outcome(frozenset(bench.agent.claimed))


def relayed(bench: Bench) -> Outcome:
    """`ultramon relay`; after a kill of its own a person goes on with it."""
    rules = [word for rule in RULES for word in ("--rule", rule)]
    result = bench.relay(
        GOAL, "--items", "items.txt", "--verify", bench.job.check_command, *rules,
        "--run", RUN, "--json", "--", "--model", MODEL,
    )  # fmt: skip
    while result is None:
        bench.by_hand += 1
        result = bench.relay("--resume", RUN, "--json")
    assert not result["work"]["lost"], result
    reported = frozenset((*result["work"]["left"], *result["work"]["set_aside"]))
    done = frozenset(bench.job.items) - reported
    return Outcome(done, reported, bench.state / "relay" / RUN / "worktree")


ARMS: dict[str, Callable[[Bench], Outcome]] = {
    "the client's own compaction": own_compaction,
    "the same, with pins": with_pins,
    "a fresh process per item": fresh_processes,
    RELAY: relayed,
}


def run_arm(name: str, plan: Plan) -> dict[str, str]:
    """Run one arm in directories of its own; return its column."""
    with tempfile.TemporaryDirectory(prefix="relay-arms-") as path, one_at_a_time():
        folder = Path(path)
        killed_in = list(plan.killed_in)
        if name == RELAY and plan.relay_killed_in:
            killed_in.append(plan.relay_killed_in)
        pauses = {item: folder / f"pause in {item}" for item in killed_in}
        for pause in pauses.values():
            pause.mkdir()
            os.mkfifo(pause / "gate")
        agent = ItemAgent(
            folder / "configuration",
            RULES,
            plan.false_claims,
            pauses,
            task_words=plan.task_words,
            lists_one=plan.lists_one,
        )
        try:
            client = Client(folder, agent)
            job = ItemJob(client.project, plan.count)
            bench = Bench(plan, client, job, agent, folder / "state", dict(pauses))
            return column(bench, ARMS[name](bench))
        finally:
            agent.close()


def column(bench: Bench, outcome: Outcome) -> dict[str, str]:
    """Return the facts of an arm, as they stand in the table."""
    measured, items = bench.agent.measured, set(bench.job.items)
    verified = bench.job.verified(outcome.tree)
    redone = Counter({item: count - 1 for item, count in bench.agent.begun.items() if count > 1})
    found = verified & redone.keys() & bench.plan.false_claims.keys()
    # Doing what was only claimed is no repeat.
    repeated = redone.total() - len(found)
    sessions = sum(one.is_first for one in measured)
    compactions = sum(one.is_compaction for one in measured)
    resets = [one for one in measured if one.is_reset]
    uncached = sum(one.tokens - one.cached for one in measured)
    shared = sum(one.shared for one in measured)
    return {
        "items verified at the end": f"{len(verified)} of {len(items)}",
        "claimed at the end, but false": str(len(outcome.claimed - verified)),
        "false claims found and done": f"{len(found)} of {len(bench.plan.false_claims)}",
        "repeated": str(repeated),
        "lost": str(len(items - verified - outcome.claimed - outcome.reported)),
        "clients killed": str(bench.kills),
        "relays killed": str(bench.relay_kills),
        "started again by hand": str(bench.by_hand),
        "contexts": str(sessions + compactions),
        "compactions": str(compactions),
        "cold starts": str(sessions),
        "rules word for word after a reset": (
            f"{sum(one.has_rules for one in resets)} of {len(resets)}"
        ),
        "requests": str(len(measured)),
        "input tokens": f"{sum(one.tokens for one in measured):,}",
        "uncached": f"{uncached:,}",
        "uncached, where sessions share tools and system prompt": f"{uncached - shared:,}",
    }


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return measures as rows, arms as columns; a row of zeros is left out."""
    rows = dict.fromkeys(row for one in columns.values() for row in one)
    lines = [["", *columns], ["---"] * (1 + len(columns))]
    for row in rows:
        values = [one[row] for one in columns.values()]
        if row not in OF_KILLS or set(values) != {"0"}:
            lines.append([row, *values])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe(version: str) -> str:
    """Return what stands above the tables."""
    return (
        f"Written by `make bench-relay`, {datetime.now(UTC):%Y-%m-%d}: Claude Code {version} "
        "against a stand-in for its API on loopback. "
        f"{UNDISTURBED.count} items; each is a file of some "
        f"{SOURCE_CHARS // CHARS_PER_TOKEN:,} tokens to read and a note to write. The client "
        f"compacts at {COMPACTED_AT_TOKENS:,} tokens, `ultramon relay` hands over at its default, "
        f"65 % of that. The model claims {len(UNDISTURBED.false_claims)} items that it has not "
        "done. What the model does, and what each row means: "
        "[README](README.md#long-jobs-four-ways)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arm", action="append", choices=ARMS, help="only print this one")
    names = parser.parse_args().arm
    done = subprocess.run([find_client(), "--version"], capture_output=True, text=True, check=True)
    parts = [describe(done.stdout.split()[0])]
    for title, plan in (("Undisturbed", UNDISTURBED), ("With SIGKILL", KILLED)):
        columns = {}
        for name in names or ARMS:
            sys.stderr.write(f"{title}: {name} …\n")
            columns[name] = run_arm(name, plan)
        parts.append(f"### {title}\n\n{table(columns)}")
    text = "\n\n".join(parts)
    if names:
        print(text)
    else:
        replace_section(TITLE, text)


if __name__ == "__main__":
    main()
