"""A recorded run of Codex, replayed in its order through the real hook process."""

from __future__ import annotations

import json
import os
import time

from helpers import DATA
from helpers.host_session import HostSession
from ultramon.hosts.codex import hook
from ultramon.system.timestamps import format_time

RECORDED = DATA / "hooks" / "codex-0.169.0"
HOME = "/home/dev/.codex"


class CodexSession(HostSession):
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "codex"
        self.home.mkdir(parents=True)
        super().__init__(path, "codex", hook.__file__, {"CODEX_HOME": str(self.home)})


class RecordedRun(CodexSession):
    """One recorded run; the rollouts grow before each call to what they were at that call."""

    def __init__(self, path, run):
        super().__init__(path)
        folder = RECORDED / run
        lines = (folder / "hooks.jsonl").read_text().splitlines()
        self.calls = [json.loads(one) for one in lines]
        self.rollouts = {
            file.name: file.read_bytes().splitlines() for file in sorted(folder.glob("rollout-*"))
        }
        self._written = {}
        self.answers = []

    def step(self):
        """Replay the next call; return what the client sent, and the answer."""
        call = self.calls[len(self.answers)]
        payload = json.loads(json.dumps(call["stdin"]).replace(HOME, str(self.home)))
        self._grow(payload["transcript_path"], call["file_lines_at_hook"])
        if "agent_transcript_path" in payload:
            self._grow(payload["agent_transcript_path"], None)
        answer = self.run(payload)
        self.answers.append(answer)
        return payload, answer

    def finish(self):
        """Replay what is left; return of each call the payload and the answer."""
        return [self.step() for _ in self.calls[len(self.answers) :]]

    def _grow(self, path, count):
        name = os.path.basename(path)
        lines = self.rollouts[name][:count]
        first = self._written.get(name, 0)
        self._written[name] = max(first, len(lines))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as stream:
            for line in lines[first:]:
                entry = json.loads(line) | {"timestamp": format_time(time.time())}
                stream.write(json.dumps(entry).encode() + b"\n")
