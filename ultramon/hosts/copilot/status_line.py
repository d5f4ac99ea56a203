"""The status line of Copilot CLI. Standard library only."""

from __future__ import annotations

import os

from ultramon.hosts.copilot.configuration import EVENTS_NAME
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.status_line.program import StatusLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.resident.turns import Turns
    from ultramon.hosts.status_line.answers import StatusLineAnswers
    from ultramon.hosts.transcripts.records import LastReading

_FOLDER = "transcript_path"


class CopilotStatusLine(StatusLine):
    """Its payload, as version 1.0.102 writes it."""

    host = COPILOT
    # The line is drawn before the first prompt, and a session without one calls no hook at its end.
    begins_agents = False

    def read_event(self, fields: dict[str, Any], environ: Mapping[str, str]) -> HookEvent:
        """Return the session; the payload names its folder for its file."""
        folder = fields.get(_FOLDER)
        if isinstance(folder, str) and os.path.basename(folder) != EVENTS_NAME:
            fields = {**fields, _FOLDER: os.path.join(folder, EVENTS_NAME)}
        return super().read_event(fields, environ)

    def stated_window(
        self, model: str | None, window: dict[str, Any], tail: LastReading | None
    ) -> tuple[str | None, object]:
        """Return what the last request stated, as hooks take it; else what the payload says."""
        if tail is not None and tail.report is not None:
            return tail.report.model, tail.window_tokens
        return super().stated_window(model, window, tail)

    def count_tokens(self, window: dict[str, Any], tail: LastReading | None) -> int | None:
        """Return what the last request held; ``current_usage`` is a sum over the session."""
        # After a compaction the payload keeps the count of the window that is gone.
        if tail is not None and (tail.report or tail.compaction_id):
            return None
        from ultramon.hosts.transcripts.jsonl import token_count

        return token_count(window, "last_call_input_tokens")


LINE = CopilotStatusLine()
main = LINE.main


def answers(directory: str, turns: Turns) -> StatusLineAnswers:
    """Return what answers status lines within a resident."""
    from ultramon.hosts.status_line.answers import StatusLineAnswers

    return StatusLineAnswers(LINE, directory, turns)
