"""A scripted model that plays an agent behind the real Codex, on the job of `real_client.item_job`.

It knows only what a request holds: the items of the prompt, and which of its calls were answered.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter

from helpers.codex_client import Api, Step
from helpers.client_relay import plan

_ITEMS = re.compile(r"^## Items\b[^\n]*\n((?:- [^\n]+(?:\n|\Z))+)", re.MULTILINE)
_WROTE = re.compile(r"> 'notes/([^']+)\.md'")
USAGE_LIMIT = {"type": "usage_limit_reached", "message": "The usage limit has been reached"}


class ItemCodex(Api):
    """Writes the note of one item after the other, and keeps its plan.

    Args:
        is_limited: Asked at each request: whether it meets the usage limit.

    Attributes:
        begun: How often it has begun each item.
    """

    def __init__(self, is_limited):
        super().__init__({})
        self.begun = Counter()
        self._is_limited = is_limited

    def answer(self, body, path):
        """Return status, type and bytes of the answer to a request."""
        with self._lock:
            self.prompts.append(self.prompts_of(body))
            if self._is_limited():
                return self.reply(Step(0, error=USAGE_LIMIT, status=429), body, path)
            return self.reply(self._act(body["input"]), body, path)

    def _act(self, entries):
        items = _items(self.prompts[-1])
        calls = [one for one in entries if one.get("type") == "function_call"]
        answered = {one["call_id"] for one in entries if one.get("type") == "function_call_output"}
        written = [
            found[1]
            for call in calls
            if call["call_id"] in answered and (found := _WROTE.search(call["arguments"]))
        ]
        kept = [json.loads(call["arguments"])["plan"] for call in calls if "plan" in call["name"]]
        done = {step["step"] for step in kept[-1] if step["status"] == "completed"} if kept else ()
        if not kept or set(done) != set(written):
            return Step(
                20_000,
                plan(*((item, "completed" if item in written else "pending") for item in items)),
            )
        left = [item for item in items if item not in written]
        if not left:
            return Step(21_000, text="All is written.")
        self.begun[left[0]] += 1
        source = shlex.quote(f"source/{left[0]}.txt")
        path = f"'notes/{left[0]}.md'"
        return Step(20_000, f"mkdir -p notes; grep -o 'code word: .*' {source} > {path}")


def _items(prompts):
    found = [match for text in prompts for match in _ITEMS.finditer(text)]
    return [line.removeprefix("- ") for line in found[-1][1].splitlines()] if found else []
