"""A scripted model that plays an agent: it works through items with the tools of the real client.

It knows only what a request holds: goal, items, task list, what tools answered. What it makes of
an item stands in no script but in the file that it has read. Its faults are given to it: items
that it says are done without doing them, the first time.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real_client.api import COMPACTION, OTHER, Api, Call, Reply, Request
from ultramon.relay.prompts import hand_over_note

CHARS_PER_TOKEN = 4
NO_FILE, STUB = "no file", "stub"
"""What is there of an item that is claimed without being done."""
SUMMARY = (
    "The user has the agent write notes/ITEM.md for each task of the task list, with the code word "
    "from source/ITEM.txt. Several are done; the task list says which are left."
)
"""What it makes of a conversation: the gist, without the user's rules and the list of tasks."""
_SUMMARISED = "This session is being continued from a previous conversation"
_ASKS_FOR_LIST = "Keep these items in the task list"
_BILLING = "x-anthropic-billing-header:"
_ITEMS = re.compile(r"^(?:## )?Items\b[^\n]*\n((?:- [^\n]+(?:\n|\Z))+)", re.MULTILINE)
_CODE_WORD = re.compile(r"code word: (\w+)")
_CREATED = re.compile(r"^Task #(\d+) created successfully: ([^\n]+)")
_LISTED = re.compile(r"^#(\d+) \[(\w+)\] ([^\n]+)", re.MULTILINE)
_READ = re.compile(r"^cat 'source/(.+)\.txt'$")
_WROTE = re.compile(r" > 'notes/([^']+)\.md'$")


@dataclass(frozen=True)
class MeasuredReply(Reply):
    """A reply whose usage is the size of the request it answers.

    Args:
        cached: The tokens that the request before of this session began with as well.
    """

    cached: int = 0

    def usage(self) -> dict[str, Any]:
        """Count what is new as written to the cache, as the client asks for."""
        said = len(self.text) + sum(len(json.dumps(call.input)) for call in self.calls)
        return super().usage() | {
            "input_tokens": 0,
            "cache_creation_input_tokens": self.tokens - self.cached,
            "cache_read_input_tokens": self.cached,
            "output_tokens": said // CHARS_PER_TOKEN,
        }


@dataclass(frozen=True)
class MeasuredRequest:
    """What one request cost, and what it held.

    Attributes:
        session_id: The client's session.
        is_compaction: Whether it asks for a summary.
        tokens: Its size: four characters are a token.
        cached: Of these, what the request before of the same session began with.
        shared: Of the rest, tools and system prompt that another session has sent before.
        is_first: Whether it begins a session.
        is_reset: Whether the conversation before it is gone: a new session but the very first, or
            a compaction.
        has_rules: Whether every rule is in it, word for word.
    """

    session_id: str
    is_compaction: bool
    tokens: int
    cached: int
    shared: int
    is_first: bool
    is_reset: bool
    has_rules: bool


@dataclass
class Task:
    """A task as the conversation shows it; without a list of tasks its id is empty."""

    name: str
    task_id: str = ""
    status: str = "pending"


