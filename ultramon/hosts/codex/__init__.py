"""OpenAI Codex CLI: its hook payloads and the rollout files it writes, one per thread."""

NAME = "codex"
"""The host's name in commands, states and file names."""
