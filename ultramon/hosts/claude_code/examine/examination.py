"""The installation in Claude Code's settings, as the doctor finds it. Changes nothing."""

from __future__ import annotations

import os

from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.install.settings import ELSEWHERE, Settings, find_layers, read_layer
from ultramon.hosts.doctor_context import DoctorContext
from ultramon.hosts.install.planned_change import record_of

INSTALL = f"ultramon install {CLAUDE_CODE.name}"
UNINSTALL = f"ultramon uninstall {CLAUDE_CODE.name}"


class Examination(DoctorContext):
    """What the questions about the installation look at, read once.

    Attributes:
        layers: The host's settings here, then others that an installation noted.
        installed: The layers with hooks of ultramon.
        hooks: These hooks, each with its layer.
        stored: The stored choices; None when they are missing or cannot be read.
        stored_problem: Why they cannot be read; None when they can or are missing.
    """

    def __init__(self, context: DoctorContext) -> None:
        self.__dict__.update(context.__dict__)
        self.stored, self.stored_problem = context.choices(CLAUDE_CODE.name)
        self.layers = find_layers(self.cwd)
        known = {os.path.realpath(layer.path) for layer in self.layers}
        for record in self.stored.installations if self.stored else ():
            noted = record.get("settings") if isinstance(record, dict) else None
            if isinstance(noted, str) and os.path.realpath(noted) not in known:
                self.layers.append(read_layer(ELSEWHERE, noted))
        self.installed = [layer for layer in self.layers if layer.settings.our_hooks()]
        self.hooks = [
            (layer, hook) for layer in self.installed for hook in layer.settings.our_hooks()
        ]

    def was_installed(self, settings: Settings) -> bool:
        """Return whether an installation into a settings file is noted, and not undone since."""
        # A project or plugin that was deleted as a whole needs no hooks.
        is_there = settings.original is not None or os.path.isdir(os.path.dirname(settings.target))
        return bool(is_there and self.stored and record_of(self.stored, settings))

    @property
    def installed_at(self) -> float | None:
        """When the hooks were installed, epoch seconds; None when that is not known."""
        return self.stored.installed_at if self.stored and self.installed else None
