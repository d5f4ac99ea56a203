"""Proxies in front of the server: their forwarded headers count, no other machine is answered."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Network, IPv6Network

    from starlette.types import ASGIApp, Receive, Scope, Send

IS_STRANGER = "ultramon_stranger"
"""Where the state of a request holds whether its peer is neither a proxy nor this machine."""


def proxy_networks(named: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    """Return the addresses of proxies.

    Args:
        named: Addresses and networks, e.g. ``10.0.0.5`` or ``10.0.0.0/24``.

    Raises:
        ConfigurationError: One is neither, or is everybody.
    """
    networks = []
    for name in named:
        allowed = "an address or network of proxies, e.g. 10.0.0.5 or 10.0.0.0/24; not everybody"
        try:
            network = ip_network(name)
        except ValueError as error:
            raise ConfigurationError("--behind-proxy", name, f"{allowed}: {error}") from error
        # Every client's own headers would be believed.
        if network.prefixlen == 0:
            raise ConfigurationError("--behind-proxy", name, allowed)
        networks.append(network)
    return networks


class BehindProxies:
    """Takes the client's address and scheme from ``X-Forwarded-For`` and ``X-Forwarded-Proto``.

    Only a named proxy is believed; a request of another machine is marked as a stranger's.

    Args:
        app: The request filter.
        networks: Of the proxies, from `proxy_networks`.
    """

    def __init__(self, app: ASGIApp, networks: list[IPv4Network | IPv6Network]) -> None:
        self._networks = networks
        self._forwarded = ProxyHeadersMiddleware(
            app,  # type: ignore[arg-type]  # the same protocol under other names
            [str(network) for network in networks],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on as its client sent it to the proxy."""
        if scope["type"] == "http":
            scope.setdefault("state", {})[IS_STRANGER] = not self._admit(scope)
        await self._forwarded(scope, receive, send)  # type: ignore[arg-type]

    def _admit(self, scope: Scope) -> bool:
        """Return whether a request comes from a proxy or from this machine."""
        peer = scope.get("client")
        if not peer:
            return False
        # Behind "%" an IPv6 address names its interface.
        address = ip_address(peer[0].partition("%")[0])
        # A socket for both families shows the old one's addresses in the form of the new one.
        address = getattr(address, "ipv4_mapped", None) or address
        scope["client"] = (str(address), peer[1])
        return address.is_loopback or any(address in network for network in self._networks)
