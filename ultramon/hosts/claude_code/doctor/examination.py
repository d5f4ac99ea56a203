"""The installation in Claude Code's settings, as the doctor finds it. Changes nothing."""

from __future__ import annotations

import os
from typing import NamedTuple

from ultramon.errors import StateCorruptError
from ultramon.hosts.claude_code import NAME
from ultramon.hosts.claude_code.setup.planned_change import record_of
from ultramon.hosts.claude_code.setup.settings import OurHook, Settings, find_layers
from ultramon.hosts.doctor import DoctorContext

INSTALL = f"ultramon install {NAME}"
UNINSTALL = f"ultramon uninstall {NAME}"
ELSEWHERE = "other"


class SeenLayer(NamedTuple):
    """A settings file as the doctor found it."""

    name: str
    """``user``, ``project``, ``local``, or ``other`` for one that only an installation noted."""
    path: str
    settings: Settings | None
    problem: str | None

    def command(self, verb: str) -> str:
        """Return `INSTALL` or `UNINSTALL` for this file."""
        return verb if self.name in ("user", ELSEWHERE) else f"{verb} --{self.name}"


class Examination(DoctorContext):
    """What the questions about the installation look at, read once.

    Attributes:
        layers: The client's settings here, then others that an installation noted.
        installed: The layers with hooks of ultramon, and their settings.
        hooks: These hooks, each with its layer.
        stored: The stored choices; None when they are missing or cannot be read.
        stored_problem: Why they cannot be read; None when they can or are missing.
    """

    def __init__(self, context: DoctorContext) -> None:
        self.__dict__.update(context.__dict__)
        self.stored, self.stored_problem = context.choices(NAME)
        self.layers = [_look_at(layer.name, layer.path) for layer in find_layers(self.cwd)]
        known = {os.path.realpath(layer.path) for layer in self.layers}
        for record in self.stored.installations if self.stored else ():
            noted = record.get("settings") if isinstance(record, dict) else None
            if isinstance(noted, str) and os.path.realpath(noted) not in known:
                self.layers.append(_look_at(ELSEWHERE, noted))
        self.installed: list[tuple[SeenLayer, Settings]] = []
        self.hooks: list[tuple[SeenLayer, OurHook]] = []
        for layer in self.layers:
            hooks = layer.settings.our_hooks() if layer.settings else []
            if layer.settings and hooks:
                self.installed.append((layer, layer.settings))
                self.hooks += [(layer, hook) for hook in hooks]

    def was_installed(self, settings: Settings) -> bool:
        """Return whether an installation into a settings file is noted, and not undone since."""
        # A project or plugin that was deleted as a whole needs no hooks.
        is_there = settings.original is not None or os.path.isdir(os.path.dirname(settings.target))
        return is_there and record_of(self.stored, settings) is not None

    @property
    def installed_at(self) -> float | None:
        """When the hooks were installed, epoch seconds; None when that is not known."""
        return self.stored.installed_at if self.stored and self.installed else None


def _look_at(name: str, path: str) -> SeenLayer:
    try:
        return SeenLayer(name, path, Settings(path), None)
    except (StateCorruptError, OSError) as error:
        return SeenLayer(name, path, None, str(error))
