"""Serves an application on one socket: the endpoint, the filter in front, start and end."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn

from ultramon.errors import ConfigurationError
from ultramon.server.http.connections import BoundedProtocol, TlsHandshake
from ultramon.server.http.proxies import BehindProxies, proxy_networks
from ultramon.server.http.request_filter import RequestFilter, allowed_hosts
from ultramon.server.server_file import only_server
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.files import make_private_directory
from ultramon.system.timestamps import format_time
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from ipaddress import IPv4Address, IPv6Address
    from types import FrameType

    from starlette.types import ASGIApp

DRAIN_SECONDS = 4
"""How long running requests may take after a signal; the whole shutdown takes 5 s."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANGUP = getattr(signal, "SIGHUP", None)
_STDERR = 2
_log = logging.getLogger("ultramon.server")


class Address(NamedTuple):
    """An address to listen on.

    Attributes:
        host: As given.
        shown: As it stands in a URL.
        is_loopback: Whether it is reached from this machine alone.
        names: The values of Host that it stands for; none for the unspecified address.
    """

    host: str
    shown: str
    is_loopback: bool
    names: tuple[str, ...]


def read_address(host: str) -> Address:
    """Return what a host to listen on stands for."""
    address = _parse_address(host)
    is_loopback = host.lower() == "localhost" if address is None else address.is_loopback
    shown = f"[{host}]" if ":" in host else host
    # The unspecified address stands for all of this machine's, and is none of their names.
    names = () if address is not None and address.is_unspecified else (shown,)
    return Address(host, shown, is_loopback, names)


def _parse_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


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


class Endpoint(NamedTuple):
    """Where a server is reached, and under which names."""

    host: str
    """The address to listen on; beyond this machine only with a certificate, or proxies."""
    port: int
    """0 = any free port."""
    names: Sequence[str] = ()
    """Further values of Host that name the server, see `allowed_hosts`."""
    certfile: str | None = None
    """A certificate chain (PEM): HTTPS instead of HTTP."""
    keyfile: str | None = None
    """Its key; None = in the same file."""
    proxies: Sequence[str] = ()
    """Addresses and networks of proxies: their forwarded headers count, and no other machine is
    answered."""

    @property
    def address(self) -> Address:
        """What the host stands for."""
        return read_address(self.host)

    def url(self, listener: socket.socket, shown: str | None = None) -> str:
        """Return the address of a server for people.

        Args:
            listener: Its socket.
            shown: The host; None = the one that it listens on.
        """
        scheme = "http" if self.certfile is None else "https"
        return f"{scheme}://{shown or self.address.shown}:{listener.getsockname()[1]}"

    @contextmanager
    def listening(self, state_directory: str, name: str) -> Iterator[socket.socket]:
        """Listen within the ``with`` block, as the only server of that name of a state directory.

        Raises:
            ConfigurationError: The host is open to other machines, without certificate or proxy.
            StateError: Another one runs for the directory, or a file in it is not safe to use.
            OSError: The address is in use.
        """
        if self.certfile is None and not self.proxies and not self.address.is_loopback:
            allowed = (
                "an address of this machine alone, such as 127.0.0.1; to be reached from others, "
                "give a certificate: --tls-cert FILE --tls-key FILE, or name the proxy in front "
                "that has one: --behind-proxy ADDRESS"
            )
            raise ConfigurationError("--host", self.host, allowed)
        make_private_directory(state_directory)
        with only_server(state_directory, name), listen(self.host, self.port) as listener:
            yield listener

    def facts(self, listener: socket.socket, url: str | None = None) -> dict[str, Any]:
        """Return what a server of this process says of itself in its file, see `server_file`.

        Args:
            listener: Its socket.
            url: Its address; None = as `url` returns it.
        """
        host, port = listener.getsockname()[:2]
        return {
            "url": url or self.url(listener),
            "host": host,
            "port": port,
            "pid": os.getpid(),
            "startedAt": format_time(SYSTEM_CLOCK.now()),
            "version": __version__,
        }

    def server_options(self) -> dict[str, Any]:
        """Return the arguments of a server that stands for this endpoint."""
        return {
            "names": [*self.names, *self.address.names],
            "certfile": self.certfile,
            "keyfile": self.keyfile,
            "proxies": self.proxies,
        }


def behind_filter(
    app: ASGIApp,
    listener: socket.socket,
    *,
    names: Sequence[str],
    certfile: str | None,
    proxies: Sequence[str],
    **limits: Any,
) -> ASGIApp:
    """Wrap an application so that only requests that its server may answer reach it.

    Args:
        app: The application.
        listener: The socket of its server.
        names: As for `Endpoint`.
        certfile: As for `Endpoint`.
        proxies: As for `Endpoint`.
        limits: As for `RequestFilter`.

    Raises:
        ConfigurationError: A name or a proxy is malformed.
    """
    scheme, port = "http" if certfile is None else "https", listener.getsockname()[1]
    networks = proxy_networks(proxies)
    hosts = allowed_hosts(scheme, port, names, is_proxied=bool(networks))
    filtered = RequestFilter(app, hosts=hosts, **limits)
    return BehindProxies(filtered, networks) if networks else filtered


class _RefusedConnections:
    """Handles errors of the event loop: refused connections are one line a second.

    Without descriptors asyncio reports each of a hundred attempts in a row with its traceback, and
    begins again a second later.
    """

    def __init__(self) -> None:
        self._said_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not str(context.get("message")).startswith("socket.accept() out of system resource"):
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if now - self._said_at >= 1.0:
            self._said_at = now
            _log.warning("no connection is taken for now: %s", context.get("exception"))


class HttpServer(uvicorn.Server):
    """Serves an application on one socket, until `stop` or a signal.

    Args:
        app: The application, behind its filter.
        listener: The listening socket; closed at the end.
        certfile: A certificate chain (PEM): HTTPS instead of HTTP.
        keyfile: Its key.
        on_listening: Called once requests are answered.
        on_reload: Called by `reload`.
        protocol: The HTTP protocol, for tests with shorter deadlines.

    Raises:
        ConfigurationError: The certificate or key is not usable.
    """

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        *,
        certfile: str | None = None,
        keyfile: str | None = None,
        on_listening: Callable[[], None] | None = None,
        on_reload: Callable[[], None] | None = None,
        protocol: type[BoundedProtocol] = BoundedProtocol,
    ) -> None:
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
        self._listener = listener
        self._protocol = protocol
        self._tls = None if certfile is None else _load_certificate(certfile, keyfile)
        self._on_listening = on_listening
        self._on_reload = on_reload
        self._certificate = None if certfile is None else (certfile, keyfile)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_terminal = os.isatty(_STDERR)

    def run_here(self) -> None:
        """Serve; return after `stop` or a signal, when the running requests are answered."""
        asyncio.run(self.serve(sockets=[self._listener]))

    def stop(self) -> None:
        """Begin to shut down; from any thread."""
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

    def leave_at_once(self) -> None:
        """Delete what others would find, before a second signal ends the process."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, then call ``on_listening``."""
        await self.lifespan.startup()
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(_RefusedConnections())
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
            self.leave_at_once()
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
