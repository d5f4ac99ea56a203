"""Runs the page: its parts, its socket, its start and its end, and the links that log in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ultramon.errors import StateError
from ultramon.fleet.background_looks import background_looks
from ultramon.metrics.source import MetricsSource
from ultramon.recordings.budgets import budget_looks
from ultramon.server.http.http_server import HttpServer, behind_filter
from ultramon.server.server_file import (
    read_server_file,
    remove_server_file,
    write_server_file,
)
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.tokens import METRICS_TOKEN, ServerSecret
from ultramon.web.app import create_app
from ultramon.web.gate import HEADERS, LoginGate
from ultramon.web.live import Live
from ultramon.web.logins import Logins, make_code, make_key
from ultramon.web.views import Readers

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.server.http.http_server import Endpoint
    from ultramon.system.clock import Clock

FILE_NAME = "web-server"
"""Of the files that say where it runs, see `ultramon.server.server_file`."""


class WebServer(HttpServer):
    """Serves the page behind its filter and its gate.

    Args:
        backend: The store; it is only read.
        listener: The listening socket; closed at the end.
        key: Signs the links that log in.
        names: Further values of Host that name this server, see `allowed_hosts`.
        certfile: A certificate chain (PEM): HTTPS instead of HTTP.
        proxies: Addresses or networks whose forwarded headers are believed; then they and this
            machine alone are answered.
        clock: For tests.
        state_directory: Where the server's file is, the token of metrics and the limits of the
            user's plans; None = none of them.
        options: As for `HttpServer`.

    Raises:
        ConfigurationError: A name, a proxy, the certificate or the key is not usable.
    """

    def __init__(
        self,
        backend: Backend,
        listener: socket.socket,
        *,
        key: str,
        names: Sequence[str] = (),
        certfile: str | None = None,
        proxies: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        state_directory: str | None = None,
        **options: Any,
    ) -> None:
        logins, port = Logins(key, clock), listener.getsockname()[1]
        readers = Readers(backend, clock, state_directory=state_directory)
        live = Live(readers, lambda: self.should_exit)
        token = None if state_directory is None else ServerSecret(state_directory, METRICS_TOKEN)
        metrics = MetricsSource(backend, clock=clock, state_directory=state_directory)
        pages = create_app(live, logins, port, metrics)
        app = behind_filter(
            LoginGate(pages, logins, port, token),
            listener,
            names=names,
            certfile=certfile,
            proxies=proxies,
            headers=HEADERS,
        )
        super().__init__(app, listener, certfile=certfile, **options)
        self._state_directory = state_directory

    def leave_at_once(self) -> None:
        """Say that no server listens any more."""
        if self._state_directory is not None:
            remove_server_file(self._state_directory, FILE_NAME)


def serve(
    backend: Backend,
    state_directory: str,
    endpoint: Endpoint,
    *,
    on_listening: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, as the only page of a state directory.

    Args:
        backend: The store.
        state_directory: Holds ``web-server.json`` while the server listens.
        endpoint: Where it listens.
        on_listening: Called once requests are answered, with what `make_link` returns.

    Raises:
        ConfigurationError: The host needs a certificate, or a setting is wrong.
        StateError: Another one runs for the directory, or a file in it is not safe to use.
        OSError: The address is in use.
    """
    state_directory = os.path.abspath(state_directory)
    with endpoint.listening(state_directory, FILE_NAME) as listener:
        key = make_key()

        def announce() -> None:
            facts = {**endpoint.facts(listener, _shown_url(endpoint, listener)), "linkKey": key}
            write_server_file(state_directory, facts, FILE_NAME)
            if on_listening is not None:
                on_listening(_with_link(facts))

        server = WebServer(
            backend,
            listener,
            key=key,
            state_directory=state_directory,
            on_listening=announce,
            **endpoint.server_options(),
        )
        try:
            budgets = budget_looks(state_directory, backend)
            with background_looks(backend, state_directory, "web", budgets):
                server.run_here()
        finally:
            remove_server_file(state_directory, FILE_NAME)


def make_link(state_directory: str) -> dict[str, Any]:
    """Return where the page of a state directory is, with a new link that logs in once.

    Args:
        state_directory: Its absolute path.

    Returns:
        ``url``, ``host``, ``port``, ``pid``, ``startedAt``, ``version`` and ``loginUrl``.

    Raises:
        StateError: None runs for it, or its file is not safe to read.
    """
    facts = read_server_file(state_directory, FILE_NAME)
    if facts is None:
        raise StateError(state_directory, "no page is served for it", "start `ultramon web`")
    return _with_link(facts)


def _with_link(facts: dict[str, Any]) -> dict[str, Any]:
    code = make_code(facts["linkKey"], SYSTEM_CLOCK.now())
    shown = {name: value for name, value in facts.items() if name != "linkKey"}
    return {**shown, "loginUrl": f"{facts['url']}/login?code={code}"}


def _shown_url(endpoint: Endpoint, listener: socket.socket) -> str:
    """Return where a browser finds the page: at a proxy as far as it is known, else here."""
    if endpoint.names and endpoint.proxies:
        # The proxy has the certificate, and a name and port of its own.
        return f"https://{endpoint.names[0]}"
    return endpoint.url(listener, None if endpoint.address.names else "localhost")
