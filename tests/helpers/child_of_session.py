"""A subagent of a hooked session, launched and ended the ways the real client does it (2.1.330)."""

from __future__ import annotations

import json
import time

from helpers.hooked_session import HookedSession
from helpers.transcript_lines import line
from ultramon.backends.local.state_files import StateDirectory
from ultramon.system.timestamps import format_time

CHILD = "a1e58397a453a09b2"
_INTERRUPTED = "[Request interrupted by user]"
_TOOLS_USED = "<tools-used-before-summary>Bash</tools-used-before-summary>\n"


class Launched:
    """A subagent that was launched by its session.

    Args:
        session: The session.
        name: The client's name for it.
    """

    def __init__(self, session: HookedSession, name: str = CHILD) -> None:
        self.session = session
        self.name = name
        note = session.file_of(name).with_suffix(".meta.json")
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({"toolUseId": f"toolu_launch_{name}"}))
        session.call("SubagentStart", agent=name)

    def announce(self):
        """The launch in the background is answered."""
        launched = {"isAsync": True, "status": "async_launched", "agentId": self.name}
        return self._answered(launched | {"description": "sub work"})

    def work(self, tokens):
        """It calls a tool at so many tokens."""
        return self.session.tool(tokens, self.name)

    def stop(self, text="Seen half."):
        """It ends with a text of its own."""
        self.session.reply(self.session.record(self.name).estimated_tokens, agent=self.name)
        return self.session.call("SubagentStop", self.name)

    def stop_by_hook(self, message="the harness stops it"):
        """A hook of somebody ends it: no event follows, its transcript says so."""
        attachment = {"type": "hook_stopped_continuation", "message": message}
        entry = {
            "type": "attachment",
            "attachment": attachment | {"hookName": "PostToolUse:Bash", "hookEvent": "PostToolUse"},
            "isSidechain": True,
            "agentId": self.name,
            "sessionId": self.session.session_id,
            "timestamp": format_time(time.time()),
        }
        self.session.write(line(entry), agent=self.name)

    def interrupt(self):
        """It is stopped, by a tool of its launcher or a person: no event follows."""
        entry = {
            "type": "user",
            "message": {"role": "user", "content": [{"type": "text", "text": _INTERRUPTED}]},
            "isSidechain": True,
            "agentId": self.name,
            "sessionId": self.session.session_id,
            "timestamp": format_time(time.time()),
        }
        self.session.write(line(entry), agent=self.name)

    def fail(self):
        """Its request is refused."""
        self.session.refusal(self.name)
        return self.session.call(
            "StopFailure", self.name, error="invalid_request",
            last_assistant_message="Prompt is too long",
        )  # fmt: skip

    def returned(self, *texts):
        """The tool that launched it in the foreground answers."""
        content = [{"type": "text", "text": text} for text in (_TOOLS_USED, *texts)]
        answer = {"status": "completed", "agentId": self.name, "agentType": "general-purpose"}
        return self._answered(answer | {"content": content if texts else []})

    def notify(self, text="", status="completed"):
        """The client submits what it writes when a subagent in the background has ended."""
        result = f"\n<result>{text}</result>" if text else ""
        return self.session.call(
            "UserPromptSubmit",
            prompt=f"<task-notification>\n<task-id>{self.name}</task-id>\n"
            f"<tool-use-id>toolu_1</tool-use-id>\n<status>{status}</status>\n"
            f'<summary>Agent "a part" finished</summary>{result}\n</task-notification>',
        )

    def plan(self, **tasks):
        """Give it a plan, as tools that keep tasks store it."""
        directory = StateDirectory(str(self.session.state))
        agent_id = f"{self.session.session_id}.{self.name}"
        with directory.locked(agent_id, 1.0):
            record = directory.read_to_replace(agent_id)
            record.tasks = [
                {"name": name, "status": status, "result": None} for name, status in tasks.items()
            ]
            record.tasks_completed = sum(status == "done" for status in tasks.values())
            record.tasks_total = len(tasks)
            directory.replace(record, durable=False)

    def _answered(self, response):
        return self.session.call("PostToolUse", tool_name="Agent", tool_response=response)
