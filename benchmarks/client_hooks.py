"""How much longer a tool call of the real client takes by its hooks, however these are answered.

Measured from a reply of the model to the next request. The client comes with the Python SDK of its
vendor; the API is the tests' stand-in, so nothing leaves the machine. By hand:
``python benchmarks/client_hooks.py [--rounds 3] [--calls 20]``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from helpers import program
from real_client.api import Api, Reply, Step, bash, marked
from real_client.client import Client, finish, one_at_a_time
from real_client.watch import new_notes

from ultramon.hosts.resident.place import Place

NO_OP, NO_OP_WAITED = "a hook that is `true`", "the same, PreToolUse waited for too"
PROCESS, RESIDENT = "a process each", "a resident"
KILLED, HUNG = "a resident, killed halfway", "a resident, stopped halfway"
MODES = (NO_OP, NO_OP_WAITED, PROCESS, RESIDENT, KILLED, HUNG)
WINDOW_TOKENS = 200_000


class TimedApi(Api):
    """The stand-in, which notes when a request came and when it was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[tuple[float, float]] = []

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Step:
        """Answer as the stand-in does."""
        came_at = time.monotonic()
        step = super().answer(path, headers, body)
        if isinstance(step, Reply) and (step.calls or step.text == "Done."):
            self.times.append((came_at, time.monotonic()))
        return step


class Contender:
    """One way of answering hooks: a client with its own home, states and stand-in."""

    def __init__(self, mode: str, folder: Path, stack: ExitStack) -> None:
        self.mode = mode
        folder.mkdir()
        self.state = folder / "state"
        self.api = TimedApi()
        stack.callback(self.api.close)
        self.client = Client(folder, self.api)
        # The path of a socket is short.
        self.sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="um-"))
        options = ["--no-resident"] if mode == PROCESS else []
        done = program.run_process(
            "install", "claude-code", "--force", *options,
            HOME=str(self.client.home),
            CLAUDE_CONFIG_DIR=str(self.client.configuration),
            ULTRAMON_STATE_DIR=str(self.state),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        if mode in (NO_OP, NO_OP_WAITED):
            settings = json.loads(self.client.settings.read_text())
            for entries in settings["hooks"].values():
                hook = entries[0]["hooks"][0]
                hook["command"] = "true"
                if mode == NO_OP_WAITED:
                    hook.pop("async", None)
            self.client.settings.write_text(json.dumps(settings))
        self.place = Place(str(self.state), {"XDG_RUNTIME_DIR": self.sockets})
        stack.callback(self.end_resident)
        self.gaps: list[float] = []
        self.crossing_count = self.at_once_count = self.later_count = self.again_count = 0

    def end_resident(self) -> None:
        running = self.place.running()
        if running is not None:
            with suppress(ProcessLookupError):
                os.kill(running["pid"], signal.SIGKILL)
        self.place.end_pause()

    @contextmanager
    def disturbed(self, after_turns: int) -> Iterator[None]:
        """Kill or stop the resident when so many requests have come."""

        def disturb() -> None:
            self.api.wait_for_turns(after_turns, seconds=60)
            running = self.place.running()
            assert running is not None, "there is no resident to disturb"
            os.kill(running["pid"], signal.SIGKILL if self.mode == KILLED else signal.SIGSTOP)

        if self.mode not in (KILLED, HUNG):
            yield
            return
        thread = threading.Thread(target=disturb)
        thread.start()
        yield
        thread.join()
        self.end_resident()

    def play(self, calls: int) -> None:
        """Run one session: far from a rung, over the first at three quarters, over the next."""
        first_at, next_at = calls * 3 // 4, calls * 7 // 8
        tokens = [20_000 + 1_000 * n for n in range(first_at - 1)]
        # What is near a rung is waited for; a leap from far below may be seen one call later.
        tokens += [122_000, *(135_000 + 1_000 * n for n in range(next_at - first_at - 1))]
        tokens += [146_000, *(157_000 + 1_000 * n for n in range(calls - next_at))]
        before, began = len(self.api.turns()), len(self.api.times)
        self.api.play(*(bash(one, "true") for one in tokens), Reply(142_500, "Done."))
        with self.disturbed(before + calls // 2):
            session = finish(self.client.start(marked("run them"), XDG_RUNTIME_DIR=self.sockets))
        assert session.result["result"] == "Done.", session
        times = self.api.times[began:]
        self.gaps += [came - gone for (_, gone), (came, _) in pairwise(times)]
        turns = self.api.turns()[before:]
        told = [len(new_notes(turn)) for turn in turns]
        # The requests with the results of the calls that came with the replies over the rungs.
        expected = [int(number - 1 in (first_at, next_at)) for number in range(len(turns))]
        at_once = sum(map(min, told, expected))
        self.crossing_count += 2
        self.at_once_count += at_once
        self.later_count += min(sum(told), 2) - at_once
        self.again_count += max(sum(told) - 2, 0)
        assert not self.api.unscripted

    def row(self, base_seconds: float) -> str:
        median = statistics.median(self.gaps)
        p90 = statistics.quantiles(self.gaps, n=10)[-1]
        told = f"{self.at_once_count} of {self.crossing_count} | {self.later_count}"
        told += f" | {self.again_count}"
        told = "– | – | –" if self.mode in (NO_OP, NO_OP_WAITED) else told
        return (
            f"| {self.mode} | {len(self.gaps)} | {median * 1000:.0f} | {p90 * 1000:.0f} |"
            f" {max(self.gaps) * 1000:.0f} | {median / base_seconds:.2f} | {told} |"
        )


def main(rounds: int = 3, calls: int = 20) -> str:
    with ExitStack() as stack, tempfile.TemporaryDirectory() as path:
        stack.enter_context(one_at_a_time())
        contenders = [
            Contender(mode, Path(path) / f"m{number}", stack) for number, mode in enumerate(MODES)
        ]
        for _ in range(rounds):
            for contender in contenders:
                contender.play(calls)
        base_seconds = statistics.median(contenders[0].gaps)
        rows = [contender.row(base_seconds) for contender in contenders]
        stack.close()
    return "\n".join(
        [
            "### A tool call of the real client, from a reply to the next request",
            "",
            "| hooks by | calls | median ms | p90 ms | max ms | ÷ `true`"
            " | told at once | later | again |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
        ]
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=20)
    given = parser.parse_args()
    print(main(given.rounds, given.calls))
