"""Where states are kept. `open_backend` is the only place that chooses one."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from ultramon.environment import state_directory
from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from ultramon.backends.base import Backend

_log = logging.getLogger("ultramon.backend")
_opened: dict[str, Backend] = {}
_lock = threading.Lock()


def open_backend(url: str | None = None) -> Backend:
    """Open the store of agent states; the same URL gives the same object within a process.

    Args:
        url: ``file:///absolute/directory``, ``memory:`` (one per process; for a private one make
            a `MemoryBackend`), or a plain directory path. None = ``ULTRAMON_BACKEND``, else the
            state directory (``ULTRAMON_STATE_DIR``, else the platform's for this user).

    Raises:
        ConfigurationError: The URL names no backend.
    """
    import os

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


def _create(url: str, source: str) -> Backend:
    if url == "memory:":
        from ultramon.backends.memory import MemoryBackend

        return MemoryBackend()
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        from ultramon.backends.local import LocalBackend

        return LocalBackend(unquote(parts.path))
    if not parts.scheme and parts.path:
        from ultramon.backends.local import LocalBackend

        return LocalBackend(url)
    raise ConfigurationError("backend", url, "file:///directory or memory:", source)
