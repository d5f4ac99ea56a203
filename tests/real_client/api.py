"""A stand-in for the Messages API on 127.0.0.1: plays a script and keeps every request.

Every conversation is played from its own list of steps. It is known by the first ``[[name]]`` in
its user messages, so a test puts ``[[main]]`` into the prompt and another name into the prompt of
a subagent.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAIN = "main"
TURN, COMPACTION, OTHER = "turn", "compaction", "other"
WRITING_SECONDS = 2.0
_NAME = re.compile(r"\[\[(\w+)\]\]")
_number = itertools.count(1)


def marked(text: str, name: str = MAIN) -> str:
    """Return a prompt whose conversation plays the steps of this name."""
    return f"[[{name}]] {text}"


@dataclass(frozen=True)
class Call:
    """One tool call of a reply."""

    tool: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """A reply of the model.

    Args:
        tokens: What is in the window at this reply, as its usage says (new and cached).
        text: What the model says.
        calls: What it calls, all in one reply.
        gate: The reply waits until this is set.
        thinking: What the model thinks before, as far as the provider shows it.
        output_tokens: As the usage says, with those of the thinking.
        thinking_tokens: Of these, as the usage says; None = it says nothing of them, and the reply
            holds no thinking.
    """

    tokens: int
    text: str = ""
    calls: tuple[Call, ...] = ()
    gate: threading.Event | None = None
    thinking: str = ""
    output_tokens: int = 40
    thinking_tokens: int | None = None

    def usage(self) -> dict[str, Any]:
        """Spread the tokens over the three fields that have to be summed."""
        new, created = 12, min(1000, self.tokens // 4)
        usage = {
            "input_tokens": new,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": self.tokens - new - created,
            "output_tokens": self.output_tokens,
            "service_tier": "standard",
        }
        if self.thinking_tokens is not None:
            usage["output_tokens_details"] = {"thinking_tokens": self.thinking_tokens}
        return usage


@dataclass(frozen=True)
class Refusal:
    """An error instead of a reply, with further headers such as ``retry-after``."""

    message: str
    status: int = 400
    kind: str = "invalid_request_error"
    headers: tuple[tuple[str, str], ...] = ()


Step = Reply | Refusal


def bash(tokens: int, *commands: str, gate: threading.Event | None = None) -> Reply:
    """Return a reply that runs these commands, side by side."""
    calls = tuple(Call("Bash", {"command": one, "description": "a step"}) for one in commands)
    return Reply(tokens, calls=calls, gate=gate)


def agent(tokens: int, name: str, text: str = "look around") -> Reply:
    """Return a reply that starts a subagent, whose conversation plays the steps of this name."""
    work = {
        "description": "a part of the work",
        "prompt": marked(text, name),
        "subagent_type": "general-purpose",
    }
    return Reply(tokens, calls=(Call("Agent", work),))


@dataclass(frozen=True)
class Request:
    """What the client sent, and what the test saw at that moment."""

    conversation: str
    kind: str
    """`TURN`, `COMPACTION`, or `OTHER` (a title, a count of tokens)."""
    body: dict[str, Any]
    headers: dict[str, str]
    seen: Any = None

    @property
    def texts(self) -> list[str]:
        """All texts in the messages, oldest first."""
        return list(_texts(self.body.get("messages", [])))

    @property
    def session_id(self) -> str:
        """The client's session."""
        return self.headers["x-claude-code-session-id"]

    def count(self, text: str) -> int:
        """Return how often a text stands in the messages."""
        return sum(one.count(text) for one in self.texts)

    @property
    def call_ids(self) -> list[str]:
        """The tool calls in the messages, oldest first."""
        return [
            block["id"]
            for message in self.body["messages"]
            if message["role"] == "assistant" and isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "tool_use"
        ]

    def fresh(self, text: str) -> list[str]:
        """Return the texts with this in them that came after the model's last reply."""
        new: list[dict[str, Any]] = []
        for message in self.body["messages"]:
            new = [] if message["role"] == "assistant" else [*new, message]
        return [one for one in _texts(new) if text in one]


