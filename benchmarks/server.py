"""The server under load and under attack, beside a bare FastAPI application.

The load comes from `wrk`; the servers are processes of their own on the same machine.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from pydantic import BaseModel

HERE = Path(__file__).resolve().parent
AGENTS = 1_000
CONNECTIONS = 16
LOAD_SECONDS = 5
LOADS = 3
DRIPPING = 300
ATTACK_SECONDS = 8.0
REQUESTS = 150
SESSIONS = (0, 1_000, 2_000)
REST_SECONDS = 5.0
TIMEOUT_SECONDS = 30.0
JSON = {"Content-Type": "application/json"}
OURS, BARE, BARE_THREADS = "ultramon serve", "FastAPI, async def", "FastAPI, def"

Headers = dict[str, str]


class Usage(BaseModel):
    """What is posted."""

    session_id: str
    used_percentage: float | None = None
    total_input_tokens: int | None = None


class Server:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, directory: Path) -> None:
        self.process = process
        self.port = port
        self._directory = directory

    def secret(self, name: str) -> str:
        return (self._directory / name).read_text().strip()

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(
        self, method: str, path: str, headers: Headers | None = None, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Ask once, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(words: list[str], directory: Path, environment: Headers) -> Iterator[Server]:
    """Run a server until the block ends; it begins when the server answers."""
    port = free_port()
    process = subprocess.Popen(
        [*words, str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    server = Server(process, port, directory)
    until = time.monotonic() + TIMEOUT_SECONDS
    try:
        while True:
            try:
                server.ask("GET", "/health")
                break
            except OSError:
                assert process.poll() is None, f"{words} ended with {process.returncode}"
                assert time.monotonic() < until, f"{words} does not answer"
                time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


@contextmanager
def ours(directory: Path, environment: Headers | None = None) -> Iterator[Server]:
    words = [sys.executable, "-m", "ultramon", "serve", "--port"]
    chosen = {**(environment or dict(os.environ)), "ULTRAMON_STATE_DIR": str(directory)}
    with running(words, directory, chosen) as server:
        yield server


@contextmanager
def bare(kind: str, directory: Path) -> Iterator[Server]:
    words = [sys.executable, str(HERE / "server.py"), kind]
    with running(words, directory, dict(os.environ)) as server:
        yield server


def serve_bare(kind: str, port: int) -> None:
    """Serve what only reads the same body and answers the same."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()

    def answer(usage: Usage) -> dict[str, object]:
        return {"status": "ok", "used_percentage": usage.used_percentage}

    async def answer_in_loop(usage: Usage) -> dict[str, object]:
        return answer(usage)

    app.post("/hooks/context-usage")(answer_in_loop if kind == BARE else answer)
    app.get("/health")(lambda: {"status": "ok"})
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


def make_agents(server: Server, numbers: range = range(AGENTS)) -> None:
    """Make agents known, each with a registration: notices of all go to one recipient."""
    headers = {"Authorization": f"Bearer {server.secret('admin.token')}", **JSON}
    agents: list[dict[str, str]] = [{"agentId": "boss"}]
    for number in numbers:
        agents.append({"agentId": f"agent-{number}", "parentId": "boss", "notify": "parent"})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_SECONDS)
    for agent in agents:
        connection.request("POST", "/agents", json.dumps(agent), headers)
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 201, said
    connection.close()


