"""What the doctor asks where tool calls are told by requests: do they arrive, are they taken."""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Iterator
from fnmatch import fnmatchcase
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ultramon.hosts.claude_code import last_request
from ultramon.hosts.claude_code.doctor.examination import Examination, SeenLayer
from ultramon.hosts.claude_code.setup.http_hooks import PATH, SECRET_VARIABLE, Link, is_loopback
from ultramon.hosts.claude_code.setup.settings import Settings
from ultramon.hosts.doctor import OK, PROBLEM, WARNING, Finding
from ultramon.system.timestamps import format_time

SERVE = "ultramon serve"
ANSWER_SECONDS = 2.0


def _links(seen: Examination) -> Iterator[tuple[Link, SeenLayer, Settings]]:
    """Give each address that hooks of ours go to, with the first settings that say so."""
    known: set[Link] = set()
    for layer, settings in seen.installed:
        for hook in settings.our_hooks():
            if isinstance(hook.runs, Link) and hook.runs not in known:
                known.add(hook.runs)
                yield hook.runs, layer, settings


def check_requests(seen: Examination) -> Iterator[Finding]:
    """Whether the client sends them, to the server itself, with a secret nobody else reads."""
    for link, layer, settings in _links(seen):
        if link.secret is not None and settings.mode & 0o077:
            message = f"{layer.path}: others can read it (mode {settings.mode:o}), with the secret"
            yield Finding("requests", PROBLEM, message, f"chmod 600 {layer.path}")
        for other in seen.layers:
            allowed = other.settings.get("allowedHttpHookUrls") if other.settings else None
            if isinstance(allowed, list) and not any(
                isinstance(one, str) and fnmatchcase(link.target, one) for one in allowed
            ):
                message = f"{other.path}: allowedHttpHookUrls keeps the client from {link.url}"
                yield Finding("requests", PROBLEM, message, f"add {link.target} there")
        if link.secret is None and not os.environ.get(SECRET_VARIABLE):
            message = f"they take the secret from {SECRET_VARIABLE}, which is not set here"
            cure = "set it where the client is started, to the content of hook.secret in the "
            yield Finding("requests", WARNING, message, f"{cure}state directory")
        proxies = getproxies()
        if any(proxies.get(name) for name in ("http", "https")) and not proxy_bypass(link.host):
            message = f"a proxy is set here, and the client would ask it for {link.url}"
            yield Finding("requests", WARNING, message, f"add {link.host} to NO_PROXY")


def check_server(seen: Examination) -> Iterator[Finding]:
    """Whether the server that requests go to runs, is this ultramon's, and takes them."""
    for link, layer, _ in _links(seen):
        yield _check_server(seen, link, f"{layer.install_command} --via http")


def _check_server(seen: Examination, link: Link, install: str) -> Finding:
    server = seen.server
    if server.problem is not None:
        return Finding("server", PROBLEM, server.problem, SERVE)
    if server.url is None:
        cure = SERVE if (urlsplit(link.url).port or 0) == 8420 else f"{SERVE} {_options(link)}"
        return Finding("server", PROBLEM, f"none runs: {_missing(seen)}", cure)
    if not _same_place(link.url, server.url):
        message = f"the hooks go to {link.url}, the server listens at {server.url}"
        return Finding("server", PROBLEM, f"{message}: {_missing(seen)}", install)
    secret = os.environ.get(SECRET_VARIABLE, "") if link.secret is None else link.secret
    try:
        status = _ask(link, secret)
    except (OSError, http.client.HTTPException) as error:
        message = f"{link.url} does not answer ({error}): {_missing(seen)}"
        return Finding("server", PROBLEM, message, f"stop it, then {SERVE}")
    if status == 401 and secret:
        message = f"{link.url} does not know the secret of the hooks: {_missing(seen)}"
        return Finding("server", PROBLEM, message, install)
    if status not in (204, 401):
        message = f"{link.url} answers {status} to a hook: {_missing(seen)}"
        return Finding("server", PROBLEM, message, f"stop it, then {SERVE}")
    if seen.version and server.version != seen.version:
        message = f"{link.url} is ultramon {server.version}, this is {seen.version}"
        return Finding("server", WARNING, message, f"stop it, then {SERVE}")
    return Finding("server", OK, f"{link.url} takes the requests of tool calls")


def _options(link: Link) -> str:
    parts = urlsplit(link.url)
    host = "" if parts.hostname == "127.0.0.1" else f"--host {parts.hostname} "
    return f"{host}--port {parts.port or (443 if parts.scheme == 'https' else 80)}"


def _missing(seen: Examination) -> str:
    """Say since when no tool call is told."""
    at = last_request.last(seen.state_directory)
    if at is None:
        return "no tool call has been told yet"
    return f"no tool call has been told since {format_time(at)}"


def _same_place(one: str, other: str) -> bool:
    first, second = urlsplit(one), urlsplit(other)
    names = {first.hostname, second.hostname}
    return (first.scheme, first.port) == (second.scheme, second.port) and (
        len(names) == 1 or all(name is not None and is_loopback(name) for name in names)
    )


def _ask(link: Link, secret: str) -> int:
    """Return the status of an empty call, which a server takes from whoever has the secret.

    Raises:
        OSError: It cannot be reached.
        HTTPException: It does not speak HTTP.
    """
    parts = urlsplit(link.url)
    connection = (
        http.client.HTTPSConnection(
            parts.netloc, timeout=ANSWER_SECONDS, context=ssl.create_default_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=ANSWER_SECONDS)
    )
    try:
        connection.request("POST", PATH, b"", {"Authorization": f"Bearer {secret}"})
        return connection.getresponse().status
    finally:
        connection.close()
