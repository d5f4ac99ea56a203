"""Which hosts there are: built in, and those of other distributions. Never on a hook's path.

A distribution offers a host by an entry point of the group ``ultramon.hosts``: its name is that of
the host, its object a `Host`, or a function that returns one.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import NamedTuple

from ultramon.errors import ConfigurationError
from ultramon.hosts.calls.memory import HookMemory
from ultramon.hosts.port import Dialect, Host, Setup, Transcripts
from ultramon.state.record import FIELD_NAMES, StateRecord
from ultramon.system.entry_points import find_entry_points, name_distribution

GROUP = "ultramon.hosts"
_BUILT_IN = {
    "codex": ("ultramon.hosts.codex.host", "CODEX"),
    "gemini": ("ultramon.hosts.gemini.host", "GEMINI"),
    "qwen": ("ultramon.hosts.qwen.host", "QWEN"),  # before the one whose lines look alike
    "opencode": ("ultramon.hosts.opencode.host", "OPENCODE"),
    "copilot": ("ultramon.hosts.copilot.host", "COPILOT"),
    "claude-code": ("ultramon.hosts.claude_code.host", "CLAUDE_CODE"),
    "crush": ("ultramon.hosts.crush.host", "CRUSH"),
    "goose": ("ultramon.hosts.goose.host", "GOOSE"),
    "kilo": ("ultramon.hosts.kilo.host", "KILO"),
    "kimi": ("ultramon.hosts.kimi.host", "KIMI"),
    "mimo": ("ultramon.hosts.mimo.host", "MIMO"),
}


class BrokenHost(NamedTuple):
    """A host that a distribution offers and that cannot be used."""

    name: str
    distribution: str
    problem: str


class FoundHosts(NamedTuple):
    """All hosts there are."""

    usable: list[Host]
    broken: list[BrokenHost]


def find_host(name: str) -> Host:
    """Return a host.

    Raises:
        ConfigurationError: There is none of that name, or it cannot be loaded; names the
            distribution.
    """
    # A package must not take over the hooks of a host unseen.
    if name in _BUILT_IN:
        return _built_in(name)
    entry = find_entry_points(GROUP, _BUILT_IN).get(name)
    if entry is None:
        raise ConfigurationError("host", name, f"one of {', '.join(host_names())}")
    found = _load(entry)
    if isinstance(found, BrokenHost):
        problem = f"another host: that of {found.distribution} {found.problem}"
        raise ConfigurationError("host", name, problem)
    return found


def host_names() -> list[str]:
    """Return the names of all hosts, without loading any."""
    return sorted([*_BUILT_IN, *find_entry_points(GROUP, _BUILT_IN)])


@cache
def find_hosts() -> FoundHosts:
    """Load every host, built-in ones first; looked up once in a process."""
    foreign = find_entry_points(GROUP, _BUILT_IN).values()
    found = [*map(_built_in, _BUILT_IN), *map(_load, foreign)]
    return FoundHosts(
        [one for one in found if isinstance(one, Host)],
        [one for one in found if isinstance(one, BrokenHost)],
    )


def _built_in(name: str) -> Host:
    module, attribute = _BUILT_IN[name]
    host = getattr(import_module(module), attribute)
    assert isinstance(host, Host)
    return host


def _load(entry: EntryPoint) -> Host | BrokenHost:
    try:
        found = entry.load()
        host = found if isinstance(found, Host) else found()
        problem = _problem_of(host, entry.name) or _load_parts(host)
    except Exception as error:  # noqa: BLE001 - foreign code must not break the other hosts
        problem = f"cannot be loaded ({type(error).__name__}: {error})"
    if problem:
        return BrokenHost(entry.name, name_distribution(entry), problem)
    assert isinstance(host, Host)
    return host


def _problem_of(host: object, name: str) -> str:
    if not isinstance(host, Host):
        return f"is of kind {type(host).__name__}, not Host"
    if host.name != name:
        return f"calls itself {host.name!r}"
    if host.memory_field in FIELD_NAMES.values():
        return f"uses {host.memory_field!r}, which is a field of every state"
    return ""


def _load_parts(host: Host) -> str:
    """Have what cannot be loaded fail here; the others are loaded when they are asked for."""
    parts = host.dialect, host.transcripts, host.setup
    kinds = zip(parts, (Dialect, Transcripts, Setup), strict=True)
    wrong = [kind.__name__ for part, kind in kinds if not isinstance(part, kind)]
    return f"has no {', '.join(wrong)}" if wrong else ""


def last_text_of(host: Host | None, record: StateRecord, memory: HookMemory) -> str:
    """Return the last thing an agent said: by its transcript, else as its end kept it."""
    text = memory.last_text or ""
    if host is not None and memory.transcript_path is not None:
        with suppress(OSError, ValueError):
            reading = host.transcripts.read_last_reading(
                memory.transcript_path, is_subagent=record.parent_id is not None
            )
            text = reading.text or text
    return text


def host_of_agent(record: StateRecord) -> tuple[Host | None, HookMemory]:
    """Return an agent's host, None without one, and what its hooks keep in the state."""
    host = next((host for host in find_hosts().usable if host.name == record.host), None)
    return host, HookMemory.of(None if host is None else record.extra.get(host.memory_field))
