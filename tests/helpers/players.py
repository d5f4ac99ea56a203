"""Clients that play as many replies as a test wants, each with a tool, and call their hooks."""

from __future__ import annotations

import itertools
import json
import time

from helpers.copilot_session import CopilotSession
from helpers.gemini_session import GeminiSession
from helpers.qwen_session import QwenSession
from ultramon.system.timestamps import format_time

FULL = 160_000
CHOICES = {"enforce": "critical", "context_limit_tokens": 200_000}


class Player:
    """A client that plays replies with a tool each, and calls the hooks around them.

    Args:
        session: The client's home.
    """

    def __init__(self, session, choices):
        session.choose(**choices)
        self.session = session
        self.numbers = itertools.count(1)
        self.call("SessionStart", source="startup")

    def call(self, event, **members):
        """Run the hook for an event."""
        base = {"session_id": "main", "transcript_path": str(self.path)}
        return self.session.run(base | {"hook_event_name": event} | members)

    def write(self, path, *entries):
        """Append lines of this moment to a file."""
        with path.open("a") as stream:
            for entry in entries:
                now = format_time(time.time())
                stream.write(json.dumps({"timestamp": now} | entry) + "\n")

    def go_on(self, count, tokens=FULL):
        """Play so many replies; return what the agent read, and the last answers to them."""
        answers = [self.play(tokens + number) for number in range(count)]
        return [one.text for one, _ in answers], [one.value for _, one in answers]

    def record(self):
        """The state of the session."""
        return self.session.record("main")


class QwenPlayer(Player):
    """Qwen Code, which reports a round of tools as an empty prompt."""

    def __init__(self, path, choices, started_as="-p"):
        session = QwenSession(path)
        session.started_as = started_as
        self.path = path / "projects" / "p" / "chats" / "main.jsonl"
        self.path.parent.mkdir(parents=True)
        super().__init__(session, choices)

    def play(self, tokens):
        """One reply, its tool, and what is asked before the next request."""
        call = {"id": f"call_{next(self.numbers)}", "name": "run_shell_command"}
        usage = {"promptTokenCount": tokens, "candidatesTokenCount": 1}
        own = {"uuid": call["id"], "sessionId": "main", "contextWindowSize": 1_000_000}
        parts = {"parts": [{"functionCall": call | {"args": {}}}]}
        reply = own | {"type": "assistant", "model": "qwen", "usageMetadata": usage}
        self.write(self.path, reply | {"message": parts})
        answer = self.call("PostToolUse", tool_name=call["name"], tool_call_id=call["id"])
        parts = {"parts": [{"functionResponse": call | {"response": {"output": ""}}}]}
        self.write(self.path, own | {"type": "tool_result", "message": parts})
        return answer, self.call("UserPromptSubmit", prompt="")


class GeminiPlayer(Player):
    """Gemini CLI, which asks before each request to the model."""

    def __init__(self, path, choices):
        session = GeminiSession(path)
        self.path = session.chats / "session-1.jsonl"
        super().__init__(session, choices)

    def begin(self, tokens, path=None):
        """A reply that waits for its tools."""
        name = f"reply-{next(self.numbers)}"
        reply = {"id": name, "type": "gemini", "content": "", "model": "gemini-2.5-pro"}
        reply["tokens"] = {"input": tokens, "output": 1, "cached": 0}
        reply["timestamp"] = format_time(time.time())  # which it keeps when it is written again
        self.write(path or self.path, reply)
        return reply

    def end(self, reply, path=None):
        """Its tools have run, and the model is asked next."""
        results = {"type": "user", "content": [{"functionResponse": {"name": "read_file"}}]}
        self.write(path or self.path, reply | {"toolCalls": [{}]}, results)
        return self.call("BeforeModel", llm_request={"messages": []})

    def play(self, tokens, path=None):
        """One reply, its tool, and what is asked before the next request."""
        reply = self.begin(tokens, path)
        answer = self.call("AfterTool", tool_name="read_file", tool_input={}, tool_response={})
        return answer, self.end(reply, path)

    def launch(self, name):
        """A reply of the session that waits for a subagent; the file of that."""
        if not self.path.exists():
            self.begin(20_000)
        path = self.session.chats / "main" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        start = {"sessionId": name, "kind": "subagent", "startTime": format_time(time.time())}
        self.write(path, start, {"type": "user", "content": [{"text": "look"}]})
        return path


class CopilotPlayer(Player):
    """Copilot CLI, which asks for a permission before each call that is no read."""

    def __init__(self, path, choices):
        session = CopilotSession(path)
        self.path = session.sessions / "s" / "events.jsonl"
        self.path.parent.mkdir(parents=True)
        session.choose(**choices)
        self.session = session
        self.stamps = itertools.count(1_795_733_027_402)

    def reply(self, tokens):
        """A reply with so many tokens in the window."""
        usage = {"model": "m", "inputTokens": tokens, "outputTokens": 9}
        usage["maxPromptTokens"] = 250_000  # of which four fifths are the limit
        entry = {"type": "session.usage_record", "data": {"usage": usage}, "id": str(tokens)}
        self.write(self.path, entry)

    def call(self, payload):
        """A hook call that stands in the file already, as its reply does."""
        stamp = next(self.stamps)
        self.write(self.path, {"type": "hook.start", "data": {"input": {"timestamp": stamp}}})
        return self.session.run({"cwd": "/home/user/project", "timestamp": stamp} | payload)

    def ask(self):
        """What is asked before a call."""
        return self.call({"hookName": "permissionRequest", "sessionId": "s", "toolName": "bash"})

    def end_tool(self):
        """A call has ended."""
        ended = {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash"}
        return self.call(ended)

    def play(self, tokens):
        """One reply; what is asked before its tool, and what is said behind that."""
        self.reply(tokens)
        return self.ask(), self.end_tool()
