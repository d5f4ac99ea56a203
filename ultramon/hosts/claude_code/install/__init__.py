"""Installs and removes hooks and status line of Claude Code."""
