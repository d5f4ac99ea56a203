"""Opens the store that a URL names; the only place that chooses one."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from ultramon.errors import ConfigurationError, MissingExtraError, UltramonError
from ultramon.system.environment import state_directory

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from ultramon.backends.base import Backend

GROUP = "ultramon.backends"
"""Entry points of other distributions: the name is a URL scheme, the object opens a URL of it."""
_BUILT_IN = ("file", "memory", "postgres", "postgresql")
_log = logging.getLogger("ultramon.backend")
_opened: dict[str, Backend] = {}
_lock = threading.Lock()


def open_backend(url: str | None = None) -> Backend:
    """Open the store of agent states; the same URL gives the same object within a process.

    Args:
        url: ``file:///absolute/directory``, ``memory:`` (one per process; for a private one make
            a `MemoryBackend`), ``postgresql://user@host/database`` (extra ``postgres``), or a plain
            directory path that is absolute or begins with ``.`` or ``~``; or one whose scheme an
            installed distribution offers as an entry point `GROUP`. None = ``ULTRAMON_BACKEND``,
            else the state directory (``ULTRAMON_STATE_DIR``, else the platform's for this user).

    Raises:
        ConfigurationError: The URL names no backend.
        MissingExtraError: The driver for it is not installed.
    """
    source = "argument"
    if url is None:
        source = "ULTRAMON_BACKEND"
        url = os.environ.get("ULTRAMON_BACKEND") or f"file://{quote(state_directory())}"
    with _lock:
        backend = _opened.get(url)
        if backend is None:
            backend = _opened[url] = _create(url, source)
            _log.info("agent states are kept in %s", backend.url)
        return backend


def as_backend(backend: Backend | str | None) -> Backend:
    """Return a backend that is given as itself, as its URL, or as None for `open_backend`'s."""
    return open_backend(backend) if backend is None or isinstance(backend, str) else backend


def _create(url: str, source: str) -> Backend:
    if url == "memory:":
        from ultramon.backends.memory import MemoryBackend

        return MemoryBackend()
    allowed = "file:///directory, memory:, postgresql://user@host/database or an absolute path"
    if os.path.isabs(url) or url.startswith((".", "~")):
        from ultramon.backends.local.backend import LocalBackend

        return LocalBackend(os.path.expanduser(url))
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError("backend", "…", allowed, source) from error
    if parts.scheme in ("postgresql", "postgres"):
        try:
            return _open_postgres(url)
        except ConfigurationError as error:
            raise ConfigurationError(error.name, error.value, error.allowed, source) from error
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path[:1] == "/":
        from ultramon.backends.local.backend import LocalBackend

        return LocalBackend(unquote(parts.path))
    from ultramon.system.entry_points import find_entry_points

    # What stands before an @ may hold a password, which belongs into no error.
    shown = url if "@" not in url else f"{parts.scheme}://…"
    # Built-in schemes are never looked up: `file:` of another package could swallow states.
    offered = find_entry_points(GROUP, _BUILT_IN)
    if parts.scheme in offered:
        return _open_foreign(offered[parts.scheme], url, source, shown)
    if offered:
        allowed += f", or one of {', '.join(f'{scheme}:' for scheme in sorted(offered))}"
    raise ConfigurationError("backend", shown, allowed, source)


def _open_foreign(entry: EntryPoint, url: str, source: str, shown: str) -> Backend:
    """Open a store of another distribution."""
    from ultramon.backends.toolkit import missing_members
    from ultramon.system.entry_points import name_distribution

    offered_by = name_distribution(entry)
    try:
        backend = entry.load()(url)
    except UltramonError:
        raise
    except Exception as error:
        problem = f"another store: that of {offered_by} cannot be opened"
        problem += f" ({type(error).__name__}: {error})"
        raise ConfigurationError("backend", shown, problem, source) from error
    lacking = missing_members(backend)
    if lacking:
        problem = f"another store: that of {offered_by} lacks {', '.join(lacking)}"
        raise ConfigurationError("backend", shown, problem, source)
    opened: Backend = backend
    return opened


def _open_postgres(url: str) -> Backend:
    try:
        from ultramon.backends.postgres.backend import PostgresBackend
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtraError("the PostgreSQL backend", "psycopg", "postgres") from error
    return PostgresBackend(url)
