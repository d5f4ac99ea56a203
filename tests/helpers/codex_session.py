"""A recorded run of Codex, replayed in its order through the real hook process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from helpers import DATA
from helpers.hooked_session import Answer
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log
from ultramon.hosts.codex import hook
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.timestamps import format_time

RECORDED = DATA / "hooks" / "codex-0.169.0"
HOME = "/home/dev/.codex"


class CodexSession:
    """A home of the client and a state directory, and the hook run in there."""

    def __init__(self, path):
        self.home = path / "codex"
        self.home.mkdir(parents=True)
        self.state = path / "state"
        self.state.mkdir(mode=0o700)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(path),
            "CODEX_HOME": str(self.home),
        }

    def choose(self, **choices):
        """Install with other choices than the defaults."""
        installed = InstalledChoices(choices_path(str(self.state), "codex"))
        for name, value in choices.items():
            setattr(installed, name, value)
        installed.save()

    def run(self, payload):
        """Run the hook on a payload, or on any bytes."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        installed = choices_path(str(self.state), "codex")
        done = subprocess.run(
            [sys.executable, "-I", "-S", hook.__file__, installed],
            input=data,
            capture_output=True,
            env=self.environ,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def record(self, agent_id):
        """The state of an agent."""
        return StateDirectory(str(self.state)).read(agent_id)

    def ids(self):
        """The agents that have a state."""
        return StateDirectory(str(self.state)).list_ids()

    def events(self, kind):
        """The events of a type in the journal."""
        backend = LocalBackend(str(self.state))
        try:
            return [one for one in backend.events(limit=1_000).events if one["type"] == kind]
        finally:
            backend.close()

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.state), "codex")
        return [failure["problem"] for failure in failure_log.read(path)]


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
