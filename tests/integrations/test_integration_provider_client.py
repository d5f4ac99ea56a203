"""Clients of provider SDKs: what they receive is read, and arrives as it would without a reader."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from base64 import b64encode
from importlib.util import find_spec
from zlib import crc32

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from helpers.frameworks import TURNS, Run
from helpers.provider_api import (
    MODEL,
    Answer,
    ProviderApi,
    anthropic_events,
    anthropic_whole,
    cut,
)

from ultramon import ConfigurationError, ContextConfig, create_context_monitor
from ultramon.context.provider_answer import MAX_HELD_BYTES
from ultramon.integrations import load
from ultramon.integrations.provider_client import ContextReader
from ultramon.testing import IntegrationContract

MESSAGES = [{"role": "user", "content": "Go."}]
LIBRARIES = pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])


CLAUDE = {"model": MODEL, "max_tokens": 100, "messages": MESSAGES}
CHAT = {"model": MODEL, "messages": MESSAGES}
COUNTED = {"stream": True, "stream_options": {"include_usage": True}}


def claude(url, kind=anthropic.Anthropic):
    return kind(base_url=url, api_key="none", max_retries=0)


def gpt(url, kind=openai.OpenAI):
    return kind(base_url=f"{url}/v1", api_key="none", max_retries=0)


def gemini(url, **options):
    http_options = genai.types.HttpOptions(base_url=url, **options)
    return genai.Client(api_key="none", http_options=http_options)


def async_gemini(url):
    if find_spec("aiohttp") is not None:
        pytest.skip("google-genai makes async calls over aiohttp where that is installed")
    return gemini(url).aio


def make_client(name, mode, url):
    """Make the client of an SDK."""
    if name.startswith("anthropic"):
        return claude(url, anthropic.AsyncAnthropic if mode == "async" else anthropic.Anthropic)
    if name.startswith("gemini"):
        return async_gemini(url) if mode == "async" else gemini(url)
    return gpt(url, openai.AsyncOpenAI if mode == "async" else openai.OpenAI)


def send(name, client):
    """Make one call; an async client returns a coroutine."""
    if name == "anthropic":
        return client.messages.create(**CLAUDE)
    if name == "anthropic stream":
        return client.messages.create(**CLAUDE, stream=True)
    if name == "chat":
        return client.chat.completions.create(**CHAT)
    if name == "chat stream":
        return client.chat.completions.create(**CHAT, **COUNTED)
    if name == "gemini":
        return client.models.generate_content(model=MODEL, contents="Go.")
    if name == "gemini stream":
        return client.models.generate_content_stream(model=MODEL, contents="Go.")
    return client.responses.create(model=MODEL, input="Go.", stream=name.endswith("stream"))


def call(name, mode, url, watch):
    """Make a client and one call; return the parts of the answer."""

    async def call_async():
        async with watch(make_client(name, mode, url)) as client:
            answer = await send(name, client)
            return [part async for part in answer] if name.endswith("stream") else [answer]

    if mode == "async":
        return asyncio.run(call_async())
    with watch(make_client(name, mode, url)) as client:
        answer = send(name, client)
        return list(answer) if name.endswith("stream") else [answer]


APIS = ("anthropic", "chat", "responses", "gemini")


@pytest.fixture
def api():
    with ProviderApi(Run("plain").outer) as served:
        yield served


@pytest.fixture
def monitor(ultramon_backend):
    config = ContextConfig(context_window_tokens=100_000, on_error="raise")
    with create_context_monitor(config=config, backend=ultramon_backend) as begun:
        yield begun


def reading(monitor):
    state = monitor.get_state()
    return state.estimated_tokens, state.tokens_source


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("name", [f"{api}{kind}" for api in APIS for kind in ("", " stream")])
def test_a_reading_is_what_the_provider_said(name, mode, api, monitor):
    """Whole and streamed; the SDK gets the same parts as without a reader."""
    seen = call(name, mode, api.url, ContextReader(monitor).watch)
    assert reading(monitor) == (TURNS[0][0], "reported")
    assert monitor.get_state().model == MODEL
    api.script.served = 0
    bare = call(name, mode, api.url, lambda client: client)
    assert [type(part) for part in seen] == [type(part) for part in bare]
    assert "go on" in str(seen)


@pytest.mark.parametrize("name", APIS)
def test_a_stream_reads_as_the_whole_answer(name, api, ultramon_backend):
    """Its end completes the counts of its beginning: the reply's tokens too."""
    states = []
    for kind in ("", " stream"):
        api.script.served = 0
        with create_context_monitor(backend=ultramon_backend) as monitor:
            call(name + kind, "sync", api.url, ContextReader(monitor).watch)
            monitor.track_content("x" * 4_000)
            states.append(reading(monitor))
    assert states[0] == states[1]
    assert states[0][1] == "anchored"


