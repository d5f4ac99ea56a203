"""One worker of `ultramon demo`: a process that reads files until its window is full.

It reads its work from a file, reports through its monitor, and notes in a second file, independent
of the monitor, which items it began and finished.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Any, TextIO

    from ultramon.context.config import ContextConfig

LIMIT_TOKENS = 24_000
BEGUN = "begun"
DONE = "done"
_MAX_CHARS = 6_000
"""Only the beginning of a file is read, as tools that read files do."""
_HEARTBEAT_SECONDS = 1.0


class Files(NamedTuple):
    """Where a worker finds its work and leaves its notes."""

    work: str
    notes: str
    errors: str


def files_of(folder: str, agent_id: str) -> Files:
    """Return the files of one worker."""
    return Files(*(os.path.join(folder, f"{agent_id}.{kind}") for kind in Files._fields))


def read_notes(folder: str, agent_id: str) -> list[tuple[str, str]]:
    """Return the notes of a worker as (begun or done, item), oldest first."""
    try:
        with open(files_of(folder, agent_id).notes, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    noted = [line.partition(" ") for line in lines]
    return [(what, item) for what, _, item in noted]


def main(folder: str) -> None:
    """Read the files of the work; hand off the rest when the monitor's action asks for it."""
    from ultramon.monitor.handoff import HandoffRecord, Workspace
    from ultramon.monitor.monitor import create_context_monitor

    files = files_of(folder, os.environ["ULTRAMON_AGENT_ID"])
    with open(files.work, encoding="utf-8") as file:
        work: dict[str, Any] = json.load(file)
    handoff = work["handoff"] and HandoffRecord.model_validate(work["handoff"])
    monitor = create_context_monitor(
        config=_config(), goal="Read the standard library", continues=handoff
    )
    # Before the start, so that no state of this agent is stored without its plan.
    monitor.plan(work["items"])
    with monitor, open(files.notes, "a", encoding="utf-8") as notes:
        for name in monitor.pending():
            with monitor.task(name):
                _note(notes, BEGUN, name)
                action = monitor.track_content(_read(name), source="tool:read")
                time.sleep(work["paceSeconds"])
                _note(notes, DONE, name)
            # Stored before the next one begins: a kill can undo one file at most.
            monitor.update_heartbeat()
            leaves = action.should_return if work["isPatient"] else action.should_prepare
            if leaves and monitor.pending():
                monitor.hand_off(workspace=Workspace(cwd=os.getcwd()))
                return


def _config() -> ContextConfig:
    from ultramon.context.config import ContextConfig

    return ContextConfig(
        context_limit_tokens=LIMIT_TOKENS,
        context_window_tokens=None,
        reserved_output_tokens=0,
        model=None,
        warning_threshold=0.70,
        critical_threshold=0.85,
        warning_tokens_left=None,
        critical_tokens_left=None,
        ladder=None,
        heartbeat_interval_seconds=_HEARTBEAT_SECONDS,
        # The check at the end reads the stored states, so every save must be stored.
        on_error="raise",
    )


def _read(name: str) -> str:
    with open(name, encoding="utf-8", errors="replace") as file:
        return file.read(_MAX_CHARS)


def _note(notes: TextIO, what: str, name: str) -> None:
    notes.write(f"{what} {name}\n")
    notes.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
