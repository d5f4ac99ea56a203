"""A plain agent loop on a provider's API, with a monitor that reports each response.

The provider is a small stand-in on loopback that speaks the Messages format and refuses prompts
above 20,000 tokens; with the real one only `base_url` and the key change. The loop reports every
response, tracks only the tool results it adds itself, asks before a large one goes in, and hands
its work over when it should return.

Needs: pip install anthropic

What you should see:

    prepare_handoff at page
    the next page would not fit
    handed off: threshold_warning
    the provider never refused
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic

from ultramon import ContextConfig, create_context_monitor

WINDOW_TOKENS = 20_000
PAGE = "Invoice 4711: 12 bolts M8, 3 hinges, 1 door; total 84.20, due on the first of the month.\n"


class StandIn(BaseHTTPRequestHandler):
    """Counts a token per four characters, answers in one line, refuses what is too long."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        tokens = len(json.dumps(json.loads(body)["messages"])) // 4
        if tokens > WINDOW_TOKENS:
            text = f"prompt is too long: {tokens} tokens > {WINDOW_TOKENS} maximum"
            self.answer(
                400, {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
            )
            return
        self.answer(
            200,
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "stand-in",
                "content": [{"type": "text", "text": "Noted."}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": tokens, "output_tokens": 3},
            },
        )

    def answer(self, status: int, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


def work(client: anthropic.Anthropic) -> None:
    config = ContextConfig(context_window_tokens=WINDOW_TOKENS)
    messages: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Read the pages."}]
    level = "normal"
    with create_context_monitor("clerk", config, goal="read all pages") as monitor:
        monitor.plan(f"page {n}" for n in range(1, 31))
        for page in monitor.pending():
            text = PAGE * 40
            if not monitor.fits(text).ok:
                print("the next page would not fit")
                break
            with monitor.task(page):
                messages.append({"role": "user", "content": text})
                monitor.track_content(text, source="tool:read")
                response = client.messages.create(
                    model="stand-in", max_tokens=100, messages=messages
                )
                messages.append({"role": "assistant", "content": "Noted."})
            action = monitor.report_response(response)
            if action.level != level:
                level = action.level
                print(f"{action.action} at {page}: {action.note}")
        record = monitor.hand_off(notes="All pages so far are invoices.")
    print(
        f"handed off: {record.reason}, {len(record.completed)} read, {len(record.remaining)} left"
    )
    print("the provider never refused")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with anthropic.Anthropic(api_key="none", base_url=url, max_retries=0) as client:
            work(client)
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