def test_a_chat_stream_without_usage_leaves_the_reading_and_says_so_once(api, monitor, caplog):
    """OpenAI counts a stream only with `include_usage`."""
    with ContextReader(monitor).watch(gpt(api.url)) as client:
        client.chat.completions.create(**CHAT)
        for _number in range(2):
            assert len(list(client.chat.completions.create(**CHAT, stream=True))) == 2
    assert reading(monitor) == (TURNS[0][0], "reported")
    (said,) = [record.getMessage() for record in caplog.records]
    assert "include_usage" in said


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_stream_that_its_user_closes_is_read_as_far_as_it_came(mode, api, monitor):
    """Anthropic counts the input before the first word."""
    client = ContextReader(monitor).watch(make_client("anthropic", mode, api.url))

    async def stop_early():
        async with client, await send("anthropic stream", client) as stream:
            await anext(stream)

    if mode == "async":
        asyncio.run(stop_early())
    else:
        with client, send("anthropic stream", client) as stream:
            next(stream)
    assert reading(monitor) == (TURNS[0][0], "reported")


REFUSED = "prompt is too long: 210000 tokens > 200000 maximum"
FAILED = "Your input exceeds the context window of this model. Please adjust your input."


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_refused_prompt_says_the_limit_and_raises_as_ever(mode, api, ultramon_backend):
    """The error is the SDK's own, and the window counts as full."""
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": REFUSED}}
    api.answer = Answer([json.dumps(error).encode()], status=400)
    with create_context_monitor(backend=ultramon_backend) as monitor:
        with pytest.raises(anthropic.BadRequestError, match="too long"):
            call("anthropic stream", mode, api.url, ContextReader(monitor).watch)
        state = monitor.get_state()
        assert (state.context_limit, state.limit_source) == (200_000, "observed")
        assert state.threshold_status == "critical"


def test_a_stream_that_fails_for_its_length_is_a_refused_prompt(api, monitor):
    """OpenAI's responses say so with status 200."""
    response = {"id": "r", "status": "failed", "usage": None, "error": {"message": FAILED}}
    event = {"type": "response.failed", "sequence_number": 1, "response": response}
    data = f"event: response.failed\ndata: {json.dumps(event)}\n\n".encode()
    api.answer = Answer([data], "text/event-stream")
    call("responses stream", "sync", api.url, ContextReader(monitor).watch)
    assert monitor.get_state().threshold_status == "critical"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff\xfe",
        b'{"usage": 5}',
        b"[" * 100_000,
        b'{"usage": {"input_tokens": -5, "output_tokens": 1e400}}',
        b'{"usage": {"prompt_tokens": "many", "completion_tokens": []}}',
        b'{"type": "message_delta", "usage": {"output_tokens": 5}}',
        b'{"type": "message_start", "message": {"usage": {"input_tokens": null}}}',
        b'{"type": "response.failed", "response": "usage"}',
        b'{"usage": {"prompt_tokens": 0, "completion_tokens": 0}}',
    ],
)
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@LIBRARIES
def test_what_is_no_usage_changes_nothing(library, kind, body, api, monitor):
    """It arrives byte for byte, and no reading comes of it."""
    data = body if kind == "application/json" else b"data: " + body + b"\r\n\r\ndata: [DONE]"
    api.answer = Answer([data], kind)
    with ContextReader(monitor).watch(library.Client()) as client:
        response = client.post(f"{api.url}/v1/messages", json={})
        assert response.content == data
    assert monitor.get_state().measured_at is None


