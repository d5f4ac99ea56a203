"""A recorded run of a client, replayed in its order through the real hook process."""

from __future__ import annotations

import json
import os
import time

from ultramon.system.timestamps import format_time

HOSTILE_BYTES = [
    b"", b"{", b"[]", b"\xff" * 5_000, b"[" * 100_000, b'{"session_id": "s"' * 2,
]  # fmt: skip
HOSTILE_PAYLOADS = [
    *HOSTILE_BYTES,
    {"session_id": "../x", "hook_event_name": "Stop"},
    {"session_id": 7, "hook_event_name": "Stop"},
    {"session_id": "s", "hook_event_name": "PostToolUse", "agent_id": "a/b"},
    {"session_id": "s", "hook_event_name": "PostToolUse", "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "Stop", "transcript_path": "/dev/zero"},
    {"session_id": "s", "hook_event_name": "SubagentStop", "agent_id": "a"},
]  # fmt: skip
"""Of a session ``s``, or of none; in the dialect of Claude Code."""


class RecordedRun:
    """One recorded run; the transcripts grow before each call to what they were at that call.

    Comes before a client's `HostSession` among the bases of a class.

    Args:
        path: A folder for the client's home and the state directory.
        folder: The recording.

    Attributes:
        recorded_home: The client's directory in the recording.
        pattern: Which files of a recording are transcripts.
    """

    recorded_home = ""
    pattern = ""

    def __init__(self, path, folder):
        super().__init__(path)
        lines = (folder / "hooks.jsonl").read_text().splitlines()
        self.calls = [json.loads(one) for one in lines]
        self.transcripts = self.read_transcripts(folder)
        self._written = {}
        self.answers = []

    def read_transcripts(self, folder):
        """The lines of each transcript of a recording, by its name."""
        files = sorted(folder.glob(self.pattern))
        return {file.name: file.read_bytes().splitlines() for file in files}

    def grow(self, call, payload):
        """Let the transcripts be what they were at a call."""
        raise NotImplementedError

    def step(self):
        """Replay the next call; return what the client sent, and the answer."""
        call = self.calls[len(self.answers)]
        payload = json.loads(json.dumps(call["stdin"]).replace(self.recorded_home, str(self.home)))
        self.grow(call, payload)
        answer = self.run(payload)
        self.answers.append(answer)
        return payload, answer

    def replayed(self):
        """Replay what is left; yield after each call payload, answer and the state of its agent."""
        while len(self.answers) < len(self.calls):
            payload, answer = self.step()
            agent_id, sub = payload["session_id"], payload.get("agent_id")
            yield payload, answer, self.record(f"{agent_id}.{sub}" if sub else agent_id)

    def readings(self):
        """The readings of each agent, in order, and of each that a call names the answers."""
        seen, told = {}, {}
        for payload, answer, caller in self.replayed():
            for agent_id in self.ids():
                record = self.record(agent_id)
                found = seen.setdefault(agent_id, [])
                value = (record.epoch, record.estimated_tokens)
                if record.measured_at is not None and value not in found:
                    found.append(value)
            if answer.text:
                event = payload["hook_event_name"]
                told.setdefault(caller.agent_id, []).append((event, answer.text))
        assert self.failures() == []
        return seen, told

    def new_lines(self, name, lines):
        """The lines of a transcript that were not there at an earlier call."""
        first = self._written.get(name, 0)
        self._written[name] = max(first, len(lines))
        return lines[first:]

    def write_lines(self, path, count):
        """Let a transcript have as many lines, written now; None = all it ever had."""
        name = os.path.basename(path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "ab") as stream:
            for line in self.new_lines(name, self.transcripts[name][:count]):
                entry = json.loads(line) | {"timestamp": format_time(time.time())}
                stream.write(json.dumps(entry).encode() + b"\n")


def in_epoch(number, *tokens):
    """Readings of one epoch, as `RecordedRun.readings` gives them."""
    return [(number, one) for one in tokens]
