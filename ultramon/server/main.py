"""Runs the server: its parts, its socket, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import uvicorn

from ultramon import __version__
from ultramon.errors import ConfigurationError, StateError
from ultramon.server.app import create_app
from ultramon.server.http.authentication import digest
from ultramon.server.http.connections import BoundedProtocol, TlsHandshake
from ultramon.server.http.proxies import BehindProxies, proxy_networks
from ultramon.server.http.request_filter import BODY_SECONDS, RequestFilter, allowed_hosts
from ultramon.server.server_file import only_server, remove_server_file, write_server_file
from ultramon.server.services import Services
from ultramon.server.workers import webhooks
from ultramon.server.workers.lost_agents import LostAgents
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import is_on
from ultramon.system.files import make_private_directory
from ultramon.system.timestamps import format_time
from ultramon.tokens import ADMIN_TOKEN, HOOK_SECRET, METRICS_TOKEN, server_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ipaddress import IPv4Address, IPv6Address
    from types import FrameType

    from starlette.types import ASGIApp

    from ultramon.backends.base import Backend
    from ultramon.system.clock import Clock

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8420
DRAIN_SECONDS = 4
"""How long running requests may take after a signal; the whole shutdown takes 5 s."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANGUP = getattr(signal, "SIGHUP", None)
_STDERR = 2
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
        admin_token=server_secret(state_directory, ADMIN_TOKEN),
        hook_secret=server_secret(state_directory, HOOK_SECRET),
        metrics_token=server_secret(state_directory, METRICS_TOKEN),
        clock=clock,
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: A name or an address of this machine.
        port: 0 = any free port.

    Raises:
        OSError: The address is in use, or not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # Not `socket.create_server`: its sockets name no protocol, and asyncio would leave out
        # TCP_NODELAY.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OSError(error.errno, f"cannot be listened on: {error.strerror}", host) from error
    try:
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        what = f"{(error.strerror or str(error)).lower()}; choose another --port"
        raise OSError(error.errno, what, f"{host}:{port}") from error
    return listener


