"""Posts the notices of recipients to URLs, as configured by ``[webhooks]`` in ``ultramon.toml``.

The queue decides when a notice is retried and when it is dead; there is no state here.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import ssl
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

from ultramon.errors import ConfigurationError, StateCorruptError, StateError
from ultramon.notices.message_rules import DELIVERIES
from ultramon.routing import Inbox
from ultramon.server.workers.webhook_formats import FORMATS, JSON, headers_of
from ultramon.server.workers.webhook_targets import AllowedHosts
from ultramon.system.files import check_one_name, read_private_file
from ultramon.system.ids import is_agent_id
from ultramon.system.settings import REQUIRED, Kind, Setting, check_settings, choice, read_table
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ultramon.backends.base import Backend
    from ultramon.notices.models import Notice
    from ultramon.server.services import Services
    from ultramon.system.clock import Clock

SIGNATURE_HEADER = "Ultramon-Signature"
TIMEOUT_SECONDS = 10.0
"""The limit from the first connection to the last byte of the answer."""
MAX_ANSWER_BYTES = 65_536
MIN_SECRET_BYTES = 16

_CONNECT_SECONDS = 4.0  # leaves time for a host's second address
_LEASE_SECONDS = 60.0  # a look-up of its name may take 30 s, and is no part of the timeout
_POLL_INTERVAL_SECONDS = 1.0
_STOP_SECONDS = 5.0
_MAX_SECRET_BYTES = 4096
_log = logging.getLogger("ultramon.server")


def _is_some_of(modes: object) -> bool:
    return isinstance(modes, list) and modes != [] and all(mode in DELIVERIES for mode in modes)


_ALL_MODES = list(DELIVERIES)
_RECIPIENT = Kind("an agent id", is_agent_id)
_LIST = Kind("a list", lambda value: isinstance(value, list))
_MODES = Kind(f"a list of some of {', '.join(DELIVERIES)}", _is_some_of)
_FORMAT = choice(*FORMATS)
_URL = Kind("a URL", lambda value: isinstance(value, str))
_FILE = Kind(
    "the path of a file", lambda value: isinstance(value, str) and value > "" and "\0" not in value
)
SETTINGS = {
    "allow_hosts": Setting(
        _LIST, [], "Hosts that are posted to, `host` or `host:port`; without a port 443 and 80."
    ),
    "targets": Setting(_LIST, [], "A table per recipient, with the settings below."),
}
TARGET_SETTINGS = {
    "recipient": Setting(_RECIPIENT, REQUIRED, "The agent whose notices are posted."),
    "url": Setting(
        _URL, REQUIRED, "Where: `https`, or on this machine `http`, at one of those hosts."
    ),
    "format": Setting(
        _FORMAT,
        JSON,
        "What is posted: the whole notice (`json`), or its text as Slack, Discord or ntfy read it.",
    ),
    "secret_file": Setting(
        _FILE,
        None,
        f"The file with the secret that signs, {MIN_SECRET_BYTES} bytes or more. Required for"
        " `json`; without one the others are not signed.",
    ),
    "deliveries": Setting(
        _MODES, _ALL_MODES, "Notices of these modes are posted; others stay in the queue."
    ),
    "ca_file": Setting(_FILE, None, "Certificates (PEM) trusted instead of the public ones."),
}
"""Paths are relative to ``ultramon.toml``."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The URL for the notices of one recipient.

    Attributes:
        recipient: An agent id.
        url: The URL.
        secret: The key of the signatures; None = requests are not signed.
        format: One of `ultramon.server.workers.webhook_formats.FORMATS`.
        deliveries: Only notices of these modes are posted; the others stay in the queue.
        trust: The certificate authorities for the host; True = the public ones.
    """

    recipient: str
    url: httpx.URL
    secret: bytes | None = field(repr=False)
    format: str = JSON
    deliveries: Sequence[str] = DELIVERIES
    trust: ssl.SSLContext | bool = True


def sign(secret: bytes, at: int, body: bytes) -> str:
    """Return the value of the signature header: ``t=<epoch seconds>,v1=<hex>``.

    Args:
        secret: The target's.
        at: The time of sending, epoch seconds: lets the receiver refuse replays.
        body: The exact bytes of the request.
    """
    # With the time, so that a receiver can refuse what is sent a second time later.
    digest = hmac.new(secret, b"%d.%s" % (at, body), "sha256").hexdigest()
    return f"t={at},v1={digest}"


def read_targets() -> tuple[list[Target], AllowedHosts]:
    """Return the webhooks of ``ultramon.toml``, and the hosts that it allows.

    None of a project that is not trusted: its author would read the user's messages.

    Raises:
        ConfigurationError: A setting is wrong; names it and the file.
    """
    table, path = read_table("webhooks")
    check_settings(table, SETTINGS, path, "[webhooks]")
    allowed_hosts, rows = (
        _LIST.check(f"webhooks.{name}", table.get(name, setting.default), path)
        for name, setting in SETTINGS.items()
    )
    hosts = AllowedHosts(allowed_hosts, path)
    targets: dict[str, Target] = {}
    for number, row in enumerate(rows, 1):
        name = f"webhooks.targets {number}"
        target = _target(name, row, hosts, path)
        if targets.setdefault(target.recipient, target) is not target:
            # They would share the notices instead of getting all of them each.
            allowed = "another recipient than that of the targets before it"
            raise ConfigurationError(f"{name} recipient", target.recipient, allowed, path)
    return [*targets.values()], hosts


def _target(name: str, row: Any, hosts: AllowedHosts, path: str) -> Target:
    if not isinstance(row, dict):
        raise ConfigurationError(name, row, "a table", path)
    check_settings(row, TARGET_SETTINGS, path, f"[{name}]")
    layout = _FORMAT.check(f"{name} format", row.get("format", JSON), path)
    is_signed = layout == JSON or "secret_file" in row
    secret_file = f"{name} secret_file"
    return Target(
        recipient=_RECIPIENT.check(f"{name} recipient", row.get("recipient"), path),
        deliveries=_MODES.check(f"{name} deliveries", row.get("deliveries", _ALL_MODES), path),
        url=hosts.check(f"{name} url", row.get("url")),
        secret=_secret(secret_file, row.get("secret_file"), path) if is_signed else None,
        format=layout,
        trust=_trust(f"{name} ca_file", row["ca_file"], path) if "ca_file" in row else True,
    )


def _path_beside(name: str, value: object, path: str) -> str:
    """Return the path of a file named relative to the configuration file."""
    named = os.path.expanduser(_FILE.check(name, value, path))
    return os.path.join(os.path.dirname(os.path.abspath(path)), named)


def _secret(name: str, value: object, path: str) -> bytes:
    where = _path_beside(name, value, path)
    advice = f"make one with: (umask 077; openssl rand -hex 32 > {where})"
    try:
        data, found = read_private_file(where, _MAX_SECRET_BYTES, check=check_one_name)
    except StateCorruptError as error:
        raise ConfigurationError(name, where, f"a small file of yours: {error}", path) from error
    except OSError as error:
        allowed = f"a readable file ({error.strerror}); {advice}"
        raise ConfigurationError(name, where, allowed, path) from error
    if found.st_mode & 0o077:
        allowed = f"readable by its owner only: chmod 600 {where}"
        raise ConfigurationError(name, where, allowed, path)
    secret = data.strip()
    if len(secret) < MIN_SECRET_BYTES:
        allowed = f"a secret of at least {MIN_SECRET_BYTES} bytes; {advice}"
        raise ConfigurationError(name, where, allowed, path)
    return secret


def _trust(name: str, value: object, path: str) -> ssl.SSLContext:
    where = _path_beside(name, value, path)
    try:
        return ssl.create_default_context(cafile=where)
    except OSError as error:  # an SSLError is one
        allowed = f"a file of certificates in PEM ({error.strerror or error})"
        raise ConfigurationError(name, where, allowed, path) from error


class Sender:
    """Posts the notices of one recipient, one after the other, in a thread of its own.

    Args:
        target: The recipient and its URL.
        hosts: The allowed hosts and addresses.
        backend: Holds the queue.
        clock: For the queue and the time in signatures.
        timeout_seconds: For tests; else `TIMEOUT_SECONDS`.
    """

    def __init__(
        self,
        target: Target,
        hosts: AllowedHosts,
        *,
        backend: Backend,
        clock: Clock,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        self._target = target
        self._hosts = hosts
        self._inbox = Inbox(
            target.recipient, deliveries=target.deliveries, backend=backend, clock=clock
        )
        self._clock = clock
        self._timeout_seconds = timeout_seconds
        self._stopping = threading.Event()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._task: asyncio.Task[Any] | None = None
        # A proxy of the environment would look the address up itself.
        self._client = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=target.trust,
            timeout=httpx.Timeout(timeout_seconds, connect=_CONNECT_SECONDS),
        )

    def poll(self) -> int:
        """Post the waiting notices; acknowledge or reject each.

        Returns:
            The number of acknowledged notices.

        Raises:
            StateError: The store refused; a notice that was not acknowledged is redelivered.
        """
        acknowledged = 0
        while not self._stopping.is_set():
            # One at a time: a waiting notice is not claimed, so it can still be cancelled.
            notices = self._inbox.receive(limit=1, lease_seconds=_LEASE_SECONDS)
            if not notices:
                break
            problem = self._post(notices[0])
            if problem is None:
                acknowledged += self._inbox.acknowledge(notices[0])
                continue
            self._inbox.reject(notices[0], problem)
            _log.warning(
                "webhook of %s: notice %d was not delivered: %s",
                self._target.recipient,
                notices[0].message_id,
                problem,
            )
        return acknowledged

    def run(self) -> None:
        """Poll until `stop`; a store that refuses is retried."""
        while not self._stopping.is_set():
            try:
                self.poll()
            except StateError as error:
                _log.warning("webhook of %s waits: %s", self._target.recipient, error)
            self._stopping.wait(_POLL_INTERVAL_SECONDS)

    def stop(self) -> None:
        """Make `run` end now; a notice under way is redelivered. Safe from any thread."""
        self._stopping.set()
        self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        """Close the connections after `run` has ended. Idempotent."""
        if not self._loop.is_closed():
            self._runner.run(self._client.aclose())
            self._runner.close()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _post(self, notice: Notice) -> str | None:
        """Post one notice; return the problem, None on success."""
        body = FORMATS[self._target.format](notice)
        headers = headers_of(self._target.format, notice)
        headers["Idempotency-Key"] = str(notice.message_id)
        try:
            addresses = self._hosts.addresses(self._target.url)
            status = self._runner.run(self._exchange(addresses, headers, body))
        except TimeoutError:
            return f"no whole answer within {self._timeout_seconds:g} s"
        except asyncio.CancelledError:
            return "the server stopped before the answer came"
        except (httpx.HTTPError, ConfigurationError, OSError, UnicodeError) as error:
            return f"{type(error).__name__}: {error}"
        if 200 <= status < 300:
            return None
        return f"HTTP {status}" + (" (redirects are not followed)" if 300 <= status < 400 else "")

    async def _exchange(self, addresses: list[str], headers: dict[str, str], body: bytes) -> int:
        """Send a body to the first address that can be reached; return the status."""
        self._task = asyncio.current_task()
        try:
            # `stop` sets the event before it cancels the task, so one of the two is effective.
            if self._stopping.is_set():
                raise asyncio.CancelledError
            # The client's own timeout starts anew with every byte of a slow receiver.
            async with asyncio.timeout(self._timeout_seconds):
                for address in addresses[:-1]:
                    try:
                        return await self._send(address, headers, body)
                    except (httpx.ConnectError, httpx.ConnectTimeout):
                        continue
                return await self._send(addresses[-1], headers, body)
        finally:
            self._task = None

    async def _send(self, address: str, headers: dict[str, str], body: bytes) -> int:
        url, secret = self._target.url, self._target.secret
        headers = {
            **headers,
            # The URL holds the address that was checked: a second look-up could lead elsewhere.
            "Host": url.netloc.decode("ascii"),
            "Accept-Encoding": "identity",
            "User-Agent": f"ultramon/{__version__}",
        }
        if secret is not None:
            headers[SIGNATURE_HEADER] = sign(secret, int(self._clock.now()), body)
        async with self._client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=headers,
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        ) as response:
            self._client.cookies.clear()  # nothing is kept between requests
            read_bytes = 0
            async for chunk in response.aiter_raw():
                read_bytes += len(chunk)
                # Only the status of an answer counts; the rest of a long one is not read.
                if read_bytes > MAX_ANSWER_BYTES:
                    break
            return response.status_code


class Webhooks:
    """A thread for each sender, so that none waits for the receiver of another; started at once."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._threads: dict[Sender, threading.Thread] = {}
        for sender in senders:
            thread = threading.Thread(target=sender.run, name="ultramon-webhook", daemon=True)
            self._threads[sender] = thread
            thread.start()

    def stop(self) -> None:
        """Stop all senders within 5 s; notices under way are redelivered by the next server."""
        for sender in self._threads:
            sender.stop()
        until = time.monotonic() + _STOP_SECONDS
        for sender, thread in self._threads.items():
            thread.join(max(0.0, until - time.monotonic()))
            if not thread.is_alive():
                sender.close()


def start(services: Services) -> Webhooks:
    """Start the configured webhooks.

    Raises:
        ConfigurationError: The configuration is wrong; nothing was started.
    """
    targets, hosts = read_targets()
    backend, clock = services.backend, services.clock
    return Webhooks([Sender(target, hosts, backend=backend, clock=clock) for target in targets])
