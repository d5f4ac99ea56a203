"""Recorded runs of Qwen Code, and its hook run on payloads."""

from __future__ import annotations

import os
import shutil

from helpers import DATA
from helpers.host_session import HostSession
from helpers.recorded_run import RecordedRun
from ultramon.hosts.qwen import hook

OLD, NEW = "0.15.10", "0.24.4"


def recording(version, name):
    """The folder of a recorded run."""
    return DATA / "hooks" / f"qwen-{version}" / name


def plant_run(project, version, name):
    """Copy the files of a recorded run to where the client keeps them; return the session's."""
    (session,) = recording(version, name).glob("[0-9a-f]*-*-*-*-*.jsonl")
    chats, subagents = project / "chats", project / "subagents" / session.stem
    for folder in (chats, subagents):
        folder.mkdir(parents=True, exist_ok=True)
    for file in recording(version, name).glob("agent-*.jsonl"):
        shutil.copy(file, subagents)
    return shutil.copy(session, chats)


class QwenSession(HostSession):
    """A home of the client, run on one prompt, and a state directory, and the hook run in there."""

    started_as = "-p"

    def __init__(self, path):
        self.home = path / "qwen"
        self.home.mkdir(parents=True)
        super().__init__(path, "qwen", hook.__file__, {"QWEN_HOME": str(self.home)})


class QwenRun(RecordedRun, QwenSession):
    """A recorded run of Qwen Code."""

    recorded_home = "/home/user/.qwen"
    pattern = "*-*.jsonl"

    def __init__(self, path, version, name):
        super().__init__(path, recording(version, name))
        if version == NEW:
            own = {"SESSION_ID": self.calls[0]["stdin"]["session_id"], "MODEL": "qwen3-coder-plus"}
            self.environ |= {f"QWEN_CODE_{key}": value for key, value in own.items()}

    def grow(self, call, payload):
        """The file of the session, and those of its subagents, which the client does not name."""
        path, session_id = payload["transcript_path"], payload["session_id"]
        folder = os.path.join(os.path.dirname(os.path.dirname(path)), "subagents", session_id)
        for name, count in call["lines"].items():
            is_own = name == os.path.basename(path)
            self.write_lines(path if is_own else os.path.join(folder, name), count)
