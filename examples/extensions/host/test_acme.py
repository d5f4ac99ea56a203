"""Acme passes the suite that every host of ultramon passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from ultramon_acme import ACME

from ultramon.system.timestamps import format_time
from ultramon.testing import ClientProcess, HostCall, HostContract, HostRun
from ultramon.testing.host_run import COMPACTION, FILLS, SUBAGENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

HOOK = [sys.executable, "-m", "ultramon", "host", "hook", "acme"]
MAIN, WORKER = "c1", "c1.w1"
RUNS = {  # each a word of Acme's, who says it, and how full the window was then
    FILLS: [("open", MAIN, 0), *[("tool-done", MAIN, n) for n in (30_000, 70_000, 80_000)]],
    SUBAGENTS: [
        *[("open", MAIN, 0), ("tool-done", MAIN, 20_000), ("worker-open", WORKER, 0)],
        *[("tool-done", WORKER, 70_000), ("tool-done", WORKER, 71_000)],
        *[("worker-close", WORKER, 0), ("tool-done", MAIN, 21_000)],
    ],
    COMPACTION: [
        *[("open", MAIN, 0), ("tool-done", MAIN, 80_000), ("shrunk", MAIN, 0)],
        ("tool-done", MAIN, 9_000),
    ],
}


class AcmeRun(HostRun):
    """A run of Acme, which writes its log and calls its hook."""

    session_id = MAIN
    limits = (100_000, 100_000)

    def __init__(self, path: Path, scenario: str) -> None:
        self.path, self.state = path, path / "state"
        self.log = path / "log.jsonl"
        self.transcript = str(self.log)
        self.script = [*RUNS[scenario], ("close", MAIN, 0)]
        self.client = ClientProcess()
        found: dict[str, list[tuple[int, int]]] = {}
        epoch = 1
        for word, name, tokens in self.script:
            epoch += word == "shrunk"
            if tokens:
                found.setdefault(name, []).append((epoch, tokens))
        self.readings = found

    def kill(self) -> None:
        self.client.kill()

    close = kill

    def choose(self, **choices: object) -> None:
        options = [f"--{name.replace('_', '-').removesuffix('-tokens')}" for name in choices]
        chosen = [str(one) for pair in zip(options, choices.values(), strict=True) for one in pair]
        command = [sys.executable, "-m", "ultramon", "install", "acme", *chosen]
        subprocess.run(command, cwd=self.path, env=self.environ, check=True, capture_output=True)

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {"ULTRAMON_STATE_DIR": str(self.state)}

    def calls(self) -> Iterator[HostCall]:
        for word, name, tokens in self.script:
            _, _, worker = name.partition(".")
            if tokens:
                entry = {"acme": 1, "at": format_time(time.time()), "model": "a", "output": 9}
                with open(f"{self.log}.{worker}" if worker else self.log, "a") as file:
                    file.write(json.dumps(entry | {"input": tokens, "window": 100_000}) + "\n")
            payload = {"event": word, "conversation": MAIN, "log": str(self.log)}
            payload |= {"worker": worker} if worker else {}
            said = self.client.run(HOOK, json.dumps(payload).encode(), self.environ)[1]
            yield HostCall(name, json.loads(said)["say"] if said else "")


class TestAcme(HostContract):
    host = ACME
    files = {"acme.toml": b"theme = 'dark'\n"}  # noqa: RUF012

    @pytest.fixture
    def play(self, tmp_path: Path) -> Callable[[str], HostRun | None]:
        """Play what there is."""

        def start(scenario: str) -> HostRun | None:
            path = tmp_path / scenario
            path.mkdir()
            return AcmeRun(path, scenario) if scenario in RUNS else None

        return start