@LIBRARIES
def test_only_answers_that_fill_the_window_are_read(library, api, monitor):
    """Images and audio are counted with a usage of the same shape."""
    usage = b'{"usage": {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}}'
    api.answer = Answer([usage])
    with ContextReader(monitor).watch(library.Client()) as client:
        client.post(f"{api.url}/v1/images/generations", json={})
    assert monitor.get_state().measured_at is None


def frame(event):
    """Pack an event as Amazon's streams do: lengths and checksums around headers and a payload."""
    inner = b64encode(json.dumps(event).encode()).decode()
    payload = json.dumps({"bytes": inner, "p": "abc"}).encode()
    headers = b""
    for name, value in (
        (b":event-type", b"chunk"),
        (b":content-type", b"application/json"),
        (b":message-type", b"event"),
    ):
        headers += bytes([len(name)]) + name + b"\x07" + len(value).to_bytes(2) + value
    head = (16 + len(headers) + len(payload)).to_bytes(4) + len(headers).to_bytes(4)
    packed = head + crc32(head).to_bytes(4) + headers + payload
    return packed + crc32(packed).to_bytes(4)


def bedrock(url):
    pytest.importorskip("botocore", reason="pip install anthropic[bedrock]")
    keys = {"aws_access_key": "none", "aws_secret_key": "none", "aws_region": "us-east-1"}
    return anthropic.AnthropicBedrock(base_url=url, max_retries=0, **keys)


def vertex(url):
    pytest.importorskip("google.auth", reason="pip install anthropic[vertex]")
    where = {"region": "us-east5", "project_id": "p", "access_token": "none"}
    return anthropic.AnthropicVertex(base_url=url, max_retries=0, **where)


def azure(url):
    named = {"api_key": "none", "api_version": "2024-10-21"}
    return openai.AzureOpenAI(azure_endpoint=url, max_retries=0, **named)


def claude_answer(*, streamed, binary=False):
    """Serve the first turn with Anthropic's shapes, in pieces."""
    counted = ("go on", *TURNS[0])
    if not streamed:
        return Answer([json.dumps(anthropic_whole(*counted)).encode()])
    events = list(anthropic_events(*counted))
    if binary:
        data = b"".join(frame(event) for _kind, event in events)
        return Answer(cut(data), "application/vnd.amazon.eventstream")
    lines = "".join(f"event: {kind}\ndata: {json.dumps(event)}\n\n" for kind, event in events)
    return Answer(cut(lines.encode()), "text/event-stream")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("make", [bedrock, vertex])
def test_the_messages_of_other_clouds_are_read(make, streamed, api, monitor):
    """Their paths differ, and Amazon's stream is binary."""
    api.answer = claude_answer(streamed=streamed, binary=make is bedrock)
    with ContextReader(monitor).watch(make(api.url)) as client:
        answer = client.messages.create(**CLAUDE, stream=streamed)
        assert "go on" in str(list(answer) if streamed else answer)
    assert reading(monitor) == (TURNS[0][0], "reported")


def test_a_count_of_tokens_is_no_call(api, monitor, caplog):
    """On Vertex it has a path as a call has."""
    client = ContextReader(monitor).watch(vertex(api.url))
    api.answer = Answer([b'{"input_tokens": 5}'])
    assert client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens == 5
    assert monitor.get_state().measured_at is None
    assert caplog.text == ""


def test_azures_path_is_read(api, monitor):
    """It names the deployment, and has a query behind it."""
    api.answer = Answer([chat_event(7).removeprefix(b"data: ")])
    with ContextReader(monitor).watch(azure(api.url)) as client:
        client.chat.completions.create(**CHAT)
    assert reading(monitor) == (7, "reported")


