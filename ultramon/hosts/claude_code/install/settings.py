"""The host's settings files: which there are, ultramon's entries in them, and replacing them.

Only ultramon's own entries are ever touched; everything else keeps its bytes.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.hosts.claude_code.install.commands import (
    EVENTS,
    HOOK_SCRIPT,
    SCRIPTS,
    STATUS_LINE_SCRIPT,
    entry_for,
    recognise,
)
from ultramon.hosts.claude_code.install.http_hooks import Link, recognise_request
from ultramon.hosts.install.hook_commands import OurCommand
from ultramon.hosts.install.hook_settings import HookSettings

USER, PROJECT, LOCAL = "user", "project", "local"
LAYERS = (USER, PROJECT, LOCAL)
"""From weak to strong: hooks of all of them run, of status lines the strongest one is shown."""
ELSEWHERE = "other"
REFRESH_SECONDS = 10
"""How often ultramon's line is drawn while nothing happens: no hook reports an interruption."""


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


class Settings(HookSettings):
    """One settings file of Claude Code: hooks, and the status line."""

    script = SCRIPTS[HOOK_SCRIPT]
    events = EVENTS
    own_keys = ("statusLine", "disableAllHooks")

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

    def our_status_line(self) -> OurCommand | None:
        """Return what the status line runs if it is ultramon's."""
        return recognise(self.get("statusLine"), STATUS_LINE_SCRIPT)

    def holds_ours(self) -> bool:
        """Return whether anything in the file is ultramon's."""
        return super().holds_ours() or self.our_status_line() is not None

    def put_hooks(self, command: str, *, waits: bool = False) -> None:
        """Put ultramon's hooks into the file, once for each event.

        Args:
            command: What they run.
            waits: As for `entry_for`.
        """
        self.put_entries({event: entry_for(event, command, waits=waits) for event in EVENTS})

    def put_status_line(self, command: str) -> None:
        """Make the status line run a command; the rest of its block stays."""
        current = self.get("statusLine")
        block: dict[str, object] = {"type": "command", "command": command}
        if not self.document.has("statusLine"):
            # Where another tool has one, that is not run more often than its owner wanted.
            self.document.add((), {**block, "refreshInterval": REFRESH_SECONDS}, "statusLine")
        elif not isinstance(current, dict) or "command" not in current or "args" in current:
            self.document.replace(("statusLine",), block)
        elif current.get("command") != command:
            self.document.replace(("statusLine", "command"), command)

    def restore_status_line(self, before: Any, *, existed: bool) -> None:
        """Put back what the status line ran before ultramon's.

        Args:
            before: The block as it was.
            existed: Whether there was one; else ultramon's is taken out.
        """
        if self.our_status_line() is None:
            return
        if not existed:
            self.document.remove(("statusLine",))
        elif isinstance(before, dict) and isinstance(before.get("command"), str):
            # What a person changed beside it since, such as the padding, stays.
            self.document.replace(("statusLine", "command"), before["command"])
        else:
            self.document.replace(("statusLine",), before)

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Take all of ultramon's entries out; the status line that they replaced comes back."""
        super().take_out(record, before)
        if not record:
            remember_status_line(record, before)
        self.restore_status_line(record.get("statusLine"), existed="statusLine" in record)

    def remember_replaced(self, record: dict[str, Any], before: HookSettings) -> None:
        """Note the status line that ultramon's replaced."""
        if "statusLine" not in record:
            remember_status_line(record, before)


def remember_status_line(record: dict[str, Any], settings: HookSettings) -> None:
    """Note the block in the settings; without one nothing is noted."""
    record.pop("statusLine", None)
    if settings.document.has("statusLine"):
        record["statusLine"] = settings.get("statusLine")
