"""GitHub Copilot CLI: its hook payloads, and the event file that it writes for each session."""
