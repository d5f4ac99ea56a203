"""What an answer of a model's API says of the window: read from its bytes as they arrive.

Knows the shapes of Anthropic, OpenAI and Google, whole and as a stream of events. A broken answer
states nothing and raises nothing: its error is the business of the program that called the API.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any

from ultramon.context.provider_usage import usage_from_response
from ultramon.system import compact_json

MAX_HELD_BYTES = 16 * 1024 * 1024
"""A JSON answer or a line of a stream that is as long is not read."""
_COUNTS = re.compile(rb'"usage(Metadata)?"\s*:\s*\{|"response\.failed"')
"""What is in an event worth decoding; OpenAI's have a usage of null in each."""


class ProviderAnswer:
    """One answer, fed in pieces of any size.

    Args:
        content_type: As its header says.
        is_refusal: Whether its status says that the request was refused.

    Attributes:
        stated: What `usage_from_response` takes; empty until something was stated.
        refusal: The provider's words, where it refused or failed; else empty.
        is_whole: Whether a stream has said that it ends here.
    """

    def __init__(self, content_type: str, *, is_refusal: bool) -> None:
        self.stated: dict[str, Any] = {}
        self.refusal = ""
        self.is_whole = False
        self._is_refusal = is_refusal
        self._is_stream = "event-stream" in content_type
        self._is_binary = "amazon.eventstream" in content_type
        self._held = bytearray()

    def feed(self, chunk: bytes) -> None:
        """Read the next piece."""
        if self._is_binary:
            self._held += chunk
            self._take_frames()
            return
        *lines, rest = chunk.split(b"\n") if self._is_stream else (chunk,)
        for line in lines:
            self._held += line
            self._take_line()
            self._held.clear()
        self._held += rest
        del self._held[MAX_HELD_BYTES:]

    def finish(self) -> None:
        """Read what no line end followed."""
        if self._is_refusal:
            self.refusal = self._held.decode("utf-8", "replace")
        elif self._is_stream:
            self._take_line()
        elif not self._is_binary and len(self._held) < MAX_HELD_BYTES:
            self._take(self._held)

    def _take_line(self) -> None:
        if self._held.startswith(b"data:") and len(self._held) < MAX_HELD_BYTES:
            if _COUNTS.search(self._held):
                self._take(self._held[5:])
            self.is_whole |= self._held.endswith(b"[DONE]")

    def _take_frames(self) -> None:
        """Take what is whole of Amazon's stream: lengths of frame and headers, headers, payload."""
        while len(self._held) >= 12:
            size, headers = int.from_bytes(self._held[:4]), int.from_bytes(self._held[4:8])
            # 12 bytes of lengths and their checksum before, 4 of a checksum behind.
            if not 16 <= size < MAX_HELD_BYTES:
                self._held.clear()
            if len(self._held) < size:
                return
            self._take(self._held[12 + headers : size - 4])
            del self._held[:size]

    def _take(self, data: bytearray) -> None:
        try:
            event = compact_json.loads(data.decode())
            if self._is_binary:
                event = compact_json.loads(b64decode(event["bytes"]))
        except (ValueError, TypeError, LookupError):
            return
        match event:
            case {"type": "message_start", "message": {"usage": dict()} as message}:
                self.stated = message
            case {"type": "message_delta", "usage": dict(counts)}:
                # The end of Anthropic's stream completes the counts of its beginning.
                begun = self.stated.get("usage")
                if isinstance(begun, dict):
                    begun.update({key: value for key, value in counts.items() if value is not None})
            case {"type": "response.failed", "response": {"error": {"message": str(message)}}}:
                self.refusal = message
            case {"interaction": dict(interaction)}:
                self._take_interaction(interaction)
            case {"usage": {"total_input_tokens": _}}:
                self._take_interaction(event)
            case dict() if usage_from_response(event) is not None:
                self.stated = event
            case _:
                pass

    def _take_interaction(self, interaction: dict[str, Any]) -> None:
        match interaction.get("usage"):
            # A loop on Google's side adds up its requests: no window holds the sum.
            case {"total_input_tokens": tokens, **counts} if (
                counts.get("initial_input_tokens", tokens) == tokens
            ):
                self.stated = {
                    "model": interaction.get("model"),
                    "promptTokenCount": tokens,
                    "candidatesTokenCount": counts.get("total_output_tokens"),
                }
            case _:
                pass