def _texts(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield from _texts_of(message.get("content"))


def _texts_of(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for block in content or []:
        if block.get("type") == "text":
            yield block["text"]
        elif block.get("type") == "tool_result":
            yield from _texts_of(block.get("content"))


class Api:
    """The server; it listens from construction until `close`.

    Args:
        observe: Called at every request before it is answered; what it returns is the request's
            `seen`. The hooks of all tools before that request have ended by then.

    Attributes:
        headers: Further headers of each answer, such as those of a plan's limits.
        has_written: Given the id of a tool call, says whether the client has it in its transcript.
            No model answers before that, so neither does this one.
    """

    def __init__(self, observe: Callable[[], Any] = lambda: None) -> None:
        self.observe = observe
        self.has_written: Callable[[str], bool] = lambda call_id: True
        self.headers: tuple[tuple[str, str], ...] = ()
        self.requests: list[Request] = []
        self.unscripted: list[Request] = []
        """Turns for which no step was left."""
        self._steps: dict[str, list[Step]] = {}
        self._afterwards: dict[str, Step] = {}
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def play(self, *steps: Step, conversation: str = MAIN) -> None:
        """Append steps to what a conversation will be answered."""
        with self._changed:
            self._steps.setdefault(conversation, []).extend(steps)

    def whenever(self, step: Step, conversation: str = MAIN) -> None:
        """Answer a conversation so when no step is left for it."""
        with self._changed:
            self._afterwards[conversation] = step

    def left(self) -> dict[str, list[Step]]:
        """Return the steps that were not asked for."""
        with self._changed:
            return {name: list(steps) for name, steps in self._steps.items() if steps}

    def turns(self, conversation: str = MAIN) -> list[Request]:
        """Return the requests of a conversation that were answered by a step, oldest first."""
        return self.of_kind(TURN, conversation)

    def compactions(self, conversation: str = MAIN) -> list[Request]:
        """Return the requests for a summary of a conversation."""
        return self.of_kind(COMPACTION, conversation)

    def of_kind(self, kind: str, conversation: str) -> list[Request]:
        """Return the requests of one kind in one conversation."""
        with self._changed:
            return [
                one
                for one in self.requests
                if one.kind == kind and one.conversation == conversation
            ]

    def wait_for_turns(self, count: int, conversation: str = MAIN, seconds: float = 30) -> None:
        """Return when a conversation has made so many requests; fail after the time."""

        def arrived() -> bool:
            return len(self.turns(conversation)) >= count

        with self._changed:
            assert self._changed.wait_for(arrived, seconds), (
                f"{conversation} made {len(self.turns(conversation))} of {count} requests"
            )

    def close(self) -> None:
        """Stop listening; replies that wait for their gate are left alone."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> Step:
        """Keep a request and return the step that answers it."""
        seen = self.observe()
        texts = list(_texts(body.get("messages", [])))
        conversation = next((found[1] for text in texts if (found := _NAME.search(text))), "")
        kind = _kind_of(path, body, texts)
        request = Request(conversation, kind, body, headers, seen)
        if kind == TURN and request.call_ids:
            deadline = time.monotonic() + WRITING_SECONDS
            while not self.has_written(request.call_ids[-1]) and time.monotonic() < deadline:
                threading.Event().wait(0.005)
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        return self.choose_step(request)

    def choose_step(self, request: Request) -> Step:
        """Return what answers a request: the next step of its conversation."""
        name = request.conversation
        if request.kind == COMPACTION:
            return Reply(100, f"<summary>{marked('All that was said.', name)}</summary>")
        if request.kind == OTHER:
            return Reply(100, "Fine.")
        with self._changed:
            if steps := self._steps.get(name):
                return steps.pop(0)
            if name in self._afterwards:
                return self._afterwards[name]
            self.unscripted.append(request)
            return Reply(100, "Nothing is left to say.")


def _kind_of(path: str, body: dict[str, Any], texts: list[str]) -> str:
    if not path.endswith("/messages") or not body.get("tools"):
        return OTHER
    return COMPACTION if "<analysis>" in texts[-1] else TURN


class _Server(ThreadingHTTPServer):
    api: Api
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that was killed between two requests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._send(200, "application/json", b"")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            raw = gzip.decompress(raw)
        body = json.loads(raw)
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        for secret in ("x-api-key", "authorization"):
            headers.pop(secret, None)
        step = self.server.api.answer(path, headers, body)
        if isinstance(step, Refusal):
            error = {"type": step.kind, "message": step.message}
            self._send_json(step.status, {"type": "error", "error": error}, step.headers)
        elif path.endswith("/count_tokens"):
            self._send_json(200, {"input_tokens": len(raw) // 4})
        else:
            if step.gate:
                step.gate.wait()
            message = _message(step, body["model"])
            if body.get("stream"):
                self._send(200, "text/event-stream", b"".join(_stream(message)))
            else:
                self._send_json(200, message)

    def _send_json(
        self, status: int, value: dict[str, Any], headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        self._send(status, "application/json", json.dumps(value).encode(), headers)

    def _send(
        self, status: int, kind: str, data: bytes, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        with suppress(ConnectionError):  # a client that a test has killed
            self.send_response(status)
            for name, value in (*self.server.api.headers, *headers):
                self.send_header(name, value)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


def _message(reply: Reply, model: str) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.thinking_tokens is not None:
        signature = "c2lnbmVk" * 40
        content.append({"type": "thinking", "thinking": reply.thinking, "signature": signature})
    if reply.text:
        content.append({"type": "text", "text": reply.text})
    content.extend(
        {"type": "tool_use", "id": f"toolu_{next(_number)}", "name": call.tool, "input": call.input}
        for call in reply.calls
    )
    return {
        "id": f"msg_{next(_number)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": reply.usage(),
    }


def _stream(message: dict[str, Any]) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind} | fields)}\n\n".encode()

    unfinished = {
        "content": [],
        "stop_reason": None,
        "usage": message["usage"] | {"output_tokens": 1},
    }
    yield event("message_start", message=message | unfinished)
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty = block | {"text": ""}
            deltas = [{"type": "text_delta", "text": block["text"]}]
        elif block["type"] == "thinking":
            empty = block | {"thinking": "", "signature": ""}
            deltas = [
                {"type": f"{name}_delta", name: block[name]} for name in ("thinking", "signature")
            ]
        else:
            empty = block | {"input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=end, usage=message["usage"])
    yield event("message_stop")
