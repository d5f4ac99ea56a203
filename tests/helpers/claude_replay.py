"""Recorded runs of Claude Code, replayed in their order through the real hook process."""

from __future__ import annotations

import json
import time

from helpers.hooked_session import RECORDED, TRANSCRIPTS, HookedSession
from helpers.transcript_lines import line
from ultramon.system.timestamps import format_time

HOME = "/home/dev/.claude/projects/-home-dev-project"
"""Where the client kept its transcripts."""


class Replay:
    """One recorded run; the transcripts grow before each call to what they were at that call."""

    def __init__(self, tmp_path, run, transcripts=()):
        lines = (RECORDED / f"hook_sequence_{run}.jsonl").read_text().splitlines()
        self.calls = [json.loads(one) for one in lines]
        self.session = HookedSession(tmp_path, self.calls[0]["stdin"]["session_id"])
        self.folder = self.session.transcript.parent
        self.lines = {
            name: (TRANSCRIPTS / f"transcript_{run}_{name}.jsonl").read_bytes().splitlines()
            for name in transcripts
        }
        self.written = {}
        self.answers = []

    def step(self):
        """Replay the next call; return its event and what it was answered."""
        call = self.calls[len(self.answers)]
        payload = call["stdin"]
        for kind, found in call["transcript_state_at_hook"].items():
            if "missing" not in found:
                self._grow(payload, kind, found)
        text = json.dumps(payload).replace(HOME, str(self.folder))
        answer = self.session.run(text.encode())
        self.answers.append(answer)
        return payload["hook_event_name"], answer

    def to(self, number):
        """Replay all calls up to and with the one of that number."""
        while len(self.answers) <= number:
            self.step()

    def _grow(self, payload, kind, found):
        agent = payload["agent_id"] if kind == "sub" else None
        file = self.session.file_of(agent).with_stem(
            f"agent-{agent}" if agent else payload["session_id"]
        )
        file.parent.mkdir(parents=True, exist_ok=True)
        recorded = self.lines.get("subagent" if agent else f"{payload['session_id'][:8]}_main")
        recorded = recorded or self.lines.get("main")
        if recorded is None:
            self._write_reply(file, found["last"])
            return
        first = self.written.get(file, 0)
        self.written[file] = max(first, found["lines"])
        with file.open("ab") as stream:
            for text in recorded[first : found["lines"]]:
                stream.write(line(json.loads(text) | {"timestamp": format_time(time.time())}))

    def _write_reply(self, file, last):
        file.touch()
        # A subagent's first call may be reported before its transcript holds the reply.
        if last is not None and last["id"] != self.written.get(file):
            self.written[file] = last["id"]
            tokens = sum(last[name] for name in last if name.startswith(("input", "cache")))
            made = self.session.reply_line(tokens)
            made["message"]["id"] = last["id"]
            with file.open("ab") as stream:
                stream.write(line(made))
