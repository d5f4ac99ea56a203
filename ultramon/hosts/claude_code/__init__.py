"""Claude Code: its hook payloads and the transcripts it writes for sessions and subagents."""
