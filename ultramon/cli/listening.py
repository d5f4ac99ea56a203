"""What `serve` and `web` share: where they listen, and who may reach them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.server.http.http_server import Endpoint

_FILE = click.Path(exists=True, dir_okay=False)


def listening_options(
    port: int, variables: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds host, port, certfile, keyfile, names and proxies.

    Args:
        port: The default port.
        variables: Prefix of the environment variables of host, port, names and proxies; None =
            they have none.
    """

    def variable(name: str) -> dict[str, Any]:
        return {"envvar": variables and f"{variables}{name}", "show_envvar": True}

    options = (
        click.option(
            "--host",
            default="127.0.0.1",
            **variable("HOST"),
            help="Address to listen on; beyond this machine only with a certificate or behind a"
            " proxy.",
        ),
        click.option(
            "--port",
            type=click.IntRange(0, 65_535),
            default=port,
            **variable("PORT"),
            help="Port to listen on; 0 = any free one.",
        ),
        click.option(
            "--tls-cert",
            "certfile",
            type=_FILE,
            help="Serve HTTPS with this certificate chain (PEM).",
        ),
        click.option(
            "--tls-key", "keyfile", type=_FILE, help="Its key, where it is not in the same file."
        ),
        click.option(
            "--allow-host",
            "names",
            multiple=True,
            metavar="NAME",
            **variable("ALLOW_HOST"),
            help="Answer requests for this host name too; its port is --port unless given.",
        ),
        click.option(
            "--behind-proxy",
            "proxies",
            multiple=True,
            metavar="ADDRESS",
            **variable("BEHIND_PROXY"),
            help="Believe the X-Forwarded headers of this address or network, and answer no other"
            " machine.",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        # click lists options in the reverse order of their decorators.
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def endpoint(certfile: str | None, keyfile: str | None, **address: Any) -> Endpoint:
    """Return where to listen, by the options.

    Raises:
        click.UsageError: There is a key without its certificate.
    """
    from ultramon.server.http.http_server import Endpoint

    if keyfile is not None and certfile is None:
        raise click.UsageError("--tls-key needs --tls-cert")
    return Endpoint(certfile=certfile, keyfile=keyfile, **address)