@pytest.mark.parametrize("data", [b"\0" * 99, b"\xff" * 99, frame([])[:40] + frame({"usage": 5})])
def test_broken_frames_change_nothing(data, api, monitor):
    """They arrive byte for byte, and no reading comes of them."""
    api.answer = Answer(cut(data), "application/vnd.amazon.eventstream")
    with ContextReader(monitor).watch(httpx2.Client()) as client:
        path = "model/served/invoke-with-response-stream"
        assert client.post(f"{api.url}/{path}", json={}).content == data
    assert monitor.get_state().measured_at is None


def interaction(**counts):
    """Return what Google answers to `client.interactions.create`."""
    step = {"type": "model_output", "content": [{"type": "text", "text": "go on"}]}
    usage = {"total_input_tokens": 10_000, "total_output_tokens": 50, "total_tokens": 10_050}
    times = dict.fromkeys(("created", "updated"), "2026-01-01T00:00:00Z")
    named = {"id": "v1", "object": "interaction", "status": "completed", "model": MODEL}
    return named | times | {"steps": [step], "usage": usage | counts}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_interaction_is_read_but_not_the_sum_of_a_loop(streamed, api, monitor, caplog):
    """Where Google runs tools itself, only the sum of its requests is known; this is said."""
    client = ContextReader(monitor).watch(gemini(api.url))
    caplog.clear()
    for total_tokens in (10_000, 30_000):
        whole = interaction(initial_input_tokens=10_000, total_input_tokens=total_tokens)
        api.answer = Answer([json.dumps(whole).encode()])
        if streamed:
            event = {"event_type": "interaction.completed", "interaction": whole}
            data = f"event: interaction.completed\ndata: {json.dumps(event)}\n\n".encode()
            api.answer = Answer([data, b"event: done\ndata: [DONE]\n\n"], "text/event-stream")
        answer = client.interactions.create(model=MODEL, input="Go.", stream=streamed)
        assert "completed" in str(list(answer) if streamed else answer)
        assert reading(monitor) == (10_000, "reported")
        assert ("did not say what the window holds" in caplog.text) is (total_tokens == 30_000)


@pytest.mark.parametrize("sdk", [openai, anthropic])
def test_calls_of_an_aiohttp_client_are_read(sdk, api, monitor):
    """What an SDK calls so is a client of httpx with another transport."""
    pytest.importorskip("aiohttp", reason="pip install openai[aiohttp]")

    async def call_once():
        http = sdk.DefaultAioHttpClient()
        if sdk is openai:
            client = openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", http_client=http)
        else:
            client = anthropic.AsyncAnthropic(base_url=api.url, api_key="none", http_client=http)
        async with ContextReader(monitor).watch(client):
            await send("chat" if sdk is openai else "anthropic", client)

    asyncio.run(call_once())
    assert reading(monitor) == (TURNS[0][0], "reported")


def chat_event(tokens):
    usage = {"prompt_tokens": tokens, "completion_tokens": 1}
    return b"data: %s\n\n" % json.dumps({"model": MODEL, "usage": usage}).encode()


@LIBRARIES
def test_a_chunk_is_passed_on_at_once(library, api, monitor):
    """The server sends the second when the first has arrived; the reading comes with the end."""
    has_arrived = threading.Event()

    def parts():
        yield chat_event(10)
        assert has_arrived.wait(60)
        yield chat_event(20)

    api.answer = Answer(parts(), "text/event-stream")
    with ContextReader(monitor).watch(library.Client(timeout=60)) as client:
        with client.stream("POST", f"{api.url}/v1/chat/completions", json={}) as response:
            chunks = response.iter_bytes()
            assert next(chunks) == chat_event(10)
            assert monitor.get_state().measured_at is None
            has_arrived.set()
            assert list(chunks) == [chat_event(20)]
        assert vars(response).keys().isdisjoint({"iter_bytes", "close"})
    assert reading(monitor) == (20, "reported")


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_memory_is_bounded(kind, api, monitor):
    """A line or an answer without end is passed on and forgotten; what follows a line is read."""
    part = b'data: {"usage": {' + b"x" * 1_048_559
    parts = MAX_HELD_BYTES // len(part) * 3

    def endless():
        for _number in range(parts):
            yield part
        yield b"\n" + chat_event(30)

    api.answer = Answer(endless(), kind)
    with ContextReader(monitor).watch(httpx2.Client(timeout=60)) as client:
        tracemalloc.start()
        with client.stream("POST", f"{api.url}/v1/chat/completions", json={}) as response:
            received = sum(len(chunk) for chunk in response.iter_bytes())
        _now, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert received > parts * len(part)
    assert most < 2.5 * MAX_HELD_BYTES
    expected = (30, "reported") if kind == "text/event-stream" else (0, "estimated")
    assert reading(monitor) == expected


