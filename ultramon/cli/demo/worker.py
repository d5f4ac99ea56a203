"""One worker of `ultramon demo`: a process that reads files until its window is full.

It notes what it began and finished in a file that all workers share, independent of ultramon.
"""

from __future__ import annotations

import sys
import sysconfig
import time
from pathlib import Path

import ultramon

LIMIT_TOKENS = 24_000
NOTES = "notes"
"""Their file in the working directory of the workers."""
BEGUN = "begun"
DONE = "done"
_MAX_CHARS = 6_000
"""Only the beginning of a file is read, as tools that read files do."""


def read_notes(folder: str) -> list[tuple[str, str]]:
    """Return the notes of all workers as (begun or done, item), oldest first."""
    lines = Path(folder, NOTES).read_text(encoding="utf-8").splitlines()
    return [(what, item) for what, _, item in (line.partition(" ") for line in lines)]


def main(pace_seconds: float, hand_over_at: str) -> None:
    """Read the files of the work that this process was assigned."""
    library = Path(sysconfig.get_path("stdlib"))
    # Everything is given, so that settings of the user do not change what the demo shows.
    config = ultramon.ContextConfig(
        context_limit_tokens=LIMIT_TOKENS,
        context_window_tokens=None,
        reserved_output_tokens=0,
        model=None,
        warning_threshold=0.70,
        critical_threshold=0.85,
        warning_tokens_left=None,
        critical_tokens_left=None,
        ladder=None,
        heartbeat_interval_seconds=1.0,
        # The check at the end reads the stored states, so every save must be stored.
        on_error="raise",
    )
    with (
        # Line by line: a worker that is killed has noted what it had done.
        open(NOTES, "a", encoding="utf-8", buffering=1) as notes,
        ultramon.worker(config, goal="Read the library", hand_over_at=hand_over_at) as agent,
    ):
        for name in agent.pending():
            notes.write(f"{BEGUN} {name}\n")
            text = (library / name).read_text(encoding="utf-8", errors="replace")
            agent.track_content(text[:_MAX_CHARS], source="tool:read")
            time.sleep(pace_seconds)
            notes.write(f"{DONE} {name}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
