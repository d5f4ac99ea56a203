"""A session of the client as a hook sees it: its transcripts, its calls, the states that result.

The hook is the real process, run as an installation runs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from helpers import DATA
from helpers.transcript_lines import line, reply
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log
from ultramon.hosts.claude_code import hook
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.timestamps import format_time

TRANSCRIPTS = DATA / "captures" / "claude-code-2.1.330"
RECORDED = DATA / "hooks" / "claude-code-2.1.330"
MODEL = "claude-sonnet-4-5"
LIMIT_TOKENS = 200_000
SESSION = "session"


def tokens_at(remaining_percent):
    """The tokens that leave so many percent of the limit."""
    return round((100 - remaining_percent) / 100 * LIMIT_TOKENS)


class Answer:
    """What one hook process did: never anything but exit 0, no words, and JSON or nothing."""

    def __init__(self, returncode, stdout, stderr):
        assert (returncode, stderr) == (0, b""), (returncode, stderr)
        self.stdout = stdout
        self.value = json.loads(stdout) if stdout else None

    @property
    def text(self):
        """The text for the agent, empty when there is none."""
        return self.value["hookSpecificOutput"]["additionalContext"] if self.value else ""


class HookedSession:
    """One session under a directory, with its own home, project, transcript and state directory.

    Attributes:
        caller: The process that calls the hook; None = this one.
    """

    caller = None

    def __init__(self, path, session_id=SESSION, **environ):
        self.path = path
        self.session_id = session_id
        self.state = path / "hooked"
        self.state.mkdir(mode=0o700, exist_ok=True)
        self.installed = Path(choices_path(str(self.state), "claude-code"))
        self.home = path / "home"
        self.project = path / "project"
        self.transcript = path / "transcripts" / f"{session_id}.jsonl"
        for directory in (self.home, self.project, self.transcript.parent):
            directory.mkdir(exist_ok=True)
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "CLAUDE_PID": str(os.getpid()),
            "CLAUDE_PROJECT_DIR": str(self.project),
        } | environ
        self._made = 0

    def freeze(self, **choices):
        """Install with other choices than the defaults."""
        installed = InstalledChoices(str(self.installed))
        for name, value in choices.items():
            setattr(installed, name, value)
        installed.save()

    # --- what the client writes

    def file_of(self, agent=None):
        """The transcript of the session, or of one of its subagents."""
        if agent is None:
            return self.transcript
        return self.transcript.with_suffix("") / "subagents" / f"agent-{agent}.jsonl"

    def write(self, *entries, agent=None):
        """Append lines to a transcript, whole objects or bytes."""
        path = self.file_of(agent)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(e if isinstance(e, bytes) else line(e) for e in entries))

    def reply_line(self, tokens, *calls, agent=None, model=MODEL, at=None, text="", **entry):
        """A reply of the model with that many tokens in the window."""
        self._made += 1
        usage = {"input_tokens": 10, "cache_read_input_tokens": tokens - 10, "output_tokens": 5}
        blocks = [{"type": "text", "text": text}] if text else []
        blocks += [{"type": "tool_use", "id": call, "name": "Bash", "input": {}} for call in calls]
        entry = {
            "timestamp": format_time(time.time() if at is None else at),
            "sessionId": self.session_id,
            "requestedModel": model,
            "isSidechain": agent is not None,
        } | entry
        if agent is not None:
            entry["agentId"] = agent
        made = reply(f"msg_{self._made}", usage, blocks, **entry)
        made["message"]["model"] = model.removesuffix("[1m]")
        return made

    def reply(self, tokens, *calls, agent=None, **entry):
        """Write such a reply."""
        self.write(self.reply_line(tokens, *calls, agent=agent, **entry), agent=agent)

    def refusal(self, agent=None, text="Prompt is too long"):
        """Write what the client writes in the place of a reply when a request failed."""
        made = self.reply_line(10, agent=agent, text=text, model="<synthetic>")
        made["message"]["usage"] = {"input_tokens": 0, "output_tokens": 0}
        self.write(made | {"error": "invalid_request", "isApiErrorMessage": True}, agent=agent)

    def boundary(self, agent=None):
        """Write that the conversation was compacted."""
        entry = {
            "type": "system",
            "subtype": "compact_boundary",
            "isSidechain": agent is not None,
            "compactMetadata": {"trigger": "auto", "preTokens": 1, "postTokens": 1},
            "timestamp": format_time(time.time()),
            "sessionId": self.session_id,
        }
        self.write(entry | ({"agentId": agent} if agent else {}), agent=agent)

    # --- what the client calls

    def payload(self, event, agent=None, **fields):
        """The payload of an event."""
        base = {
            "session_id": self.session_id,
            "transcript_path": str(self.transcript),
            "cwd": str(self.project),
            "hook_event_name": event,
        }
        if agent is not None:
            base |= {"agent_id": agent, "agent_type": "general-purpose"}
        return {name: value for name, value in (base | fields).items() if value is not ...}

    def command(self):
        """What an installation runs."""
        return [sys.executable, "-I", "-S", hook.__file__, str(self.installed)]

    def start(self, payload=None, *, before=(), env=None, **options):
        """Start the hook; with a payload its input is written and closed."""
        environ = {n: v for n, v in (self.environ | (env or {})).items() if v is not None}
        command = [*before, *self.command()]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        process = subprocess.Popen(command, **(pipes | {"env": environ} | options))
        if payload is not None:
            process.stdin.write(encoded(payload))
            process.stdin.close()
            process.stdin = None
        return process

    def run(self, payload, **options):
        """Run the hook on a payload, or on any bytes."""
        if self.caller is not None:
            return Answer(*self.caller.run(self.command(), encoded(payload), self.environ))
        process = self.start(**options)
        out, err = process.communicate(encoded(payload))
        return Answer(process.returncode, out, err)

    def call(self, event, agent=None, env=None, **fields):
        """Run the hook on an event."""
        return self.run(self.payload(event, agent, **fields), env=env)

    def tool(self, tokens, agent=None, event="PostToolUse", env=None, **fields):
        """The model replies with a call, the tool runs, the hook runs."""
        call = f"toolu_{self._made}"
        self.reply(tokens, call, agent=agent)
        return self.call(
            event, agent, env, tool_name="Bash", tool_response={}, tool_use_id=call, **fields
        )

    # --- what has come of it

    def record(self, agent=None):
        """The state of the session, or of one of its subagents."""
        name = self.session_id if agent is None else f"{self.session_id}.{agent}"
        return StateDirectory(str(self.state)).read(name)

    def memory(self, agent=None):
        """What only this host keeps of an agent."""
        return self.record(agent).extra["claudeCode"]

    def ids(self):
        """The agents that have a state."""
        return StateDirectory(str(self.state)).list_ids()

    def events(self, *kinds):
        """The events in the journal, all or of some types."""
        backend = LocalBackend(str(self.state))
        try:
            found = backend.events(limit=10_000).events
        finally:
            backend.close()
        return [event for event in found if not kinds or event["type"] in kinds]

    def failures(self):
        """The problems in the failure log."""
        return [
            failure["problem"]
            for failure in failure_log.read(failure_log.log_path(str(self.state), "claude-code"))
        ]


def encoded(payload):
    """A payload as the client writes it."""
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def said(session, *remaining, **options):
    """The percentages in the warnings of calls with so much remaining; None = no warning."""
    texts = [session.tool(tokens_at(one), **options).text for one in remaining]
    return [int(text.partition("(")[2].partition(" %")[0]) if text else None for text in texts]
