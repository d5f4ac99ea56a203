"""Reads the transcripts of Claude Code; standard library only."""