@dataclass
class Talk:
    """What a request says about the work."""

    task_words: str = ""
    items: list[str] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    code_words: dict[str, str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    is_summarised: bool = False
    hands_over: bool = False
    is_asked_for_list: bool = False
    has_task_list: bool = False

    @classmethod
    def read(cls, request: Request, task_words: str) -> Talk:
        """Read the messages in their order."""
        talk = cls(task_words)
        calls: dict[str, dict[str, Any]] = {}
        for message in request.body["messages"]:
            for block in _blocks(message):
                if block["type"] == "tool_use":
                    calls[block["id"]] = block
                elif block["type"] == "tool_result":
                    text = "\n".join(part.get("text", "") for part in _parts(block["content"]))
                    talk._hear(text)
                    if not block.get("is_error"):
                        talk._see(calls[block["tool_use_id"]], text)
                elif message["role"] == "user":
                    talk._hear(block["text"])
        return talk

    def _hear(self, text: str) -> None:
        self.is_summarised |= text.startswith(_SUMMARISED)
        self.hands_over |= hand_over_note() in text
        self.is_asked_for_list |= _ASKS_FOR_LIST in text
        for found in _ITEMS.finditer(text):
            names = (line.removeprefix("- ") for line in found[1].splitlines())
            self.items += [name for name in names if name not in self.items]

    def _see(self, call: dict[str, Any], answer: str) -> None:
        name, given = call["name"], call["input"]
        if name == "TaskCreate" and (found := _CREATED.search(answer)):
            self.has_task_list = True
            self.tasks[found[1]] = Task(self._item(given["subject"]), found[1])
        elif name == "TaskUpdate" and given["taskId"] in self.tasks:
            self.tasks[given["taskId"]].status = given["status"]
        elif name == "TaskList":
            self.has_task_list = True
            listed = _LISTED.findall(answer)
            self.tasks = {
                task_id: Task(self._item(subject), task_id, status)
                for task_id, status, subject in listed
            }
        elif name == "Bash" and (read := _READ.search(given["command"])):
            if word := _CODE_WORD.search(answer):
                self.code_words[read[1]] = word[1]
        elif name == "Bash" and (wrote := _WROTE.search(given["command"])):
            self.written.add(wrote[1])

    def _item(self, subject: str) -> str:
        return subject.removeprefix(self.task_words)


class ItemAgent(Api):
    """The model behind the client.

    A turn begins with a list of tasks, one for each item of the prompt, where there are several or
    the prompt asks for it.
    An item takes two replies: read its source, write its note; it is marked as completed in the
    same reply in which the next one is begun. After a compaction the model asks for the task list.
    When it is asked to hand over, it finishes the item in hand and ends its turn.

    Args:
        transcripts: The client's configuration directory.
        rules: What each request is searched for.
        false_claims: Items that it says are done without doing them, each once: `NO_FILE`, `STUB`.
        pauses: Items at which its tool writes half a note and waits, each once: the directory with
            a pipe ``gate`` to wait at, and where the tool leaves its ``pid``.
        task_words: What it writes before the name of an item in its task list.
        lists_one: Whether it puts a single item into its task list when it is asked to.
        shared: A file in ``notes/`` to whose end it writes for an item, too, by item.

    Attributes:
        measured: Every request of a conversation, oldest first.
        begun: How often it has begun each item.
        claimed: The items that it says are done.
    """

    def __init__(
        self,
        transcripts: Path,
        rules: Sequence[str] = (),
        false_claims: Mapping[str, str] | None = None,
        pauses: Mapping[str, Path] | None = None,
        *,
        task_words: str = "",
        lists_one: bool = True,
        shared: Mapping[str, str] | None = None,
    ) -> None:
        self.measured: list[MeasuredRequest] = []
        self.begun: Counter[str] = Counter()
        self.claimed: set[str] = set()
        self._transcripts = transcripts
        self._rules = rules
        self._false_claims = dict(false_claims or {})
        self._pauses = dict(pauses or {})
        self._task_words = task_words
        self._lists_one = lists_one
        self._shared = dict(shared or {})
        self._before: dict[str, list[str]] = {}
        self._was_compacted: set[str] = set()
        self._heads: set[str] = set()
        self._measuring = threading.Lock()
        super().__init__()
        self.has_written = self._is_in_a_transcript

    def choose_step(self, request: Request) -> Reply:
        """Measure a request and answer it as the agent."""
        if request.kind == OTHER:
            return Reply(100, "Fine.")
        with self._measuring:
            measured = self._measure(request)
            if request.kind == COMPACTION:
                text, calls = f"<summary>{SUMMARY}</summary>", []
            else:
                text, calls = self._act(Talk.read(request, self._task_words))
            # A run has hundreds of them.
            request.body.update(messages=[], tools=[], system=[])
        return MeasuredReply(measured.tokens, text, tuple(calls), cached=measured.cached)

    def _measure(self, request: Request) -> MeasuredRequest:
        session_id = request.session_id
        head, messages = _serialise(request.body)
        blocks = [*head, *messages]
        before = self._before.get(session_id)
        cached = _tokens(_common(before or [], blocks))
        known_head = "".join(head) in self._heads
        is_reset = session_id in self._was_compacted or (before is None and bool(self._before))
        measured = MeasuredRequest(
            session_id,
            is_compaction=request.kind == COMPACTION,
            tokens=_tokens(blocks),
            cached=cached,
            shared=max(0, _tokens(head) - cached) if known_head else 0,
            is_first=before is None,
            is_reset=is_reset,
            has_rules=all(any(rule in text for text in request.texts) for rule in self._rules),
        )
        self._before[session_id] = blocks
        self._heads.add("".join(head))
        self._was_compacted.discard(session_id)
        if measured.is_compaction:
            self._was_compacted.add(session_id)
        self.measured.append(measured)
        return measured

    def _act(self, talk: Talk) -> tuple[str, list[Call]]:
        """Return what the agent says and calls next."""
        is_asked = talk.is_asked_for_list and self._lists_one
        wants_list = talk.is_summarised or is_asked or len(talk.items) > 1
        if talk.has_task_list or not wants_list:
            tasks = list(talk.tasks.values()) or [_only(talk, name) for name in talk.items]
            return self._work(talk, tasks)
        if talk.is_summarised:
            return "", [Call("TaskList", {})]
        return "", [_create(f"{self._task_words}{name}") for name in talk.items]

    def _work(self, talk: Talk, tasks: list[Task]) -> tuple[str, list[Call]]:
        calls: list[Call] = []
        for task in tasks:
            if task.status != "in_progress":
                continue
            if task.name not in talk.written:
                if task.name not in talk.code_words:
                    return "", [_read(task.name)]
                if writes := self._write(task.name, talk.code_words[task.name]):
                    return "", [writes]
            self.claimed.add(task.name)
            task.status = "completed"
            calls += _update(task)
        left = [task for task in tasks if task.status == "pending"]
        if left and not talk.hands_over:
            left[0].status = "in_progress"
            return "", [*calls, *_update(left[0]), _read(left[0].name)]
        if calls:
            return "", calls
        done = ", ".join(task.name for task in tasks if task.status == "completed")
        if left:
            return f"I hand over. Done: {done}. Next: {left[0].name}.", []
        return f"Done: {done}.", []

    def _write(self, item: str, code_word: str) -> Call | None:
        """Return the call that writes a note; None where nothing is written."""
        self.begun[item] += 1
        fault = self._false_claims.pop(item, None)
        if fault == NO_FILE:
            return None
        text = "To be written." if fault == STUB else f"code word: {code_word}"
        path = shlex.quote(f"notes/{item}.md")
        write = f"echo {shlex.quote(text)} > {path}"
        if pause := self._pauses.pop(item, None):
            files = [shlex.quote(str(pause / name)) for name in ("pid.new", "pid", "gate")]
            half = f"echo 'code word:' > {path}; echo $$ > {files[0]}; mv {files[0]} {files[1]}"
            write = f"{half}; read -r _ < {files[2]}; {write}"
        if (other := self._shared.get(item)) is not None:
            write = f"echo {shlex.quote(item)} >> {shlex.quote(f'notes/{other}')}; {write}"
        return Call("Bash", {"command": f"mkdir -p notes; {write}", "description": "write a note"})

    def _is_in_a_transcript(self, call_id: str) -> bool:
        """Look at the ends of the transcripts: a reply is asked for with the one before it."""
        mark = f'"id":"{call_id}"'.encode()
        for path in self._transcripts.glob("projects/*/*.jsonl"):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 200_000))
                if mark in file.read():
                    return True
        return False