class Server(uvicorn.Server):
    """Serves the application behind its filter on one socket, until `stop` or a signal.

    Args:
        services: The parts of the server.
        listener: The listening socket; closed at the end.
        names: Further values of Host that name this server, see `allowed_hosts`.
        certfile: A certificate chain (PEM): HTTPS instead of HTTP.
        keyfile: Its key.
        proxies: Addresses and networks of proxies: their forwarded headers count, and no other
            machine is answered.
        on_listening: Called once requests are answered.
        on_reload: Called by `reload`.
        protocol: The HTTP protocol, for tests with shorter deadlines.
        body_seconds: The time limit for a body.

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
        keyfile: str | None = None,
        proxies: Sequence[str] = (),
        on_listening: Callable[[], None] | None = None,
        on_reload: Callable[[], None] | None = None,
        protocol: type[BoundedProtocol] = BoundedProtocol,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        scheme = "http" if certfile is None else "https"
        secrets = (services.admin_token, services.hook_secret)
        networks = proxy_networks(proxies)
        app: ASGIApp = RequestFilter(
            create_app(services),
            scheme=None if networks else scheme,
            hosts=allowed_hosts(
                scheme, listener.getsockname()[1], names, is_proxied=bool(networks)
            ),
            unlimited=frozenset(digest(secret.encode("ascii")) for secret in secrets),
            body_seconds=body_seconds,
        )
        if networks:
            app = BehindProxies(app, networks)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=DRAIN_SECONDS,
            )
        )
        self._services = services
        self._listener = listener
        self._protocol = protocol
        self._certificate = None if certfile is None else (certfile, keyfile)
        self._tls = None if certfile is None else _load_certificate(certfile, keyfile)
        self._on_listening = on_listening
        self._on_reload = on_reload
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_terminal = os.isatty(_STDERR)

    def run_here(self) -> None:
        """Serve; return after `stop` or a signal, when the running requests are answered.

        Raises:
            StateError: What a killed server left unwritten cannot be written.
        """
        self._services.readings.open()
        try:
            asyncio.run(self.serve(sockets=[self._listener]))
        finally:
            self._services.readings.close()

    def stop(self) -> None:
        """Begin to shut down; from any thread."""
        self._services.stopping.set()
        self.should_exit = True

    def reload(self) -> None:
        """Read the certificate and its key again, for new connections, and call ``on_reload``.

        A certificate that is not usable is logged, and the old one stays.
        """
        if self._certificate is not None:
            try:
                self._tls = _load_certificate(*self._certificate)
            except ConfigurationError as error:
                _log.warning("the certificate is not read again: %s", error)
        if self._on_reload is not None:
            self._on_reload()
        _log.info("log and certificate are opened again")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, then call ``on_listening``."""
        await self.lifespan.startup()
        self._loop = loop = asyncio.get_running_loop()
        self.servers = [await loop.create_server(self._make_protocol, sock=self._listener)]
        self.started = True
        if self._on_listening is not None:
            self._on_listening()

    def _make_protocol(self) -> asyncio.Protocol:
        protocol = self._protocol(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol if self._tls is None else TlsHandshake(protocol, self._tls)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; restore their handlers afterwards."""
        # Not uvicorn's own: it raises the signal again at the end, so that the exit code is not 0.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        # Under nohup it is ignored, and stays so.
        if _HANGUP is not None and signal.getsignal(_HANGUP) != signal.SIG_IGN:
            before[_HANGUP] = signal.signal(_HANGUP, self.handle_hangup)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        """Reload; but shut down where the signal came because the terminal was closed."""
        if self._has_terminal and not os.isatty(_STDERR):
            self.stop()
        elif self._loop is not None:
            # Later: the signal may have come in the middle of a log line.
            self._loop.call_soon_threadsafe(self.reload)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down in order at the first signal, at once at the second."""
        if self.should_exit:
            remove_server_file(self._services.state_directory)
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.stop()


def _load_certificate(certfile: str, keyfile: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except (OSError, ValueError) as error:
        allowed = f"a certificate and its key (--tls-key) in PEM, without a password: {error}"
        raise ConfigurationError("--tls-cert", certfile, allowed) from error
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise ValueError("the key has a password")


def serve(
    backend: Backend,
    state_directory: str,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    names: Sequence[str] = (),
    certfile: str | None = None,
    keyfile: str | None = None,
    proxies: Sequence[str] = (),
    on_listening: Callable[[dict[str, Any]], None] | None = None,
    on_reload: Callable[[], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, as the only server of a state directory.

    SIGHUP reloads: see `Server.reload`.

    Args:
        backend: Holds agents, messages and credentials.
        state_directory: Holds ``server.json`` while the server listens.
        host: The address to listen on; beyond this machine only with a certificate, or proxies.
        port: 0 = any free port.
        names: Further values of Host that name this server.
        certfile: A certificate chain (PEM).
        keyfile: Its key; None = in the same file.
        proxies: See `Server`.
        on_listening: Called once requests are answered, with the contents of ``server.json``.
        on_reload: Called at SIGHUP.

    Raises:
        ConfigurationError: The host needs a certificate, or a setting is wrong.
        StateError: Another server runs for the directory, or a file in it is not safe to use.
        OSError: The address is in use.
    """
    address = _parse_address(host)
    is_here = host.lower() == "localhost" if address is None else address.is_loopback
    if certfile is None and not is_here and not proxies:
        allowed = (
            "an address of this machine alone, such as 127.0.0.1; to be reached from others, "
            "give a certificate: --tls-cert FILE --tls-key FILE, or name the proxy in front that "
            "has one: --behind-proxy ADDRESS"
        )
        raise ConfigurationError("--host", host, allowed)
    state_directory = os.path.abspath(state_directory)
    make_private_directory(state_directory)
    with only_server(state_directory), listen(host, port) as listener:
        services = make_services(backend, state_directory)
        bound = listener.getsockname()
        scheme = "http" if certfile is None else "https"
        shown_host = f"[{host}]" if ":" in host else host
        # The unspecified address stands for all of this machine's, and is none of their names.
        own_names = [] if address is not None and address.is_unspecified else [shown_host]
        url = f"{scheme}://{shown_host}:{bound[1]}"

        def announce() -> None:
            facts: dict[str, Any] = {
                "url": url,
                "host": bound[0],
                "port": bound[1],
                "pid": os.getpid(),
                "startedAt": format_time(services.now()),
                "version": __version__,
            }
            write_server_file(state_directory, facts)
            if on_listening is not None:
                on_listening(facts)

        server = Server(
            services,
            listener,
            names=[*names, *own_names],
            certfile=certfile,
            keyfile=keyfile,
            proxies=proxies,
            on_listening=announce,
            on_reload=on_reload,
        )
        end_export = start_metrics(services)
        sending = webhooks.start(services)
        lost_agents = LostAgents(services)
        lost_agents.start()
        try:
            server.run_here()
        finally:
            remove_server_file(state_directory)
            services.stopping.set()
            end_export()
            lost_agents.close()
            sending.stop()


def start_metrics(services: Services) -> Callable[[], None]:
    """Count events from now on; export them where that is switched on; return what ends that."""
    try:
        services.metrics.begin()
    except StateError as error:
        _log.warning("events are counted from the first scrape on: %s", error)
    if not is_on("ULTRAMON_OTEL"):
        return lambda: None
    from ultramon.metrics.opentelemetry import start_opentelemetry

    return start_opentelemetry(services.backend, clock=services.clock)


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
