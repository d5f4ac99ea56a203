"""A stand-in for a model provider's API on 127.0.0.1: it serves what a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from helpers.frameworks import Script

MODEL = "served-1"


class ProviderApi:
    """A server of OpenAI's chat completions, whole and streamed.

    Args:
        script: What it serves; its replies say ``go on``, the last one ``done``.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.script = script
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

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
    script: Script
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tokens, output_tokens, goes_on = self.server.script.next_turn(body)
        text = "go on" if goes_on else "done"
        whole = _chat(text, tokens, output_tokens)
        if body.get("stream"):
            chunks = list(_chat_chunks(whole))
            if not (body.get("stream_options") or {}).get("include_usage"):
                chunks.pop()
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            self._send("text/event-stream", "".join(lines).encode())
        else:
            self._send("application/json", json.dumps(whole).encode())

    def _send(self, kind: str, data: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        # Cut in the middle of lines.
        for start in range(0, len(data), 37):
            part = data[start : start + 37]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


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


def _chat_chunks(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    chunk = whole | {"object": "chat.completion.chunk", "usage": None}
    text = whole["choices"][0]["message"]["content"]
    delta = {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}
    yield chunk | {"choices": [delta]}
    yield chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield chunk | {"choices": [], "usage": whole["usage"]}
