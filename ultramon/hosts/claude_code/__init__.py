"""Claude Code: its hook payloads and the transcripts it writes for sessions and subagents."""

SMALL_VARIABLE = "CLAUDE_CODE_DISABLE_1M_CONTEXT"
MOST_VARIABLE = "CLAUDE_CODE_MAX_CONTEXT_TOKENS"
"""Variables of the host that make its window smaller."""
