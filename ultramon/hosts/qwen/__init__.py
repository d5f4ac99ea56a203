"""Qwen Code: its hook payloads and the session files it writes, one per session and subagent."""

NAME = "qwen"
"""The host's name in commands, states and file names."""