def load(
    server: Server, secret: str, repeats: int, agents: int = AGENTS
) -> tuple[float, float, float]:
    """Return posts a second, and p50 and p99 in milliseconds."""
    done = subprocess.run(
        [
            *("wrk", "-t1", f"-c{CONNECTIONS}", f"-d{LOAD_SECONDS}s", "--latency"),
            *("-s", str(HERE / "posts.lua"), f"http://127.0.0.1:{server.port}"),
            *("--", secret, str(agents), str(repeats)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", done.stdout)
    assert found, done.stdout
    requests, duration_us, p50_us, p99_us, failed = map(int, found.groups())
    assert failed == 0, done.stdout
    return requests / duration_us * 1e6, p50_us / 1000, p99_us / 1000


def loads(folder: Path) -> list[str]:
    """Measure the servers in turn, one at a time under load."""
    if shutil.which("wrk") is None:
        return ["wrk is missing: no load."]
    never = 1_000_000
    candidates = [
        ("ultramon, every reading new", OURS, 1),
        ("ultramon, each reading ten times", OURS, 10),
        ("ultramon, always the same", OURS, never),
        ("FastAPI that parses the body, `async def`", BARE, 1),
        ("the same, `def`", BARE_THREADS, 1),
    ]
    measured: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _, _ in candidates}
    with (
        ours(folder) as mine,
        bare(BARE, folder) as in_loop,
        bare(BARE_THREADS, folder) as in_threads,
    ):
        make_agents(mine)
        secret = mine.secret("hook.secret")
        servers = {OURS: mine, BARE: in_loop, BARE_THREADS: in_threads}
        for _ in range(LOADS):
            for name, server, repeats in candidates:
                measured[name].append(load(servers[server], secret, repeats))
    rates = {name: statistics.median(run[0] for run in runs) for name, runs in measured.items()}
    in_the_loop, threaded = (rates[name] for name, _, _ in candidates[3:])
    rows = [
        "| posts | a second | p50 ms | p99 ms | ÷ `async def` | ÷ `def` |",
        "|---|---|---|---|---|---|",
    ]
    for name, runs in measured.items():
        p50, p99 = (statistics.median(run[part] for run in runs) for part in (1, 2))
        rate = rates[name]
        shares = f"{rate / in_the_loop:.2f} | {rate / threaded:.2f}"
        rows.append(f"| {name} | {rate:,.0f} | {p50:.1f} | {p99:.1f} | {shares} |")
    return rows


def costs(folder: Path) -> list[str]:
    """Measure what sessions cost the server: memory at rest and under load, CPU of a post."""
    if shutil.which("wrk") is None:
        return ["wrk is missing: no load."]
    rows = [
        "| sessions | memory MB, at rest | under load | posts/s | CPU ms of a post"
        " | CPU ms a second, no posts |",
        "|---|---|---|---|---|---|",
    ]
    with ours(folder) as server:
        secret, made = server.secret("hook.secret"), 0
        for sessions in SESSIONS:
            make_agents(server, range(made, sessions))
            made = sessions
            time.sleep(REST_SECONDS)
            memory, cpu = server.memory_mb(), server.cpu_seconds()
            time.sleep(REST_SECONDS)
            idle_ms = (server.cpu_seconds() - cpu) / REST_SECONDS * 1000
            shown = f"| {sessions:,} | {memory:.0f}"
            if sessions:
                cpu = server.cpu_seconds()
                rates = [load(server, secret, 1, sessions)[0] for _ in range(LOADS)]
                posts = sum(rates) * LOAD_SECONDS
                post_ms = (server.cpu_seconds() - cpu) / posts * 1000
                shown += f" | {server.memory_mb():.0f} | {statistics.median(rates):,.0f}"
                rows.append(f"{shown} | {post_ms:.2f} | {idle_ms:.1f} |")
            else:
                rows.append(f"{shown} | | | | {idle_ms:.1f} |")
    return rows


def drip(port: int) -> None:
    """Hold connections open for ever: a byte a second each, a new one for each that ends."""
    waiting = selectors.DefaultSelector()
    attackers: list[socket.socket] = []
    while True:
        while len(attackers) < DRIPPING:
            attacker = socket.create_connection(("127.0.0.1", port))
            attacker.setblocking(False)
            attacker.send(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            waiting.register(attacker, selectors.EVENT_READ)
            attackers.append(attacker)
        time.sleep(1.0)
        ended = {key.fileobj for key, _ in waiting.select(0)}
        for attacker in list(attackers):
            try:
                if attacker not in ended:
                    attacker.send(b"x")
                    continue
            except OSError:
                pass
            waiting.unregister(attacker)
            attackers.remove(attacker)
            attacker.close()


@contextmanager
def dripping(port: int) -> Iterator[None]:
    """Have a process attack a server until the block ends."""
    attackers = subprocess.Popen([sys.executable, str(HERE / "server.py"), "drip", str(port)])
    try:
        time.sleep(1.0)
        yield
    finally:
        attackers.kill()
        attackers.wait()


def good_client(server: Server, path: str, headers: Headers) -> tuple[list[float], int]:
    """Ask now and then; return the milliseconds of the answers, and how many did not come."""
    took, failed = [], 0
    for _ in range(REQUESTS):
        began = time.perf_counter()
        try:
            status, _ = server.ask("GET", path, headers)
            assert status == 200, (path, status)
            took.append((time.perf_counter() - began) * 1000)
        except (OSError, http.client.HTTPException):
            failed += 1
        time.sleep(ATTACK_SECONDS / REQUESTS)
    return took, failed


def attack(folder: Path) -> list[str]:
    """Measure good clients before and during the attack."""
    rows = [
        f"| server | asked | {DRIPPING} drip | p50 ms | p99 ms | longest ms | failed | memory MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with ours(folder) as mine, bare(BARE, folder) as other:
        token = {"Authorization": f"Bearer {mine.secret('admin.token')}"}
        agent = "/agents/agent-1"
        if mine.ask("GET", agent, token)[0] != 200:
            make_agents(mine)
        asked = [
            (OURS, mine, "/health", {}),
            (OURS, mine, agent, token),
            (BARE, other, "/health", {}),
        ]
        for name, server, path, headers in asked:
            for is_attacked in (False, True):
                with dripping(server.port) if is_attacked else nullcontext():
                    took, failed = good_client(server, path, headers)
                    memory = server.memory_mb()
                cuts = statistics.quantiles(took, n=100, method="inclusive")
                rows.append(
                    f"| {name} | {path} | {'yes' if is_attacked else 'no'} | {cuts[49]:.1f}"
                    f" | {cuts[98]:.1f} | {max(took):.1f} | {failed} | {memory:.0f} |"
                )
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        states, sessions = folder / "states", folder / "sessions"
        for directory in (states, sessions):
            directory.mkdir(mode=0o700)
        lines = [
            f"### Posts of {AGENTS:,} registered agents to `POST /hooks/context-usage`",
            "",
            *loads(states),
            "",
            f"`wrk` with {CONNECTIONS} kept connections on the same two cores, {LOADS} runs of "
            f"{LOAD_SECONDS} s in turn, one process each, medians. A new reading rewrites a state "
            "file and brings it down to the disk; in two of a hundred it reaches a rung, which "
            "stores an event and a notice as well. The bare application stores nothing and asks "
            "for no secret.",
            "",
            "### What sessions cost the server",
            "",
            *costs(sessions),
            "",
            f"A session is a registered agent whose readings {CONNECTIONS} connections post, every "
            "reading new. Resident memory; CPU of all threads of the server.",
            "",
            f"### A good client while {DRIPPING} connections send a byte a second",
            "",
            *attack(states),
            "",
            "Each request on a connection of its own; whoever is cut off connects again at once.",
        ]
    print("\n".join(lines))


if __name__ == "__main__":
    if sys.argv[1:2] in ([BARE], [BARE_THREADS]):
        serve_bare(sys.argv[1], int(sys.argv[2]))
    elif sys.argv[1:2] == ["drip"]:
        drip(int(sys.argv[2]))
    else:
        main()
