"""The orchestrator of `ultramon demo`: `Fleet.supervise`, and one that kills its workers."""

from __future__ import annotations

import random
import subprocess
import sys
import sysconfig
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ultramon.cli.demo import worker
from ultramon.cli.demo.worker import DONE, NOTES, read_notes
from ultramon.cli.output import plural
from ultramon.context.levels import get_threshold_action
from ultramon.state.events import ThresholdEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.fleet.events import FleetEvent
    from ultramon.fleet.fleet import Fleet
    from ultramon.fleet.supervise.jobs import Job
    from ultramon.fleet.supervise.result import SupervisorEvent, SupervisorResult
    from ultramon.state.models import AgentState

ERRORS = "errors"
"""The file of what the workers print."""
_PACE_SECONDS = 0.2
_TARGET_SECONDS = 6.0
_MIN_BYTES = 2_000


def standard_library_files(count: int) -> list[str]:
    """Return up to so many source files, as paths relative to the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    packages = ((root / name).rglob("*.py") for name in sorted(sys.stdlib_module_names))
    paths = (path for found in (root.glob("*.py"), *packages) for path in sorted(found))
    long = (str(path.relative_to(root)) for path in paths if path.stat().st_size >= _MIN_BYTES)
    return list(islice(long, count))


def read_all(
    fleet: Fleet, names: list[str], folder: str, *, agents: int, kills: int
) -> SupervisorResult:
    """Have workers read files; notes and errors of the workers go into a folder.

    Args:
        fleet: The run.
        names: The files to read, each once.
        folder: For what the workers write.
        agents: How many workers run at the same time.
        kills: How many of them to kill, if so many can be met in the middle of their work.
    """
    # With many files the pace is quicker: each worker reads for about six seconds, whatever their
    # number.
    pace_seconds = min(_PACE_SECONDS, _TARGET_SECONDS * agents / len(names))
    kill_at = [len(names) * part // (kills + 1) for part in range(1, kills + 1)]
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(job: Job) -> subprocess.Popen[bytes]:
        # Half of the workers hand over at the first request, half at the last, so both are seen.
        is_odd = int(job.agent_id.rpartition(".")[2]) % 2
        # -P: a file in the working directory must not stand in for a module.
        line = [sys.executable, "-P", "-m", worker.__name__]
        line += [str(pace_seconds), "warning" if is_odd else "critical"]
        process = processes[job.agent_id] = subprocess.Popen(
            line, cwd=folder, env=job.env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
        )
        return process

    def kill(event: SupervisorEvent) -> None:
        if kill_at and event.counts.verified >= kill_at[0]:
            # In the middle of its work, where a kill could lose something.
            busy = {state.agent_id for state in fleet.get_states() if _is_busy(state)}
            if victims := sorted(busy & processes.keys()):
                del kill_at[0]
                processes.pop(random.choice(victims)).kill()

    Path(folder, NOTES).touch()
    with open(Path(folder, ERRORS), "ab") as errors:
        return fleet.supervise(
            spawn,
            names,
            workers=agents,
            # The workers' own file decides, so that ultramon does not check itself.
            verify=lambda name: (DONE, name) in read_notes(folder),
            grace_seconds=2.0,
            max_restarts=2,
            on_event=kill,
        )


def report_to(show: Callable[[str], None], fleet: Fleet) -> None:
    """Have a line shown for each event of a run, which stops when the reader is gone."""

    def report(event: FleetEvent) -> None:
        try:
            show(f"{event.agent_id}  {_describe(event)}")
        except BrokenPipeError:
            fleet.stop()

    for name in ("started", "prepare_handoff", "force_return", "lost", "handoff_ready"):
        fleet.on(name)(report)


def _describe(event: FleetEvent) -> str:
    if isinstance(event.event, ThresholdEvent):
        return get_threshold_action(event.event.level).message
    if (left := event.handoff) is not None and event.name == "handoff_ready":
        verb = "handoff rebuilt" if left.reason == "lost" else "handed off"
        half = f", {len(left.interrupted)} half read" if left.interrupted else ""
        return (
            f"{verb}: {plural(len(left.completed), 'file')} read{half}, {len(left.remaining)} left"
        )
    if event.name == "lost":
        return f"lost: {(event.exit or {}).get('signal', 'it vanished')}"
    return f"started in process {event.state.pid if event.state else '?'}"


def _is_busy(state: AgentState) -> bool:
    """Whether an agent is in the middle of its work, and will continue after its present item."""
    begun = state.active and state.current_task is not None and state.action == "none"
    return begun and 0 < state.tasks_completed < (state.tasks_total or 0) - 1
