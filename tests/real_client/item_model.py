"""Scripted models that play an agent behind a real client, on the job of `real_client.item_job`.

Each knows only what a request holds: the items of the prompt, and which of its calls were answered.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import Counter

from helpers import codex_client, gemini_client, qwen_client
from helpers.client_relay import PLANS, plan
from helpers.scripted_model import Step

from ultramon.system.timestamps import format_time

_ITEMS = re.compile(r"^## Items\b[^\n]*\n((?:- [^\n]+(?:\n|\Z))+)", re.MULTILINE)
_WROTE = re.compile(r"> 'notes/([^']+)\.md'")


class ItemModel:
    """Writes the note of one item after the other, and keeps its plan.

    Comes before a client's `ScriptedModel` among the bases of a class.

    Args:
        is_limited: Asked at each request: whether it meets the usage limit.

    Attributes:
        agent: The client, as a relay names it.
        begun: How often it has begun each item.
        limit_seconds: After which a usage limit ends, where the client reads that.
    """

    agent = ""

    def __init__(self, is_limited):
        super().__init__({})
        self.begun = Counter()
        self.limit_seconds = 1
        self._is_limited = is_limited

    def calls_in(self, body):
        """The calls of a request that were answered, each as its tool and its arguments."""
        raise NotImplementedError

    def limit(self):
        """The step that refuses a request for the usage limit."""
        raise NotImplementedError

    def answer(self, body, path):
        """Return status, type and bytes of the answer to a request."""
        with self._lock:
            if not self.is_turn(body):
                return self.reply(self._compact, body, path)
            self.prompts.append(self.prompts_of(body))
            step = self.limit() if self._is_limited() else self._act(body)
            return self.reply(step, body, path)

    def _act(self, body):
        items, calls = _items(self.prompts[-1]), list(self.calls_in(body))
        tool, entries, name = PLANS[self.agent]
        written = [
            found[1] for _, given in calls if (found := _WROTE.search(given.get("command", "")))
        ]
        kept = [given[entries] for called, given in calls if called == tool]
        done = {step[name] for step in kept[-1] if step["status"] == "completed"} if kept else ()
        if not kept or set(done) != set(written):
            states = (("completed" if item in written else "pending") for item in items)
            return Step(20_000, plan(*zip(items, states, strict=True), agent=self.agent))
        left = [item for item in items if item not in written]
        if not left:
            return Step(21_000, text="All is written.")
        self.begun[left[0]] += 1
        source = shlex.quote(f"source/{left[0]}.txt")
        path = f"'notes/{left[0]}.md'"
        return Step(20_000, f"mkdir -p notes; grep -o 'code word: .*' {source} > {path}")


class ItemCodex(ItemModel, codex_client.Api):
    """The agent behind Codex."""

    agent = "codex"

    def calls_in(self, body):
        """Calls and their outputs are entries of the input."""
        ended = {one["call_id"] for one in body["input"] if one.get("type", "").endswith("_output")}
        for one in body["input"]:
            if one.get("type") == "function_call" and one["call_id"] in ended:
                given = json.loads(one["arguments"])
                yield one["name"], {"command": given.get("cmd", ""), **given}

    def limit(self):
        """The client says nothing about its end."""
        error = {"type": "usage_limit_reached", "message": "The usage limit has been reached"}
        return Step(0, error=error, status=429)


class ItemGemini(ItemModel, gemini_client.Api):
    """The agent behind Gemini CLI."""

    agent = "gemini"

    def calls_in(self, body):
        """Calls and their results are parts of messages, in the same order."""
        parts = [part for one in body["contents"] for part in one.get("parts", ())]
        ended = sum("functionResponse" in part for part in parts)
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        return [(one["name"], one["args"]) for one in calls[:ended]]

    def limit(self):
        """The quota of a day; the client says nothing about its end."""
        violation = {"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}
        failure = "type.googleapis.com/google.rpc.QuotaFailure"
        details = [{"@type": failure, "violations": [violation]}]
        error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your quota."}
        return Step(0, error=error | {"details": details}, status=429)


class ItemQwen(ItemModel, qwen_client.Api):
    """The agent behind Qwen Code."""

    agent = "qwen"

    def calls_in(self, body):
        """Calls belong to messages, and each result is a message."""
        ended = {one["tool_call_id"] for one in body["messages"] if one.get("role") == "tool"}
        for message in body["messages"]:
            for one in message.get("tool_calls") or ():
                if one["id"] in ended:
                    yield one["function"]["name"], json.loads(one["function"]["arguments"])

    def limit(self):
        """A quota whose end is known: of any other one the client asks again for minutes."""
        end = format_time(time.time() + self.limit_seconds)
        error = {"code": "quota", "message": f"Allocated quota exceeded, it will reset at {end}"}
        return Step(0, error=error, status=429)


def _items(prompts):
    found = [match for text in prompts for match in _ITEMS.finditer(text)]
    return [line.removeprefix("- ") for line in found[-1][1].splitlines()] if found else []
