"""The files of instructions of hosts that do not record them: as they are on the disk now."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.context.estimator import estimate_tokens
from ultramon.hosts.registry import find_host
from ultramon.hosts.transcripts.jsonl import open_transcript

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MAX_BYTES = 1 << 20


class MemoryFiles:
    """Looks once at each file and each project.

    Args:
        environ: Variables that move a host's directory.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._tokens: dict[str, int] = {}
        self._known: dict[tuple[str, str | None], Sequence[tuple[str, int]]] = {}

    def __call__(self, host: str, project: str | None) -> Sequence[tuple[str, int]]:
        """Return the files that a host would load in a project, with their estimated tokens."""
        key = host, project
        if key not in self._known:
            paths = find_host(host).setup.memory_files(self._environ, project)
            sizes = [(path, self._tokens_of(path)) for path in paths]
            self._known[key] = [one for one in sizes if one[1]]
        return self._known[key]

    @property
    def asked(self) -> list[tuple[str, str | None]]:
        """The hosts and projects that were looked at so far."""
        return list(self._known)

    def stamps(self, asked: Iterable[tuple[str, str | None]]) -> list[list[Any]]:
        """Return what changes when a file does that hosts would load in projects, as JSON.

        Args:
            asked: As `asked` has them.

        Raises:
            ConfigurationError: A host is not known.
        """
        found: list[list[Any]] = []
        for host, project in asked:
            for path in find_host(host).setup.memory_files(self._environ, project):
                with suppress(OSError, ValueError):
                    one = os.stat(path)
                    found.append([path, one.st_ino, one.st_size, one.st_mtime_ns])
        return found

    def _tokens_of(self, path: str) -> int:
        if path not in self._tokens:
            text = ""
            with suppress(OSError, ValueError):
                # A host follows a link, as from CLAUDE.md to AGENTS.md.
                fd, _ = open_transcript(os.path.realpath(path))
                with open(fd, "rb") as stream:
                    text = stream.read(_MAX_BYTES).decode("utf-8", "replace")
            self._tokens[path] = round(estimate_tokens(text)) if text else 0
        return self._tokens[path]
