"""Qwen Code: its hook payloads and the session files it writes, one per session and subagent."""
