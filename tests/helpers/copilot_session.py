"""Recorded runs of Copilot CLI."""

from __future__ import annotations

import shutil

from helpers import DATA

RECORDED = DATA / "copilot"
MAIN = "bbc8615a-5188-478e-8fc3-7dee062a3648"
PART_A = "e5edb3f0-1101-4504-87e3-02ad1df74aa4"
PART_B = "40db5f36-a5e8-4c89-bcbe-d3fdab071b87"
"""The session of the run with subagents, and these."""


def plant(home, name, session_id):
    """Put a recorded event file where the client keeps that of a session; return its path."""
    folder = home / "session-state" / session_id
    folder.mkdir(parents=True)
    return shutil.copy(RECORDED / name / "events.jsonl", folder / "events.jsonl")