def _only(talk: Talk, name: str) -> Task:
    """Return the state of the item of a prompt that names one: no list of tasks is made."""
    return Task(name, status="in_progress" if name in talk.code_words else "pending")


def _create(subject: str) -> Call:
    return Call("TaskCreate", {"subject": subject, "description": subject, "activeForm": subject})


def _update(task: Task) -> list[Call]:
    if not task.task_id:
        return []
    return [Call("TaskUpdate", {"taskId": task.task_id, "status": task.status})]


def _read(item: str) -> Call:
    command = f"cat {shlex.quote(f'source/{item}.txt')}"
    return Call("Bash", {"command": command, "description": "read a source"})


def _serialise(body: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return tools and system prompt, and the messages: blocks in the order of the cache."""
    # The billing header is a mark of the first message, and none of the prompt.
    system = [block for block in body["system"] if not block["text"].startswith(_BILLING)]
    head = [_canonical(block) for block in (*body["tools"], *system)]
    messages = [
        message["role"] + _canonical(block)
        for message in body["messages"]
        for block in _blocks(message)
    ]
    return head, messages


def _canonical(block: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in block.items() if name != "cache_control"})


def _blocks(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from _parts(message["content"])


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _common(one: list[str], other: list[str]) -> list[str]:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return other[:count]


def _tokens(blocks: list[str]) -> int:
    return sum(map(len, blocks)) // CHARS_PER_TOKEN
