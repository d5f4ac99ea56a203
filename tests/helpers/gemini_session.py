"""Recorded runs of Gemini, and its hook run on payloads."""

from __future__ import annotations

import json
import os
import time

from helpers import DATA
from helpers.host_session import HostSession
from helpers.recorded_run import RecordedRun
from ultramon.hosts.gemini import hook
from ultramon.system.timestamps import format_time

RECORDED = DATA / "hooks" / "gemini-0.61.0"


class GeminiSession(HostSession):
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "home"
        self.chats = self.home / ".gemini" / "tmp" / "project" / "chats"
        self.chats.mkdir(parents=True)
        super().__init__(path, "gemini", hook.__file__, {"GEMINI_CLI_HOME": str(self.home)})


class GeminiRun(RecordedRun, GeminiSession):
    """A recorded run of Gemini."""

    recorded_home = "/home/dev"

    def __init__(self, path, name):
        super().__init__(path, RECORDED / name)
        self._stamps = {}

    def read_transcripts(self, folder):
        """The entries of each session file, by its path in the client's folder."""
        chats = folder / "chats"
        return {
            file.relative_to(chats): [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted(chats.rglob("*.jsonl"), key=_by_depth)
        }

    def grow(self, call, payload):
        """The file of the session, and those of its subagents, which the client does not name."""
        for name, lines in self.transcripts.items():
            if name.name == os.path.basename(payload["transcript_path"]):
                self._grow(name, lines[: call["file_lines_at_hook"]])
            elif name.parent.name == payload["session_id"]:
                said = [one for one in lines if _time_of(one) <= payload["timestamp"]]
                is_over = payload.get("tool_name") == "invoke_agent"
                self._grow(name, lines if is_over else said)

    def _grow(self, name, lines):
        path = self.chats / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as stream:
            for entry in self.new_lines(name, lines):
                # The client writes a reply again when its tools have run, with the time it had.
                now = self._stamps.setdefault(entry.get("id", object()), format_time(time.time()))
                times = {one: now for one in ("timestamp", "startTime") if one in entry}
                stream.write(json.dumps(entry | times) + "\n")


def _by_depth(file):
    """A session's own file comes first: a reply of it starts its subagents."""
    return len(file.parts), file


def _time_of(entry):
    """When a line was written; one without a time ends the file."""
    update = entry.get("$set", {})
    times = [one["timestamp"] for one in entry.get("toolCalls", ())]
    times += [entry.get("timestamp"), entry.get("startTime"), update.get("lastUpdated")]
    return max((one for one in times if one), default="9")
