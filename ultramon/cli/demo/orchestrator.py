"""The orchestrator of `ultramon demo`: starts workers, and a successor for each handoff.

It uses what every orchestrator has: a `Fleet`, the stored states, and its child processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING

from ultramon.cli.agent_list import AgentList
from ultramon.cli.demo.worker import files_of
from ultramon.cli.output import plural
from ultramon.context.levels import get_threshold_action
from ultramon.fleet.fleet import Fleet

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.fleet.events import FleetEvent
    from ultramon.monitor.handoff import HandoffRecord
    from ultramon.state.record import StateRecord

_PACE_SECONDS = 0.2
_TARGET_SECONDS = 6.0
_FRAME_SECONDS = 0.1
_TERMINATE_SECONDS = 5.0
_MIN_BYTES = 2_000
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib"}


def standard_library_files(count: int) -> list[str]:
    """Return up to so many source files, as paths relative to the standard library."""
    root = sysconfig.get_path("stdlib")
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.getsize(path) >= _MIN_BYTES:
                found.append(os.path.relpath(path, root))
    return found[:count]


class Crew:
    """Workers in processes, several at a time; each successor continues one that left.

    Args:
        backend: Where the workers' records go; processes must be able to share it.
        run: Their run; ids begin with it.
        folder: For work and notes.
        kills: How many workers to kill, if so many can be caught in the middle of their work.

    Attributes:
        agents: The stored agents as of the last step.
        killed: Ids of the workers that a signal ended, ours or not; known after `finish`.
        problems: What went wrong on the way.
    """

    def __init__(self, backend: Backend, run: str, folder: str, *, kills: int = 0) -> None:
        self.run = run
        self.agents = AgentList(backend, run, show_all=True, with_news=False)
        self.killed: list[str] = []
        self.problems: list[str] = []
        self._fleet = Fleet(run, backend=backend, poll_interval_seconds=_FRAME_SECONDS)
        self._folder = folder
        self._kills = kills
        self._kill_at: list[int] = []
        self._shot_at: set[str] = set()
        self._pace_seconds = _PACE_SECONDS
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._news: list[str] = []

    @property
    def files_read(self) -> int:
        """Files done so far, by the stored states."""
        return sum(one.record.tasks_completed for one in self.agents.seen)

    def start(self, names: list[str], agents: int) -> None:
        """Start the first workers.

        Args:
            names: The files to read, each once.
            agents: How many workers run at the same time.
        """
        self._pace_seconds = min(_PACE_SECONDS, _TARGET_SECONDS * agents / len(names))
        parts = self._kills + 1
        self._kill_at = [len(names) * part // parts for part in range(1, parts)]
        for number in range(agents):
            self._start(f"{self.run}-{number + 1}", items=names[number::agents])

    def step(self) -> bool:
        """Handle what happened since the last step; False when every worker and event is done."""
        working = any(process.poll() is None for process in self._processes.values())
        started = len(self._processes)
        for event in self._fleet.poll():
            self._handle(event)
        self.agents.refresh()
        if self._kill_at and self.files_read >= self._kill_at[0]:
            self._kill_one()
        return working or len(self._processes) > started

    def wait(self) -> None:
        """Wait for the next event, for one frame at most."""
        self._fleet.wait()

    def take_news(self) -> list[str]:
        """Return what happened since the last call, one line each."""
        news, self._news = self._news, []
        return news

    def finish(self) -> None:
        """End the workers that still run, and note how each process ended."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_TERMINATE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._fleet.close()
        for agent_id, process in self._processes.items():
            if process.returncode < 0:
                self.killed.append(agent_id)
            elif process.returncode:
                error = _last_line(files_of(self._folder, agent_id).errors)
                self.problems.append(f"{agent_id} ended with {process.returncode}: {error}")

    def _start(
        self, agent_id: str, *, items: list[str] | None = None, handoff: HandoffRecord | None = None
    ) -> None:
        files = files_of(self._folder, agent_id)
        lane = agent_id.removeprefix(f"{self.run}-").partition(".")[0]
        work = {
            "items": items or [],
            "handoff": handoff and handoff.model_dump(mode="json", by_alias=True),
            "paceSeconds": self._pace_seconds,
            "isPatient": int(lane) % 2 == 0,
        }
        with open(files.work, "w", encoding="utf-8") as file:
            json.dump(work, file)
        with open(files.errors, "wb") as errors:
            process = subprocess.Popen(
                # -P: a file in the working directory must not stand in for a module.
                [sys.executable, "-P", "-m", "ultramon.cli.demo.worker", self._folder],
                cwd=sysconfig.get_path("stdlib"),
                env=self._fleet.env(agent_id),
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )
        self._processes[agent_id] = process
        self._fleet.attach(agent_id, process)

    def _handle(self, event: FleetEvent) -> None:
        match event.name:
            case "started":
                self._report(event, f"started in process {event.state.pid if event.state else '?'}")
            case "prepare_handoff" | "force_return":
                self._report(event, get_threshold_action(event.event.level).message)  # type: ignore[attr-defined]
            case "lost":
                self._report(event, f"lost: {(event.exit or {}).get('signal', 'it vanished')}")
            case "handoff_ready" if event.handoff is not None:
                self._carry_on(event, event.handoff)
            case "no_progress":
                self.problems.append(f"{event.agent_id} and those before it completed nothing")

    def _carry_on(self, event: FleetEvent, handoff: HandoffRecord) -> None:
        verb = "handoff rebuilt" if handoff.reason == "lost" else "handed off"
        half = f", {len(handoff.interrupted)} half read" if handoff.interrupted else ""
        done, left = len(handoff.completed), len(handoff.remaining)
        self._report(event, f"{verb}: {plural(done, 'file')} read{half}, {left} left")
        chain, _, number = handoff.agent_id.partition(".")
        successor = f"{chain}.{int(number or 1) + 1}"
        # Events come at least once; a handoff has one successor.
        if left + len(handoff.interrupted) and successor not in self._processes:
            self._start(successor, handoff=handoff)

    def _report(self, event: FleetEvent, text: str) -> None:
        self._news.append(f"{event.agent_id}  {text}")

    def _kill_one(self) -> None:
        """Kill a random worker in the middle of its work."""
        running = {
            agent_id for agent_id, process in self._processes.items() if process.poll() is None
        }
        busy = {one.record.agent_id for one in self.agents.seen if _is_busy(one.record)}
        victims = sorted(running & busy - self._shot_at)
        if victims:
            del self._kill_at[0]
            victim = random.choice(victims)
            self._processes[victim].send_signal(signal.SIGKILL)
            self._shot_at.add(victim)


def _is_busy(record: StateRecord) -> bool:
    begun = record.active and record.handoff is None and record.current_task is not None
    return begun and 0 < record.tasks_completed < (record.tasks_total or 0)


def _last_line(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(64 * 1024).strip().splitlines()
    return lines[-1] if lines else "it said nothing"
