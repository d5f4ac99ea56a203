"""Recorded runs of Copilot CLI, and its hook run on payloads."""

from __future__ import annotations

import json
import os
import shutil

from helpers import DATA
from helpers.host_session import HostSession
from helpers.recorded_run import RecordedRun
from ultramon.hosts.copilot import hook

RECORDED = DATA / "copilot"
RECORDED_CALLS = DATA / "hooks" / "copilot-1.0.102"
MAIN = "bbc8615a-5188-478e-8fc3-7dee062a3648"
PART_A = "e5edb3f0-1101-4504-87e3-02ad1df74aa4"
PART_B = "40db5f36-a5e8-4c89-bcbe-d3fdab071b87"
"""The session of the run with subagents, and these."""


def plant(home, name, session_id):
    """Put a recorded event file where the client keeps that of a session; return its path."""
    folder = home / "session-state" / session_id
    folder.mkdir(parents=True)
    return shutil.copy(RECORDED / name / "events.jsonl", folder / "events.jsonl")


class CopilotSession(HostSession):
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "home"
        self.sessions = self.home / ".copilot" / "session-state"
        variables = {"COPILOT_HOME": str(self.home / ".copilot")}
        super().__init__(path, "copilot", hook.__file__, variables)


class CopilotRun(RecordedRun, CopilotSession):
    """A recorded run of Copilot CLI."""

    recorded_home = "/home/user"
    pattern = "events.jsonl"

    def __init__(self, path, name):
        super().__init__(path, RECORDED_CALLS / name)
        (lines,) = self.transcripts.values()
        self.session_id = json.loads(lines[0])["data"]["sessionId"]
        folder = self.sessions / self.session_id
        folder.mkdir(parents=True)
        # As the client names the process that has the session open.
        (folder / f"inuse.{os.getpid()}.lock").write_text(str(os.getpid()))

    def grow(self, call, payload):
        """The one file of the session."""
        path = self.sessions / self.session_id / "events.jsonl"
        self.write_lines(str(path), call["file_lines_at_hook"])

    def named(self, payload):
        """The agent that a payload is about."""
        agent_id = payload.get("agent_id")
        return self.session_id if agent_id is None else f"{self.session_id}.{agent_id}"

    def readings(self):
        """The readings of each agent, in order, and of each the texts that it got."""
        seen, told = {}, {}
        while len(self.answers) < len(self.calls):
            payload, answer = self.step()
            for agent_id in self.ids():
                record = self.record(agent_id)
                value = record.epoch, record.estimated_tokens
                found = seen.setdefault(agent_id, [])
                if record.measured_at is not None and value not in found:
                    found.append(value)
            if answer.stdout:
                text = json.loads(answer.stdout)["additionalContext"]
                told.setdefault(self.named(payload), []).append(text)
        assert self.failures() == []
        return seen, told
