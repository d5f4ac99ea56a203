"""Stand-ins for the APIs of model providers on 127.0.0.1: they serve what a script says."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from helpers.frameworks import Script

MODEL = "served-1"


class Answer(NamedTuple):
    """One answer as it is sent, each part as a chunk."""

    parts: Iterable[bytes]
    kind: str = "application/json"
    status: int = 200


class ProviderApi:
    """A server of OpenAI chat completions and responses, Anthropic messages and Gemini.

    Args:
        script: What it serves; its replies say ``go on``, the last one ``done``.

    Attributes:
        answer: What it serves instead; None = what the script says.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.answer: Answer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> ProviderApi:
        return self

    def __exit__(self, *_details: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    api: ProviderApi
    daemon_threads = True

    def handle_error(self, *given: Any) -> None:
        """Report what went wrong, unless a client left in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*given)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        api = self.server.api
        if api.answer is not None:
            self._send(*api.answer)
            return
        tokens, output_tokens, goes_on = api.script.next_turn(body)
        text = "go on" if goes_on else "done"
        counted = (text, tokens, output_tokens)
        if self.path.endswith("/messages"):
            events = list(anthropic_events(*counted))
            whole: Any = anthropic_whole(*counted)
        elif self.path.endswith("/responses"):
            whole = _response(*counted)
            events = list(_response_events(whole))
        elif self.path.endswith("/chat/completions"):
            whole = _chat(*counted)
            events = list(_chat_chunks(whole))
            if not (body.get("stream_options") or {}).get("include_usage"):
                events.pop()
        else:
            whole = _gemini(*counted)
            events = [("", _gemini(*counted) | {"usageMetadata": None}), ("", whole)]
        if body.get("stream") or "stream" in self.path.lower():
            lines = [(f"event: {kind}\n" if kind else "") + _data(event) for kind, event in events]
            self._send(cut("".join(lines).encode()), "text/event-stream")
        else:
            data = json.dumps(whole).encode()
            self._send(cut(gzip.compress(data)), "application/json", encoding="gzip")

    def _send(
        self, parts: Iterable[bytes], kind: str, status: int = 200, encoding: str = "identity"
    ) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-encoding", encoding)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in parts:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def cut(data: bytes) -> Iterator[bytes]:
    """Cut where it hurts: in the middle of lines, and of characters."""
    for start in range(0, len(data), 37):
        yield data[start : start + 37]


def _data(event: Any) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _chat(text: str, tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": text},
            }
        ],
        "usage": {
            "prompt_tokens": tokens,
            "completion_tokens": output_tokens,
            "total_tokens": tokens + output_tokens,
        },
    }


def _chat_chunks(whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    chunk = whole | {"object": "chat.completion.chunk", "usage": None}
    text = whole["choices"][0]["message"]["content"]
    delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    yield "", chunk | {"choices": [delta]}
    yield "", chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield "", chunk | {"choices": [], "usage": whole["usage"]}


def _response(text: str, tokens: int, output_tokens: int) -> dict[str, Any]:
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": MODEL,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens + output_tokens,
        },
    }


def _response_events(whole: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    empty = whole | {"output": [], "status": "in_progress", "usage": None}
    for number, (kind, response) in enumerate(
        (("response.created", empty), ("response.completed", whole))
    ):
        yield kind, {"type": kind, "sequence_number": number, "response": response}


def anthropic_whole(text: str, tokens: int, output_tokens: int) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens - 9_000,
            "cache_creation_input_tokens": 1_000,
            "cache_read_input_tokens": 8_000,
            "output_tokens": output_tokens,
        },
    }


def anthropic_events(text: str, tokens: int, output_tokens: int) -> Iterator[tuple[str, Any]]:
    whole = anthropic_whole(text, tokens, output_tokens)
    begun = whole | {"content": [], "stop_reason": None}
    begun["usage"] = whole["usage"] | {"output_tokens": 1}
    block = {"index": 0, "content_block": {"type": "text", "text": ""}}
    delta = {"index": 0, "delta": {"type": "text_delta", "text": f"{text} – «ж»"}}
    end = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}}
    for kind, fields in (
        ("message_start", {"message": begun}),
        ("content_block_start", block),
        ("content_block_delta", delta),
        ("content_block_stop", {"index": 0}),
        ("message_delta", end | {"usage": {"output_tokens": output_tokens}}),
        ("message_stop", {}),
    ):
        yield kind, {"type": kind} | fields


def _gemini(text: str, tokens: int, output_tokens: int) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": f"{text} – «ж»"}]}
    return {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "modelVersion": MODEL,
        "usageMetadata": {
            "promptTokenCount": tokens,
            "candidatesTokenCount": output_tokens,
            "totalTokenCount": tokens + output_tokens,
        },
    }
