"""Runs the server: its parts, its socket, its start and its end."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateError
from ultramon.fleet.background_looks import background_looks
from ultramon.recordings.budgets import budget_looks
from ultramon.server.app import create_app
from ultramon.server.earlier_log import store_earlier_log
from ultramon.server.http.authentication import digest
from ultramon.server.http.http_server import HttpServer, behind_filter
from ultramon.server.http.request_filter import BODY_SECONDS
from ultramon.server.server_file import SERVER, remove_server_file, write_server_file
from ultramon.server.services import Services
from ultramon.server.workers import webhooks
from ultramon.server.workers.lost_agents import LostAgents
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import is_on
from ultramon.system.files import make_private_directory
from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, METRICS_TOKEN, ServerSecret

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.server.http.http_server import Endpoint
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.server")


def make_services(
    backend: Backend, state_directory: str, *, clock: Clock = SYSTEM_CLOCK
) -> Services:
    """Return the parts of a server; missing secrets are created.

    Args:
        backend: Holds agents, messages and credentials.
        state_directory: Holds the files of the server; created if it is missing.
        clock: For tests.

    Raises:
        ConfigurationError: The backend keeps no registrations.
        StateError: The directory or a secret in it is not safe to use.
    """
    make_private_directory(state_directory)
    return Services(
        backend,
        state_directory,
        admin_token=ServerSecret(state_directory, ADMIN_TOKEN),
        hook_secret=ServerSecret(state_directory, HOOK_SECRET),
        metrics_token=ServerSecret(state_directory, METRICS_TOKEN),
        clock=clock,
    )


@dataclass(frozen=True, slots=True)
class _UnlimitedDigests:
    """The digests of the secrets that many agents share, as they are now."""

    services: Services

    def __contains__(self, key: object) -> bool:
        services = self.services
        try:
            shared = services.admin_token, services.hook_secret
        except StateError:
            return False  # the authentication behind the filter answers with the error
        return any(digest(secret.encode("ascii")) == key for secret in shared)


class Server(HttpServer):
    """Serves the HTTP API behind its filter.

    Args:
        services: The parts of the server.
        listener: The listening socket; closed at the end.
        names: Further values of Host that name this server, see `allowed_hosts`.
        certfile: A certificate chain (PEM): HTTPS instead of HTTP.
        proxies: Addresses and networks of proxies: their forwarded headers count, and no other
            machine is answered.
        body_seconds: The time limit for a body.
        options: As for `HttpServer`.

    Raises:
        ConfigurationError: A name is malformed, or the certificate or key is not usable.
    """

    def __init__(
        self,
        services: Services,
        listener: socket.socket,
        *,
        names: Sequence[str] = (),
        certfile: str | None = None,
        proxies: Sequence[str] = (),
        body_seconds: float = BODY_SECONDS,
        **options: Any,
    ) -> None:
        app = behind_filter(
            create_app(services),
            listener,
            names=names,
            certfile=certfile,
            proxies=proxies,
            unlimited=_UnlimitedDigests(services),
            body_seconds=body_seconds,
        )
        super().__init__(app, listener, certfile=certfile, **options)
        self._services = services

    def run_here(self) -> None:
        """Serve; return after `stop` or a signal, when the running requests are answered.

        Raises:
            StateError: What a killed server of an earlier version left cannot be stored.
        """
        services = self._services
        if isinstance(services.backend, LocalBackend):
            # Before the first request: a reading that is posted now is newer than those of the log.
            store_earlier_log(services.backend.directory.path, services.posted.retake)
        with services.threads:
            super().run_here()

    def stop(self) -> None:
        """Begin to shut down; from any thread."""
        self._services.stopping.set()
        super().stop()

    def leave_at_once(self) -> None:
        """Say that no server listens any more."""
        remove_server_file(self._services.state_directory)


def serve(
    backend: Backend,
    state_directory: str,
    endpoint: Endpoint,
    *,
    on_listening: Callable[[dict[str, Any]], None] | None = None,
    on_reload: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, as the only server of a state directory.

    SIGHUP reloads: see `Server.reload`.

    Args:
        backend: Holds agents, messages and credentials.
        state_directory: Holds ``server.json`` while the server listens.
        endpoint: Where it listens.
        on_listening: Called once requests are answered, with the contents of ``server.json``.
        on_reload: Called at SIGHUP.

    Raises:
        ConfigurationError: The host needs a certificate, or a setting is wrong.
        StateError: Another server runs for the directory, or a file in it is not safe to use.
        OSError: The address is in use.
    """
    state_directory = os.path.abspath(state_directory)
    with endpoint.listening(state_directory, SERVER) as listener:
        services = make_services(backend, state_directory)

        def announce() -> None:
            facts = endpoint.facts(listener)
            write_server_file(state_directory, facts)
            if on_listening is not None:
                on_listening(facts)

        server = Server(
            services,
            listener,
            on_listening=announce,
            on_reload=on_reload,
            **endpoint.server_options(),
        )
        budgets = budget_looks(state_directory, backend)
        with (
            background_looks(backend, state_directory, "serve", budgets, clock=services.clock),
            ExitStack() as ending,
        ):
            ending.callback(start_metrics(services))
            ending.callback(webhooks.start(services).stop)
            lost_agents = LostAgents(services)
            ending.callback(lost_agents.close)
            lost_agents.start()
            ending.callback(services.stopping.set)
            ending.callback(remove_server_file, state_directory)
            server.run_here()


def start_metrics(services: Services) -> Callable[[], None]:
    """Count events from now on; export them where that is switched on; return what ends that."""
    try:
        services.metrics.begin()
    except StateError as error:
        _log.warning("events are counted from the first scrape on: %s", error)
    if not is_on("ULTRAMON_OTEL"):
        return lambda: None
    from ultramon.metrics.opentelemetry import start_opentelemetry

    return start_opentelemetry(
        services.backend, state_directory=services.state_directory, clock=services.clock
    )
