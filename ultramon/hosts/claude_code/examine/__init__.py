"""Examines an installation for Claude Code."""
