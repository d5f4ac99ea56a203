"""The file of the plugin, in the folder of the user or of a project.

Never on a hook's path.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ultramon.hosts.install.hook_commands import (
    HookScript,
    OurCommand,
    package_directory,
    recognise,
)
from ultramon.hosts.install.hook_settings import HookSettings, OurHook
from ultramon.hosts.install.json_edit import JsonText
from ultramon.hosts.opencode.host import OPENCODE

HOOK = HookScript("opencode", "hook.py", ("hook", OPENCODE.name), f"{OPENCODE.name}.ultramon-hook")
FILE_NAME = os.path.join("plugin", "ultramon.js")
_MARK = b"// Written by `ultramon install opencode`"
_PLACE = "__ULTRAMON__"
_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin.js")
_EVENT = "plugin"


class PluginFile(HookSettings):
    """A file that ultramon writes as a whole, handled as settings with one hook.

    Args:
        path: The file; it may be missing.
        data: As in `HookSettings`.

    Attributes:
        choices: Path of the stored choices, which the plugin names; to be set before it is written.
    """

    script = HOOK
    events = (_EVENT,)
    choices = ""
    _written: bytes | None = None

    def _decode(self, data: bytes) -> tuple[str, JsonText]:
        return "", JsonText("{}")

    @property
    def data(self) -> bytes:
        """The bytes that the file shall hold."""
        return (self.original or b"") if self._written is None else self._written

    def our_hooks(self) -> list[OurHook]:
        """Return what the plugin runs; empty where the file is another one."""
        if not self.data.startswith(_MARK):
            return []
        return [OurHook(_EVENT, (), "", self._command())]

    def _command(self) -> OurCommand | None:
        for line in self.data.decode("utf-8", "replace").splitlines():
            try:
                command = json.loads(line.partition("=")[2])["command"]
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            return recognise({"command": command}, self.script)
        return None

    @property
    def is_current(self) -> bool:
        """Whether it is as this version writes it, whatever it names."""
        before, after = _source().encode().split(_PLACE.encode())
        named = self.data.removeprefix(before).removesuffix(after)
        return self.data == before + named + after and b"\n" not in named

    def wrapped_hooks(self) -> list[str]:
        """Return nothing: a plugin of another tool is another file."""
        return []

    def put_entries(self, entries: dict[str, dict[str, Any]]) -> None:
        """Write the plugin, which runs the command of its one entry."""
        ours = {
            "command": entries[_EVENT]["hooks"][0]["command"],
            "choices": self.choices,
            # As a forwarder says it: the resident answers to its own code only.
            "package": os.path.join(package_directory(), "ultramon", ""),
        }
        self._written = _source().replace(_PLACE, json.dumps(ours)).encode()

    def take_out(self, record: dict[str, Any], before: HookSettings) -> None:
        """Leave nothing of the plugin."""
        self._written = b""

    def says_the_same_as(self, data: bytes) -> bool:
        """Return true: what was there before comes back as a whole."""
        return True


def _source() -> str:
    with open(_SOURCE, encoding="utf-8") as stream:
        return stream.read()
