"""The hosts and addresses that webhooks may be posted to."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

import httpx

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Address = ipaddress.IPv4Address | ipaddress.IPv6Address
    Lookup = Callable[..., list[Any]]

LOCALHOST = "localhost"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class AllowedHosts:
    """The allowed hosts.

    A name may resolve to a public address, or to one that is listed itself; ``localhost`` is this
    machine. Link-local addresses, where clouds keep credentials, are never allowed.

    Args:
        entries: ``host`` or ``host:port``, names and addresses; without a port 443 and 80.
        source: The configuration file, for errors.
        lookup: For tests; None = `socket.getaddrinfo`.

    Raises:
        ConfigurationError: An entry is malformed.
    """

    def __init__(
        self, entries: Iterable[object], source: str, *, lookup: Lookup | None = None
    ) -> None:
        self._source = source
        self._lookup = lookup or socket.getaddrinfo
        self._listed: set[tuple[str, int]] = set()
        for entry in entries:
            self._listed |= self._parse(entry)

    def _parse(self, entry: object) -> set[tuple[str, int]]:
        try:
            url = httpx.URL(f"entry://{entry}" if isinstance(entry, str) else "")
        except (httpx.InvalidURL, ValueError):
            url = httpx.URL("")
        is_bare = not url.userinfo and not url.fragment and url.raw_path in (b"", b"/")
        is_port = url.port is None or 0 < url.port < 65_536
        if not url.host or not is_bare or not is_port or set(url.host) & set("*%"):
            allowed = 'hosts like "hooks.example.com" or "127.0.0.1:9000"'
            raise ConfigurationError("webhooks.allow_hosts", entry, allowed, self._source)
        ports = tuple(_DEFAULT_PORTS.values()) if url.port is None else (url.port,)
        return {(_canonical(url.host), port) for port in ports}

    def check(self, name: str, text: object) -> httpx.URL:
        """Parse a URL and check it as far as possible without resolving its host.

        Args:
            name: The setting, for errors.
            text: The URL.

        Raises:
            ConfigurationError: It is no URL, or not allowed.
        """

        def refuse(allowed: str) -> ConfigurationError:
            return ConfigurationError(name, text, allowed, self._source)

        try:
            url = httpx.URL(text if isinstance(text, str) else "")
        except (httpx.InvalidURL, ValueError):
            raise refuse("a URL") from None
        if url.scheme not in _DEFAULT_PORTS or not url.host:
            raise refuse("an https URL with a host")
        if url.userinfo:
            raise refuse("without a user and password; the receiver checks the signature")
        if (_canonical(url.host), _port(url)) not in self._listed:
            raise refuse("at a host and port of webhooks.allow_hosts")
        address = _address(url.host)
        # Clouds answer with credentials at link-local addresses.
        if address is not None and not _is_possible(address):
            raise refuse("at no link-local, multicast or unspecified address")
        is_here = url.host == LOCALHOST or (address is not None and address.is_loopback)
        if url.scheme == "http" and not is_here:
            raise refuse("https, unless the host is this machine")
        return url

    def addresses(self, url: httpx.URL) -> list[str]:
        """Resolve the host of a URL; return its addresses in the order of the system's preference.

        Raises:
            ConfigurationError: One of its addresses is not allowed.
            OSError: It cannot be resolved.
        """
        if _address(url.host) is not None:
            return [url.host]
        port = _port(url)
        found = self._lookup(url.raw_host.decode("ascii"), port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        for text in addresses:
            if not self._is_allowed(url.host, text, port):
                allowed = f"a name that leads to public or listed addresses only, not to {text}"
                raise ConfigurationError("webhook host", url.host, allowed, self._source)
        return addresses

    def _is_allowed(self, host: str, text: str, port: int) -> bool:
        address = _address(text)
        if address is None or not _is_possible(address):
            return False
        if host == LOCALHOST:
            return address.is_loopback
        return address.is_global or (_canonical(text), port) in self._listed


def _port(url: httpx.URL) -> int:
    return _DEFAULT_PORTS[url.scheme] if url.port is None else url.port


def _address(text: str) -> Address | None:
    """Parse an address; None for a name.

    An IPv6 address that wraps an IPv4 one counts as that: both reach the same machine.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        # The last 32 bits are the address that is reached, so that has to be allowed.
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _canonical(host: str) -> str:
    address = _address(host)
    return host.lower() if address is None else str(address)


def _is_possible(address: Address) -> bool:
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)