def test_threads_and_clients_of_a_reader_are_one_agent(api, ultramon_backend):
    """Whichever answer comes first begins it."""
    api.answer = Answer([chat_event(7).removeprefix(b"data: ")])
    reader = ContextReader(backend=ultramon_backend)
    given = ("chat", "sync", api.url, reader.watch)
    threads = [threading.Thread(target=call, args=given) for _number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (agent,) = reader.adapter.agents
    assert reading(agent.monitor) == (7, "reported")
    reader.adapter.close()
    assert not agent.monitor.is_active


def test_a_client_of_google_may_have_made_calls_before(api, monitor):
    """It keeps an HTTP client for each event loop."""

    async def call_twice():
        async with async_gemini(api.url) as client:
            await send("gemini", client)
            ContextReader(monitor).watch(client)
            await send("gemini", client)

    asyncio.run(call_twice())
    assert reading(monitor) == (TURNS[1][0], "reported")


def test_calls_over_aiohttp_are_said_to_be_unseen(api, monitor, caplog):
    """With an HTTP client of its user's, google-genai makes none of them."""
    pytest.importorskip("aiohttp", reason="google-genai uses it only where it is installed")
    ContextReader(monitor).watch(gemini(api.url))
    assert "httpx_async_client" in caplog.text
    caplog.clear()

    async def call_once():
        async with httpx2.AsyncClient() as http:
            client = ContextReader(monitor).watch(gemini(api.url, httpx_async_client=http))
            await send("gemini", client.aio)

    asyncio.run(call_once())
    assert caplog.text == ""
    assert reading(monitor) == (TURNS[0][0], "reported")


def test_a_client_is_watched_once_by_a_reader(monitor):
    """And so are its copies, which share its HTTP client."""
    reader = ContextReader(monitor)
    client = reader.watch(gpt("http://127.0.0.1:9"))
    reader.watch(client.with_options(timeout=5))
    assert len(client._client.event_hooks["response"]) == 1


@pytest.mark.parametrize("client", [None, "client", object(), anthropic])
def test_what_is_no_client_is_refused(client):
    """The error names those that can be watched."""
    with pytest.raises(ConfigurationError, match="anthropic, openai or google-genai"):
        ContextReader().watch(client)


class Caller:
    """Calls Anthropic's client until it is done, and looks after each call."""

    def __init__(self, run):
        self.run = run
        self.readers = []

    def work(self, script, **choices):
        """Let one agent work; in the mode ``nested`` another one works meanwhile."""
        reader = load("provider-client")(**self.run.adapter_choices(), **choices)
        self.readers.append(reader)
        with ProviderApi(script) as api:
            name = "anthropic stream" if self.run.mode == "streaming" else "anthropic"
            while "done" not in str(call(name, self.run.mode, api.url, reader.watch)):
                (monitor,) = [agent.monitor for agent in reader.adapter.agents] or [None]
                script.look_at(monitor)
                if self.run.mode == "nested" and script is self.run.outer and script.served == 1:
                    self.work(self.run.inner, parent_id=monitor and monitor.agent_id)


class TestProviderClient(IntegrationContract):
    @pytest.fixture
    def drive(self):
        def drive(run):
            caller = Caller(run)
            try:
                caller.work(run.outer)
            finally:
                for reader in caller.readers:
                    reader.adapter.close()

        return drive
