"""The status line of Claude Code. Standard library only.

No hook reports the window that the host works with: the status line does.
"""

from __future__ import annotations

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.plan_limits import read_limits
from ultramon.hosts.status_line.program import StatusLine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.hosts.resident.turns import Turns
    from ultramon.hosts.status_line.answers import StatusLineAnswers
    from ultramon.hosts.transcripts.records import LastReading


class ClaudeCodeStatusLine(StatusLine):
    """Its payload, as version 2.1.330 writes it."""

    host = CLAUDE_CODE

    def count_tokens(self, window: dict[str, Any], tail: LastReading | None) -> int | None:
        """Return the sum of the last reply; 0 at the start and right after a compaction."""
        # The transcript says when: the host's own count has no time. But some providers' replies
        # stand in it with zeros, and then only the host knows.
        if tail is not None and not tail.lacks_count:
            return None
        from ultramon.hosts.transcripts.jsonl import token_count

        names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        usage = window.get("current_usage")
        return sum(token_count(usage, name) for name in names) if isinstance(usage, dict) else 0

    read_limits = staticmethod(read_limits)


LINE = ClaudeCodeStatusLine()
main = LINE.main


def answers(directory: str, turns: Turns) -> StatusLineAnswers:
    """Return what answers status lines within a resident."""
    from ultramon.hosts.status_line.answers import StatusLineAnswers

    return StatusLineAnswers(LINE, directory, turns)
