"""Tool calls that are reported by requests: do they arrive, are they taken."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ultramon.hosts.claude_code import last_request
from ultramon.hosts.claude_code.doctor.examination import INSTALL, Examination
from ultramon.hosts.claude_code.setup.http_hooks import PATH, SECRET_VARIABLE, Link, is_loopback
from ultramon.hosts.claude_code.setup.settings import Layer
from ultramon.hosts.doctor import ok, problem, warning
from ultramon.system.findings import Finding
from ultramon.system.timestamps import format_time

SERVE = "ultramon serve"
ANSWER_SECONDS = 2.0
DEFAULT_PORT = 8420


def _links(seen: Examination) -> dict[Link, Layer]:
    """Return the addresses that hooks of ultramon go to, each with the first layer that says so."""
    links: dict[Link, Layer] = {}
    for layer, hook in seen.hooks:
        if isinstance(hook.runs, Link):
            links.setdefault(hook.runs, layer)
    return links


def check_requests(seen: Examination) -> Iterator[Finding]:
    """Whether the client sends them, to the server itself, with a secret nobody else reads."""
    name = "requests"
    for link, layer in _links(seen).items():
        mode = layer.settings.mode
        if link.secret is not None and mode & 0o077:
            message = f"{layer.path}: others can read it (mode {mode:o}), with the secret"
            yield problem(name, message, f"chmod 600 {layer.path}")
        for other in seen.layers:
            allowed = other.settings.get("allowedHttpHookUrls")
            if isinstance(allowed, list) and not any(
                isinstance(one, str) and fnmatchcase(link.target, one) for one in allowed
            ):
                message = f"{other.path}: allowedHttpHookUrls keeps the client from {link.url}"
                yield problem(name, message, f"add {link.target} there")
        if link.secret is None and not os.environ.get(SECRET_VARIABLE):
            message = f"they take the secret from {SECRET_VARIABLE}, which is not set here"
            cure = "set it where the client is started, to the content of hook.secret in the "
            yield warning(name, message, f"{cure}state directory")
        proxies = getproxies()
        if any(proxies.get(scheme) for scheme in ("http", "https")) and not proxy_bypass(link.host):
            message = f"a proxy is set here, and the client would ask it for {link.url}"
            yield warning(name, message, f"add {link.host} to NO_PROXY")


def check_server(seen: Examination) -> Iterator[Finding]:
    """Whether the server that requests go to runs, is this ultramon's, and takes them."""
    for link, layer in _links(seen).items():
        yield _check_server(seen, link, f"{layer.command(INSTALL)} --via http")


def _check_server(seen: Examination, link: Link, install: str) -> Finding:
    server, missing, restart = seen.server, _missing(seen), f"stop it, then {SERVE}"
    if server.problem is not None:
        return problem("server", server.problem, SERVE)
    if server.url is None:
        cure = SERVE if urlsplit(link.url).port == DEFAULT_PORT else f"{SERVE} {_options(link)}"
        return problem("server", f"none runs: {missing}", cure)
    if not _same_place(link.url, server.url):
        message = f"the hooks go to {link.url}, the server listens at {server.url}"
        return problem("server", f"{message}: {missing}", install)
    secret = os.environ.get(SECRET_VARIABLE, "") if link.secret is None else link.secret
    try:
        status = _ask(link, secret)
    except (OSError, http.client.HTTPException) as error:
        return problem("server", f"{link.url} does not answer ({error}): {missing}", restart)
    if status == 401 and secret:
        message = f"{link.url} does not know the secret of the hooks: {missing}"
        return problem("server", message, install)
    if status not in (204, 401):
        return problem("server", f"{link.url} answers {status} to a hook: {missing}", restart)
    if seen.version and server.version != seen.version:
        message = f"{link.url} is ultramon {server.version}, this is {seen.version}"
        return warning("server", message, restart)
    return ok("server", f"{link.url} takes the requests of tool calls")


def _options(link: Link) -> str:
    parts = urlsplit(link.url)
    host = "" if parts.hostname == "127.0.0.1" else f"--host {parts.hostname} "
    return f"{host}--port {parts.port or (443 if parts.scheme == 'https' else 80)}"


def _missing(seen: Examination) -> str:
    """Return since when no tool call is reported."""
    at = last_request.last(seen.state_directory)
    if at is None:
        return "no tool call has been reported yet"
    return f"no tool call has been reported since {format_time(at)}"


def _same_place(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    names = {first.hostname, second.hostname}
    return (first.scheme, first.port) == (second.scheme, second.port) and (
        len(names) == 1 or all(name is not None and is_loopback(name) for name in names)
    )


def _ask(link: Link, secret: str) -> int:
    """Return the status of an empty call, which a server takes from a caller with the secret.

    Raises:
        OSError: It cannot be reached.
        HTTPException: It does not speak HTTP.
    """
    parts = urlsplit(link.url)
    is_secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("POST", PATH, b"", {"Authorization": f"Bearer {secret}"})
        return connection.getresponse().status
    finally:
        connection.close()
