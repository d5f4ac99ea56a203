"""What a reader costs each call of a provider's SDK, against the bare client.

    nice -n 10 .venv/bin/python benchmarks/provider_client.py

Both make the same calls in turn in one process, of an HTTP transport that answers at once; medians
of the CPU time of pairs are printed, in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time

import httpx2
import openai

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.integrations.provider_client import ContextReader

CALLS = 50
"""Of each client in a pair."""
STREAMED_CHUNKS = 200
USAGE = {"prompt_tokens": 10_000, "completion_tokens": 200, "total_tokens": 10_200}
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "served-1"}


def chunk(text: str, usage: dict | None = None) -> bytes:
    choices = [{"index": 0, "delta": {"content": text}}] if text else []
    event = HEAD | {"object": "chat.completion.chunk", "choices": choices, "usage": usage}
    return b"data: %s\n\n" % json.dumps(event).encode()


MESSAGE = {"role": "assistant", "content": "word " * STREAMED_CHUNKS}
CHOICE = {"index": 0, "finish_reason": "stop", "message": MESSAGE}
WHOLE = HEAD | {"object": "chat.completion", "choices": [CHOICE], "usage": USAGE}
STREAM = [chunk("word ")] * STREAMED_CHUNKS + [chunk("", USAGE), b"data: [DONE]\n\n"]


class Parts(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    def __iter__(self):
        return iter(STREAM)

    async def __aiter__(self):
        for part in STREAM:
            yield part


def serve(request: httpx2.Request) -> httpx2.Response:
    if json.loads(request.content).get("stream"):
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Parts())
    return httpx2.Response(200, json=WHOLE)


GIVEN = {"model": "served-1", "messages": [{"role": "user", "content": "Go."}]}
STREAMED = GIVEN | {"stream": True, "stream_options": {"include_usage": True}}
NAMED = {"api_key": "none", "base_url": "http://served/v1"}


def make_sync() -> openai.OpenAI:
    http = openai.DefaultHttpxClient(transport=httpx2.MockTransport(serve))
    return openai.OpenAI(http_client=http, **NAMED)


def make_async() -> openai.AsyncOpenAI:
    http = openai.DefaultAsyncHttpxClient(transport=httpx2.MockTransport(serve))
    return openai.AsyncOpenAI(http_client=http, **NAMED)


def call_sync(client: openai.OpenAI, given: dict) -> None:
    for _number in range(CALLS):
        answer = client.chat.completions.create(**given)
        if "stream" in given:
            assert len(list(answer)) == STREAMED_CHUNKS + 1


def call_async(client: openai.AsyncOpenAI, given: dict) -> None:
    async def call() -> None:
        for _number in range(CALLS):
            answer = await client.chat.completions.create(**given)
            if "stream" in given:
                assert len([part async for part in answer]) == STREAMED_CHUNKS + 1

    asyncio.run(call())


def cpu_seconds(call: object, client: object, given: dict) -> float:
    begun = time.process_time()
    call(client, given)
    return (time.process_time() - begun) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of runs (default: 20)")
    pairs = parser.parse_args().pairs
    print(f"CPU time in µs; a stream has {STREAMED_CHUNKS} chunks.\n")
    print("| call of `openai` | bare | more |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        config = ContextConfig(context_window_tokens=100_000)
        with create_context_monitor(config=config, backend=LocalBackend(directory)) as monitor:
            for kind, make, call in (
                ("", make_sync, call_sync),
                ("async ", make_async, call_async),
            ):
                bare, watched = make(), ContextReader(monitor).watch(make())
                for name, given in (("whole", GIVEN), ("streamed", STREAMED)):
                    taken = [
                        (cpu_seconds(call, bare, given), cpu_seconds(call, watched, given))
                        for _number in range(pairs + 1)
                    ][1:]
                    more = statistics.median(seconds - base for base, seconds in taken)
                    base = statistics.median(base for base, _seconds in taken)
                    print(f"| {kind}{name} | {base * 1e6:,.0f} | {more * 1e6:,.0f} |")
            assert monitor.get_state().estimated_tokens == USAGE["prompt_tokens"]


if __name__ == "__main__":
    main()
