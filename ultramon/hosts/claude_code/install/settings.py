"""The host's settings files: which there are, ultramon's entries in them, and replacing them.

Only ultramon's own entries are ever touched; everything else keeps its bytes.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.claude_code.install.commands import (
    EVENTS,
    HOOK_SCRIPT,
    SCRIPTS,
    STATUS_LINE_SCRIPT,
    entry_for,
)
from ultramon.hosts.claude_code.install.http_hooks import Link, recognise_request
from ultramon.hosts.install.status_line import STATUS_LINE, StatusLineSettings

USER, PROJECT, LOCAL = "user", "project", "local"
LAYERS = (USER, PROJECT, LOCAL)
"""From weak to strong: hooks of all of them run, of status lines the strongest one is shown."""
ELSEWHERE = "other"


class Layer(NamedTuple):
    """A settings file that the host reads, as it was found."""

    name: str
    """``user``, ``project``, ``local``, or ``other`` for one that only an installation noted."""
    path: str
    settings: Settings
    """As those of a missing file where it cannot be read."""
    problem: str
    """Why it cannot be read; empty when it can."""

    def command(self, verb: str) -> str:
        """Return a command, such as ``ultramon install claude-code``, for this file."""
        return verb if self.name in (USER, ELSEWHERE) else f"{verb} --{self.name}"


def config_directory() -> str:
    """Return the host's configuration directory: ``CLAUDE_CONFIG_DIR``, else ``~/.claude``.

    Raises:
        ConfigurationError: The variable is not set and this user has no home directory.
    """
    path = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
    if path.startswith("~"):
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError("CLAUDE_CONFIG_DIR", None, allowed, "environment")
    return os.path.abspath(path)


def layer_path(name: str, cwd: str) -> str:
    """Return the settings file of a layer, whether it exists or not."""
    if name == USER:
        return os.path.join(config_directory(), "settings.json")
    file_name = "settings.json" if name == PROJECT else "settings.local.json"
    return os.path.join(os.path.abspath(cwd), ".claude", file_name)


def find_layers(cwd: str) -> list[Layer]:
    """Read the layers from weak to strong, each file once.

    In the home directory the project's settings are the user's.
    """
    layers: dict[str, Layer] = {}
    for name in LAYERS:
        path = layer_path(name, cwd)
        layers.setdefault(os.path.realpath(path), read_layer(name, path))
    return list(layers.values())


def read_layer(name: str, path: str) -> Layer:
    """Read a settings file, or note why that does not work."""
    try:
        return Layer(name, path, Settings(path), "")
    except (StateCorruptError, OSError) as error:
        return Layer(name, path, Settings(path, b""), str(error))


class Settings(StatusLineSettings):
    """One settings file of Claude Code: hooks, and the status line."""

    script = SCRIPTS[HOOK_SCRIPT]
    line_script = SCRIPTS[STATUS_LINE_SCRIPT]
    events = EVENTS
    own_keys = (STATUS_LINE, "disableAllHooks")

    def __init__(self, path: str, data: bytes | None = None) -> None:
        super().__init__(path, data)
        links = [hook.runs for hook in self.our_hooks() if isinstance(hook.runs, Link)]
        self.secrets = {link.secret for link in links if link.secret}

    def recognise(self, hook: object) -> object:
        """Return what a hook runs, or where it goes as a request; None = it is another tool's."""
        return super().recognise(hook) or recognise_request(hook)

    @property
    def disables_hooks(self) -> bool:
        """Whether the file turns all hooks off, and with them the status line."""
        return self.get("disableAllHooks") is True

    def put_hooks(self, command: str, *, waits: bool = False) -> None:
        """Put ultramon's hooks into the file, once for each event.

        Args:
            command: What they run.
            waits: As for `entry_for`.
        """
        self.put_entries({event: entry_for(event, command, waits=waits) for event in EVENTS})
