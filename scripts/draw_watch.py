"""Draws docs/img/watch.svg and docs/img/watch-why.svg: the application of `ultramon watch`.

The states are those that hooks and monitors store, costs are those of transcripts with replies; the
screen is the one that Textual draws.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.agent_list import open_agent_list
from ultramon.cli.views.watch.app import WatchApp
from ultramon.cli.views.watch.source import Source
from ultramon.context.ladder import DEFAULT_LADDER
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope
from ultramon.state.record import StateRecord
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import format_time

ROOT = Path(__file__).resolve().parent.parent
SIZE = (115, 22)
LIMIT = 200_000
ACTIONS = {"warning": "prepare_handoff", "critical": "force_return"}


def store(backend: LocalBackend, agent_id: str, fills: list[int], **values: Any) -> None:
    """Store the states of an agent whose window fills up to some thousand tokens."""
    now = time.time()
    for number, thousand_tokens in enumerate(fills, 1):
        ratio = thousand_tokens * 1_000 / LIMIT
        level = "critical" if ratio >= 0.85 else "warning" if ratio >= 0.7 else "normal"
        record = StateRecord(
            agent_id,
            **{
                "run": "claude-code",
                "session_id": agent_id,
                "host": "claude-code",
                "active": True,
                "phase": "working",
                "started_at": now - 3_000,
                "last_heartbeat": now,
                "last_activity": now - 20,
                "grace_seconds": 30.0,
                "hostname": this_machine().hostname,
                "generation": 1,
                "epoch": 1,
                "seq": number,
                "announced": {"epoch": 1, "rungs": {}},
                "epoch_started_at": now - 3_000,
                "measured_at": now - 300 + number * 10,
                "estimated_tokens": thousand_tokens * 1_000,
                "tokens_source": "reported",
                "model": "claude-sonnet-4-5",
                "context_limit": LIMIT,
                "limit_source": "model",
                "usage_ratio": ratio,
                "threshold_status": level,
                "action": ACTIONS.get(level, "none"),
                "ladder": DEFAULT_LADDER.to_json(),
                "ladder_status": "ok",
                "extra": {"claudeCode": {}},
                **values,
            },
        )
        with backend.directory.locked(agent_id, 5.0):
            backend.directory.replace(record, durable=False)


def transcript(directory: str, agent_id: str, replies: int, age_seconds: float) -> dict[str, Any]:
    """Write a transcript whose replies have a price; return what hooks keep of it."""
    at = time.time() - age_seconds
    path = Path(directory) / f"{agent_id}.jsonl"
    usage = {"input_tokens": 400, "cache_read_input_tokens": 90_000, "output_tokens": 900}
    lines = [
        {
            "type": "assistant",
            "sessionId": agent_id,
            "isSidechain": False,
            "timestamp": format_time(at),
            "message": {
                "id": f"msg_{number}",
                "role": "assistant",
                "model": "claude-sonnet-4-5",
                "content": [{"type": "text", "text": "Done."}],
                "usage": usage | {"cache_creation_input_tokens": 3_000},
            },
        }
        for number in range(replies)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    os.utime(path, (at, at))
    return {"transcriptPath": str(path)}


def spend(directory: str) -> None:
    """Store what a look at a budget finds."""
    now = time.time()
    budget = BudgetReading(
        "daily",
        Scope(),
        period="day",
        period_key="day",
        starts_at=now - 3_600,
        ends_at=now + 3_600,
        unit="usd",
        limit=20,
        spent=11.4,
        is_whole=True,
        levels=(80, 100),
        level=None,
        empties_at=None,
        is_enforced=False,
        measured_at=now,
    )
    BudgetReadings(directory).write([budget])


def fill(backend: LocalBackend, directory: str) -> None:
    """Store two projects, a run of a program, and what they need."""
    now = time.time()

    def spent(agent_id: str, replies: int, age_seconds: float = 20) -> dict[str, Any]:
        return {"claudeCode": transcript(directory, agent_id, replies, age_seconds)}

    def pace(tokens: int, turns: int) -> dict[str, Any]:
        rungs = {"critical": {"turns": turns, "seconds": 60.0}}
        return {"tokensPerTurn": tokens, "secondsPerTurn": 20.0, "rungs": rungs}

    api = {"cwd": "/srv/api-server"}
    main, waits = "4f1c22d8-6c1e-4c0e-9a55-0d3f7b1c9e21", {"waitsFor": "permission"}
    label = "api-server: move orders to the schema"
    sources = {"tool:Read": 71_000, "tool:Bash": 44_000, "reply": 28_000, "user": 13_000}
    tasks = ("write the migration", "backfill", "switch reads", "drop the old table")
    plan = [
        {"name": name, "status": "done" if number < 2 else "pending"}
        for number, name in enumerate(tasks)
    ]
    store(
        backend,
        main,
        [20, 48, 70, 95, 128, 156],
        label=label,
        forecast=pace(9_500, 1),
        by_source=sources,
        tasks=plan,
        tasks_completed=2,
        tasks_total=4,
        current_task="switch reads",
        extra=spent(main, 41),
        **api,
    )
    for child, task, fills in (
        ("a17c", "find every writer", [10, 44, 88]),
        ("b209", "run the tests", [8, 21]),
    ):
        store(
            backend,
            f"{main}.{child}",
            fills,
            extra=spent(f"{main}.{child}", len(fills) * 4),
            session_id=main,
            parent_id=main,
            label=f"api-server: {task}",
            phase="in_tool",
            forecast=pace(7_000, 8),
            **api,
        )
    other = "91be0a77-2d44-4f0b-8f6a-5be0c4d1a2f3"
    store(
        backend,
        other,
        [12, 30, 62],
        label="api-server: mend the login form",
        phase="waiting",
        last_activity=now - 240,
        extra={"claudeCode": spent(other, 12, 240)["claudeCode"] | waits},
        **api,
    )
    web = {"cwd": "/srv/web-shop"}
    review = "c07d19e4-88aa-4b1d-b0c2-7e6f5a4b3c2d"
    flags = "d6e0f5b1-1b2c-4d3e-8f90-a1b2c3d4e5f6"
    store(
        backend,
        review,
        [40, 110, 20, 60, 174],
        label="web-shop: answer the security review",
        forecast=pace(11_000, 0),
        extra=spent(review, 66),
        **web,
    )
    store(
        backend,
        flags,
        [14],
        extra=spent(flags, 3, 5_400),
        phase="waiting",
        label="web-shop: tidy the flags",
        last_activity=now - 5_400,
        **web,
    )
    audit: dict[str, Any] = {"run": "audit", "host": "sdk", "session_id": "s", "extra": {}}
    store(backend, "reviewer-1", [170], active=False, outcome="returned", **audit)
    store(
        backend,
        "reviewer-2",
        [30, 60, 90],
        predecessor_id="reviewer-1",
        tasks_completed=112,
        label="300 files",
        tasks_total=300,
        forecast=pace(4_000, 12),
        **audit,
    )
    store(
        backend,
        "reviewer-3",
        [0],
        usage_ratio=None,
        threshold_status=None,
        measured_at=None,
        context_limit=None,
        action="none",
        **audit,
    )


async def draw(backend: LocalBackend) -> dict[str, str]:
    """Return the pictures by name."""
    agents = open_agent_list(backend, None, show_all=True, is_cut=True)
    app = WatchApp(Source(backend, agents, None), interval_seconds=3_600)
    pictures = {}
    async with app.run_test(size=SIZE) as pilot:
        while not (any(map(str.strip, app.view.trends.values())) and app.view.costs):
            await pilot.pause(0.05)
        await pilot.press("down", "down")
        await pilot.pause()
        pictures["watch"] = app.export_screenshot(title="ultramon watch")
        while app.view.chosen is None or app.view.chosen.name.tag != "4f1c22d8":
            await pilot.press("down")
        await pilot.press("space")
        while "EXPLAIN" not in str(app.screen.query_one("#text").visual):
            await pilot.pause(0.05)
        await pilot.pause()
        pictures["watch-why"] = app.export_screenshot(title="ultramon watch: Space")
    return pictures


def main() -> None:
    """Draw both, without the fonts that the pictures would load."""
    with tempfile.TemporaryDirectory() as directory:
        backend = LocalBackend(directory)
        fill(backend, directory)
        spend(directory)
        pictures = asyncio.run(draw(backend))
        backend.close()
    for name, picture in pictures.items():
        svg = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
        svg = re.sub(r"terminal-\d+", f"ultramon-{name}", svg)
        svg = svg.replace("Fira Code", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'")
        svg = re.sub(r" +$", "", svg, flags=re.MULTILINE)
        (ROOT / "docs" / "img" / f"{name}.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
