"""The hosts that a resident answers for, each loaded when its first session calls.

Standard library only.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import ConfigurationError
from ultramon.hosts.registry import find_host
from ultramon.hosts.resident.hook_answers import HookAnswers
from ultramon.hosts.resident.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ultramon.hosts.port import Host
    from ultramon.hosts.resident.exchange import Exchange, Request

    Program = Callable[[Request, Exchange], Callable[[], None] | None]

HOOK = "hook"


class ServedHost(NamedTuple):
    """One host, and what a resident runs for it."""

    host: Host
    programs: Mapping[str, Program]
    hooks: HookAnswers


class ServedHosts:
    """The hosts whose sessions have called.

    Args:
        directory: The state directory.
        first: Name of the host whose session starts the resident.
    """

    def __init__(self, directory: str, first: str) -> None:
        self._directory = directory
        self._served: dict[str, ServedHost] = {}
        self._lock = threading.Lock()
        self.first = first
        self.find(first)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self._served)

    @property
    def at_once_count(self) -> int:
        """How many calls were answered before their reading was stored."""
        return sum(one.hooks.at_once_count for one in list(self._served.values()))

    def find(self, name: str) -> ServedHost | None:
        """Return a host, loaded if it was not; None where there is none of that name."""
        with self._lock:
            if name not in self._served:
                try:
                    self._served[name] = self._load(name)
                except ConfigurationError:
                    return None
            return self._served[name]

    def _load(self, name: str) -> ServedHost:
        host, turns = find_host(name), Turns()
        hooks = HookAnswers(host, self._directory, turns)
        programs: dict[str, Program] = {HOOK: hooks.answer}
        for program, (module, answers) in host.dialect.resident_programs.items():
            made = getattr(import_module(module), answers)(self._directory, turns)
            programs[program] = made.answer
        return ServedHost(host, programs, hooks)
