"""Google's Gemini CLI: its hook payloads and the session files it writes."""

NAME = "gemini"
"""The host's name in commands, states and file names."""
