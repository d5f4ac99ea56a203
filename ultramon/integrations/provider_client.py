"""Clients of anthropic, openai and google-genai: a reader of the usage in what they receive.

It is a response hook of their HTTP client, httpx or httpx2, so it imports none of the five, and can
neither add to a call nor end a run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon.context.provider_answer import ProviderAnswer
from ultramon.context.provider_usage import usage_from_response
from ultramon.errors import ConfigurationError
from ultramon.integrations.reading_adapter import ReadingAdapter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from typing import Unpack

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor

_log = logging.getLogger("ultramon.integrations")
_Client = TypeVar("_Client")

_ENDPOINTS = (
    "/messages",
    "/chat/completions",
    "/responses",
    "/interactions",
    ":generateContent",
    ":streamGenerateContent",
    # Anthropic's messages on Amazon Bedrock and Google Vertex
    "/invoke",
    "/invoke-with-response-stream",
    ":rawPredict",
    ":streamRawPredict",
)
"""Ends of the paths whose answers fill the window; the usage of others is of images or audio."""


class ContextReader:
    """Watches the calls of an agent: ``client = ContextReader(monitor).watch(Anthropic())``.

    All clients that one reader watches are one agent. Without a monitor it begins with the first
    answer, and ends with `adapter.close()`, after an hour of silence or with the process.

    Args:
        monitor: The agent's monitor, already started; None = one is made.
        choices: See `ultramon.integrations.adapter.Choices`, without ``tell`` and ``on_return``.

    Attributes:
        adapter: Holds the agent and its monitor.

    Raises:
        ConfigurationError: A choice is not allowed.
    """

    def __init__(self, monitor: ContextMonitor | None = None, **choices: Unpack[Choices]) -> None:
        self.adapter = ReadingAdapter("a reader", "a provider's SDK", monitor, **choices)
        self._has_warned = False

    def watch(self, client: _Client) -> _Client:
        """Read what the calls of a client use from now on; return the client.

        Copies that share its HTTP client (``with_options``) are watched with it. google-genai sends
        async calls over aiohttp where that is installed; this is logged, they are not seen.

        Args:
            client: A client of one of the SDKs, sync or async, or the httpx or httpx2 client that
                such a client is given.

        Raises:
            ConfigurationError: It is neither.
        """
        found = [http for http in _http_clients(client) if hasattr(http, "event_hooks")]
        if not found:
            allowed = "a client of anthropic, openai or google-genai, or its httpx or httpx2 client"
            raise ConfigurationError("client", type(client).__qualname__, allowed)
        for http in found:
            hook = self._on_async_response if hasattr(http, "aclose") else self._on_response
            hooks = http.event_hooks["response"]
            if hook not in hooks:
                # Before hooks of the user's, which may read the body.
                hooks.insert(0, hook)
            # google-genai makes a client for each event loop, as it made this one.
            getattr(http, "_client_kwargs", {})["event_hooks"] = http.event_hooks
        uses_aiohttp = getattr(getattr(client, "_api_client", None), "_use_aiohttp", None)
        if uses_aiohttp is not None and uses_aiohttp():
            _log.warning(
                "async calls of google-genai go over aiohttp and are not read: give its "
                "HttpOptions an httpx_async_client"
            )
        return client

    def _on_response(self, response: Any) -> None:
        if _is_answer(response):
            watched = _Response(response, self.adapter.agent_of_call(), self._unread)
            response.iter_bytes, response.close = watched.iter_bytes, watched.close

    async def _on_async_response(self, response: Any) -> None:
        if _is_answer(response):
            if self.adapter.nameless is None:
                from anyio.to_thread import run_sync

                await run_sync(self.adapter.agent_of_call)
            watched = _Response(response, self.adapter.agent_of_call(), self._unread)
            response.aiter_bytes, response.aclose = watched.aiter_bytes, watched.aclose

    def _unread(self, path: str) -> None:
        """Say once that an answer which fills the window did not say by how much."""
        if self._has_warned:
            return
        self._has_warned = True
        hint = (
            "; OpenAI counts a chat stream only with stream_options={'include_usage': True}"
            if path.endswith("/chat/completions")
            else ""
        )
        _log.warning("%s did not say what the window holds: the reading is old%s", path, hint)


def _http_clients(client: Any) -> Iterator[Any]:
    """Yield what may be one: the client itself, and what an SDK keeps in it."""
    api = getattr(client, "_api_client", client)
    yield api
    for place in ("_client", "_httpx_client", "_async_httpx_client"):
        http = getattr(api, place, None)
        yield http
        yield from getattr(http, "_loop_clients", {}).values()


def _is_answer(response: Any) -> bool:
    path: str = response.request.url.path
    return (
        response.request.method == "POST"
        and path.endswith(_ENDPOINTS)
        # Counting tokens fills no window.
        and "/count-tokens:" not in path
    )


class _Response:
    """One response, whose methods of the same names it stands in for until its end.

    A chunk is looked at when the caller asks for the next one or closes the response.
    """

    def __init__(self, response: Any, agent: WatchedAgent, unread: Callable[[str], None]) -> None:
        self._response, self._agent, self._unread = response, agent, unread
        self._iter_bytes = response.iter_bytes
        self._aiter_bytes = response.aiter_bytes
        self._close, self._aclose = response.close, response.aclose
        self._answer = ProviderAnswer(
            response.headers.get("content-type", ""), is_refusal=response.status_code >= 400
        )
        self._has_ended = False
        self._passed_on: bytes | None = None
        self._is_over = False

    def iter_bytes(self, *given: Any, **named: Any) -> Iterator[bytes]:
        for chunk in self._iter_bytes(*given, **named):
            self._passed_on = chunk
            yield chunk
            self._look()
        self._has_ended = True
        self._end()

    async def aiter_bytes(self, *given: Any, **named: Any) -> AsyncIterator[bytes]:
        async for chunk in self._aiter_bytes(*given, **named):
            self._passed_on = chunk
            yield chunk
            self._look()
        self._has_ended = True
        self._end()

    def close(self) -> None:
        self._close()
        if self._passed_on is not None:  # else httpx closes it, which is at its end
            self._end()

    async def aclose(self) -> None:
        await self._aclose()
        if self._passed_on is not None:
            self._end()

    def _look(self) -> None:
        chunk, self._passed_on = self._passed_on or b"", None
        # After the caller has it: parsing delays no chunk.
        self._answer.feed(chunk)

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._look()
        self._answer.finish()
        for name in ("iter_bytes", "aiter_bytes", "close", "aclose"):
            vars(self._response).pop(name, None)
        monitor, usage = self._agent.active, usage_from_response(self._answer.stated)
        if monitor is not None and self._answer.refusal:
            monitor.report_overflow(self._answer.refusal)
        elif usage is not None:
            self._agent.uses_model(usage.model)
            self._agent.after_call(self._answer.stated)
        elif monitor is not None and (self._has_ended or self._answer.is_whole):
            self._unread(self._response.request.url.path)
