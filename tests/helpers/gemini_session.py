"""A recorded run of Gemini, replayed in its order through the real hook process."""

from __future__ import annotations

import json
import os
import time

from helpers import DATA
from helpers.host_session import HostSession
from ultramon.hosts.gemini import hook
from ultramon.system.timestamps import format_time

RECORDED = DATA / "hooks" / "gemini-0.61.0"
HOME = "/home/dev/"


class GeminiSession(HostSession):
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "home"
        self.chats = self.home / ".gemini" / "tmp" / "project" / "chats"
        self.chats.mkdir(parents=True)
        super().__init__(path, "gemini", hook.__file__, {"GEMINI_CLI_HOME": str(self.home)})


class RecordedRun(GeminiSession):
    """One recorded run; the session files grow before each call to what they were at that call."""

    def __init__(self, path, run):
        super().__init__(path)
        folder = RECORDED / run
        lines = (folder / "hooks.jsonl").read_text().splitlines()
        self.calls = [json.loads(one) for one in lines]
        self.sources = {
            file.relative_to(folder / "chats"): [
                json.loads(line) for line in file.read_text().splitlines()
            ]
            for file in sorted((folder / "chats").rglob("*.jsonl"), key=_by_depth)
        }
        self._stamps = {}
        self._written = {}
        self.answers = []

    def step(self):
        """Replay the next call; return what the client sent, and the answer."""
        call = self.calls[len(self.answers)]
        payload = json.loads(json.dumps(call["stdin"]).replace(HOME, f"{self.home}/"))
        for name, lines in self.sources.items():
            if name.name == os.path.basename(payload["transcript_path"]):
                self._grow(name, lines[: call["file_lines_at_hook"]])
            elif name.parent.name == payload["session_id"]:
                said = [one for one in lines if _time_of(one) <= payload["timestamp"]]
                is_over = payload.get("tool_name") == "invoke_agent"
                self._grow(name, lines if is_over else said)
        answer = self.run(payload)
        self.answers.append(answer)
        return payload, answer

    def _grow(self, name, lines):
        first = self._written.get(name, 0)
        self._written[name] = max(first, len(lines))
        path = self.chats / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as stream:
            for entry in lines[first:]:
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
