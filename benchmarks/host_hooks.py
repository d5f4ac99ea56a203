"""How much longer a tool call of each real client takes by its hooks, and what one of them costs.

Measured from a reply of the model to the next request; the models are the tests' stand-ins, so
nothing leaves the machine. By hand:
``python benchmarks/host_hooks.py [--host codex] [--calls 14]``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from client_hooks import TimedApi
from helpers import codex_client, copilot_client, gemini_client, program, qwen_client
from helpers.qwen_session import NEW
from helpers.scripted_model import Step
from processor_time import milliseconds, of_process
from real_client import client as claude_client
from real_client.api import Reply, bash, marked

from ultramon.hosts.resident.place import Place

NONE, NO_OP = "no hook", "a hook that is `true`"
BARE = "python -I -S -c pass"
NO_OP_PYTHON = f"a hook that is `{BARE}`"
PROCESS, RESIDENT = "a process each, `--no-resident`", "as installed"
MODES = (NONE, NO_OP, NO_OP_PYTHON, PROCESS, RESIDENT)
TOKENS = 20_000
HOOK_CALLS = 30
BARE_COMMAND = f"exec {shlex.quote(sys.executable)} -I -S -c pass"
Gaps = list[float]


class Home:
    """A client with its own home, states and hooks of one kind.

    Args:
        mode: One of `MODES`.
        folder: For all that it writes.
        sockets: For the socket of its resident.
    """

    host = ""
    event = "PostToolUse"

    def __init__(self, mode: str, folder: Path, sockets: str) -> None:
        folder.mkdir()
        self.variables = {"XDG_RUNTIME_DIR": sockets}
        self.gaps: Gaps = []
        self.payload = folder / "payload.json"
        self.open(folder)
        self.place = Place(str(self.states), self.variables)
        if mode == NONE:
            return
        options = ["--no-resident"] if mode == PROCESS else []
        done = program.run_process("install", self.host, "--force", *options, **self.variables)
        assert done.returncode == 0, done.stderr
        self.command = self._hooks()[self.event]["command"]
        if mode == NO_OP:
            self._replace("true")
        if mode == NO_OP_PYTHON:
            self._replace(BARE_COMMAND)

    def open(self, folder: Path) -> None:
        """Make the client; sets `settings`, `states` and `variables`."""
        raise NotImplementedError

    def play(self, calls: int) -> Gaps:
        """Run one session; return the time from each reply to the next request."""
        raise NotImplementedError

    def _hooks(self) -> dict[str, dict[str, Any]]:
        found = json.loads(self.settings.read_text())["hooks"]
        return {event: entries[0]["hooks"][0] for event, entries in found.items()}

    def _replace(self, command: str) -> None:
        settings = json.loads(self.settings.read_text())
        for entries in settings["hooks"].values():
            entries[0]["hooks"][0]["command"] = command
        self.settings.write_text(json.dumps(settings))

    def keep_payload(self) -> None:
        """Keep what the client writes to the hook of a tool call, which then does nothing else."""
        hooks, before = self._hooks(), self.settings.read_text()
        self._replace("true")
        settings = json.loads(self.settings.read_text())
        hook = settings["hooks"][self.event][0]["hooks"][0]
        hook["command"] = f"cat >{shlex.quote(str(self.payload))}"
        assert hook["type"] == hooks[self.event]["type"]
        self.settings.write_text(json.dumps(settings))
        self.play(2)
        self.settings.write_text(before)

    def call(self, command: str) -> float:
        """Run one hook as the client does; return its processor time in milliseconds."""
        environ = {"PATH": os.environ["PATH"], **self.variables}

        def run() -> None:
            with self.payload.open("rb") as stdin:
                subprocess.run(["sh", "-c", command], stdin=stdin, env=environ, check=True,
                               stdout=subprocess.DEVNULL)  # fmt: skip

        return milliseconds(run)

    def close(self) -> None:
        running = self.place.running()
        if running is not None:
            with suppress(ProcessLookupError):
                os.kill(running["pid"], signal.SIGKILL)


class ClaudeCode(Home):
    """Claude Code; its stand-in is another one."""

    host = "claude-code"

    def open(self, folder: Path) -> None:
        self.api = TimedApi()
        self.client = claude_client.Client(folder, self.api)
        self.settings, self.states = self.client.settings, folder / "state"
        self.variables |= {
            "HOME": str(self.client.home),
            "CLAUDE_CONFIG_DIR": str(self.client.configuration),
            "ULTRAMON_STATE_DIR": str(self.states),
        }

    def play(self, calls: int) -> Gaps:
        began = len(self.api.times)
        self.api.play(*(bash(TOKENS, "true") for _ in range(calls)), Reply(TOKENS, "Done."))
        sockets = self.variables["XDG_RUNTIME_DIR"]
        session = claude_client.finish(
            self.client.start(marked("run them"), XDG_RUNTIME_DIR=sockets)
        )
        assert session.result["result"] == "Done.", session
        return [came - gone for (_, gone), (came, _) in pairwise(self.api.times[began:])]

    def close(self) -> None:
        self.api.close()
        super().close()


class Scripted(Home):
    """A client whose stand-in is a `ScriptedModel`; `kept` are its settings without hooks."""

    kept: dict[str, Any] | None = None
    prompt = ("[[MAIN]] run them",)

    def make(self, folder: Path) -> Any:
        raise NotImplementedError

    def open(self, folder: Path) -> None:
        self.client = self.make(folder)
        self.settings = getattr(self.client, "hooks", None) or self.client.settings
        if self.kept is not None:
            self.settings.write_text(json.dumps(self.kept | {"hooks": {}}))
        self.states = self.client.states
        self.client.keeps_resident = True
        self.client.variables |= self.variables
        self.variables = self.client.variables

    def play(self, calls: int) -> Gaps:
        times: list[tuple[float, float]] = []
        # One that repeats itself is taken for a loop.
        steps = [*(Step(TOKENS, f"echo {n}") for n in range(calls)), Step(TOKENS)]
        with self.client.api({"MAIN": steps}) as api:
            answer = api.answer

            def timed(body: dict[str, Any], path: str) -> Any:
                came_at = time.monotonic()
                reply = answer(body, path)
                if api.is_turn(body):
                    times.append((came_at, time.monotonic()))
                return reply

            api.answer = timed
            done = self.client.run(*self.prompt)
            assert (done.returncode, api.left()) == (0, {}), done.stderr
        return [came - gone for (_, gone), (came, _) in pairwise(times)]


class Codex(Scripted):
    host = "codex"

    def make(self, folder: Path) -> Any:
        return codex_client.Client(folder)


class Gemini(Scripted):
    host = "gemini"
    event = "AfterTool"
    kept = gemini_client.SETTINGS
    prompt = ("-p", *Scripted.prompt)

    def make(self, folder: Path) -> Any:
        return gemini_client.Client(folder)


class Qwen(Scripted):
    host = "qwen"
    kept = qwen_client.SETTINGS

    def make(self, folder: Path) -> Any:
        return qwen_client.Client(folder, NEW)


class Copilot(Scripted):
    host = "copilot"

    def make(self, folder: Path) -> Any:
        return copilot_client.Client(folder)


HOSTS: dict[str, type[Home]] = {one.host: one for one in (ClaudeCode, Codex, Copilot, Gemini, Qwen)}


def hook_costs(homes: dict[str, Home]) -> dict[str, float]:
    """Return the processor time of one hook by mode, ÷ that of a Python that does nothing."""
    chosen = {mode: homes[mode] for mode in (PROCESS, RESIDENT)}
    costs: dict[str, list[float]] = {mode: [] for mode in (BARE, *chosen)}
    for home in chosen.values():
        home.keep_payload()
    pid = (chosen[RESIDENT].place.running() or {}).get("pid")
    before = of_process(pid) if pid else 0.0
    for _ in range(HOOK_CALLS):
        costs[BARE].append(chosen[PROCESS].call(BARE_COMMAND))
        for mode, home in chosen.items():
            costs[mode].append(home.call(home.command))
    own = (of_process(pid) - before) * 1000 / HOOK_CALLS if pid else 0.0
    bare = statistics.median(costs[BARE])
    found = {mode: statistics.median(costs[mode]) / bare for mode in chosen}
    return found | {"own": own / bare}


def rows(host: str, homes: dict[str, Home]) -> Iterator[str]:
    costs = hook_costs(homes)
    base = statistics.median(homes[NONE].gaps)
    no_op = statistics.median(homes[NO_OP].gaps)
    for mode, home in homes.items():
        median = statistics.median(home.gaps)
        p90 = statistics.quantiles(home.gaps, n=10)[-1]
        cost = f"{costs[mode]:.2f}" if mode in costs else "–"
        if mode == RESIDENT and costs["own"]:
            cost += f" + {costs['own']:.2f}"
        yield (
            f"| {host} | {mode} | {len(home.gaps)} | {median * 1000:.0f} | {p90 * 1000:.0f} |"
            f" {(median - base) * 1000:+.0f} | {median / no_op:.2f} | {cost} |"
        )


def main(hosts: list[str], rounds: int, calls: int) -> str:
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        every = {}
        for host in hosts:
            every[host] = {}
            for number, mode in enumerate(MODES):
                # The path of a socket is short.
                sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="um-"))
                home = HOSTS[host](mode, path / f"{host}{number}", sockets)
                stack.callback(home.close)
                every[host][mode] = home
        stack.enter_context(claude_client.one_at_a_time())
        for _ in range(rounds):
            for homes in every.values():
                for home in homes.values():
                    home.gaps += home.play(calls)
        table = [row for host, homes in every.items() for row in rows(host, homes)]
    return "\n".join(
        [
            "A tool call of each real client, from a reply to the next request; then the processor"
            f" time of one hook ÷ that of `{BARE}`, with the share of its resident.",
            "",
            "| host | hooks by | calls | median ms | p90 ms | − no hook, ms | ÷ `true`"
            " | processor time ÷ bare |",
            "|---|---|---|---|---|---|---|---|",
            *table,
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", action="append", choices=list(HOSTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--calls", type=int, default=14)
    given = parser.parse_args()
    print(main(given.host or list(HOSTS), given.rounds, given.calls))
