"""Recorded runs of Codex, and its hook run on payloads."""

from __future__ import annotations

from helpers import DATA
from helpers.host_session import HostSession
from helpers.recorded_run import RecordedRun
from ultramon.hosts.codex import hook

RECORDED = DATA / "hooks" / "codex-0.169.0"


class CodexSession(HostSession):
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "codex"
        self.home.mkdir(parents=True)
        super().__init__(path, "codex", hook.__file__, {"CODEX_HOME": str(self.home)})


class CodexRun(RecordedRun, CodexSession):
    """A recorded run of Codex."""

    recorded_home = "/home/dev/.codex"
    pattern = "rollout-*"

    def __init__(self, path, name):
        super().__init__(path, RECORDED / name)

    def grow(self, call, payload):
        """The rollout that the client named, and that of a subagent which has ended."""
        self.write_lines(payload["transcript_path"], call["file_lines_at_hook"])
        if "agent_transcript_path" in payload:
            self.write_lines(payload["agent_transcript_path"], None)
