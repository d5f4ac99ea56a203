"""What the doctor looks at, and what it answers with. Looks only, changes nothing."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ultramon.errors import StateCorruptError, StateError
from ultramon.hosts.claude_code.host import NAME
from ultramon.hosts.claude_code.setup.planned_change import record_of
from ultramon.hosts.claude_code.setup.settings import Settings, find_layers
from ultramon.hosts.installed_choices import InstalledChoices, choices_path

OK, WARNING, PROBLEM = "ok", "warning", "problem"
INSTALL = "ultramon install claude-code"
UNINSTALL = "ultramon uninstall claude-code"
ELSEWHERE = "other"


class Finding(NamedTuple):
    """The answer to one question.

    Attributes:
        check: What was looked at.
        status: ``ok``, ``warning`` or ``problem``.
        message: What was found.
        cure: What to do; None when there is nothing to do.
    """

    check: str
    status: str
    message: str
    cure: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding as ``doctor --json`` prints it."""
        return self._asdict()


class SeenLayer(NamedTuple):
    """A settings file as the doctor found it."""

    name: str
    """``user``, ``project``, ``local``, or ``other`` for one that only our records name."""
    path: str
    settings: Settings | None
    problem: str | None

    @property
    def install_command(self) -> str:
        """The command that installs into this file."""
        return INSTALL + self._option

    @property
    def uninstall_command(self) -> str:
        """The command that takes an installation out of this file."""
        return UNINSTALL + self._option

    @property
    def _option(self) -> str:
        return "" if self.name in ("user", ELSEWHERE) else f" --{self.name}"


class SeenServer(NamedTuple):
    """The server of the state directory, as it describes itself."""

    url: str | None
    """Where it listens; None when none runs."""
    version: str | None = None
    problem: str | None = None
    """Why nothing is known of it; None when that is not so."""


class DoctorContext:
    """Everything that the checks look at, read once.

    Attributes:
        cwd: The directory whose layers count.
        state_directory: Where states and choices are kept.
        now: Epoch seconds.
        layers: The client's settings here, then others that an installation noted.
        choices: The stored choices; None when they are missing or cannot be read.
        choices_problem: Why they cannot be read; None when they can or are missing.
        server: The server of the state directory; None = none runs.
        version: Of this ultramon; empty = not to be compared.
    """

    def __init__(
        self,
        cwd: str,
        state_directory: str,
        now: float,
        *,
        server: SeenServer | None = None,
        version: str = "",
    ) -> None:
        self.cwd = cwd
        self.state_directory = os.path.abspath(state_directory)
        self.now = now
        self.server = server or SeenServer(None)
        self.version = version
        self.choices: InstalledChoices | None = None
        self.choices_problem: str | None = None
        path = choices_path(state_directory, NAME)
        try:
            self.choices = InstalledChoices.load(path) if os.path.lexists(path) else None
        except (StateError, OSError) as error:
            self.choices_problem = str(error)
        self.layers = [_look_at(layer.name, layer.path) for layer in find_layers(cwd)]
        known = {os.path.realpath(layer.path) for layer in self.layers}
        for record in self.choices.installations if self.choices else ():
            noted = record.get("settings") if isinstance(record, dict) else None
            if isinstance(noted, str) and os.path.realpath(noted) not in known:
                self.layers.append(_look_at(ELSEWHERE, noted))

    @property
    def installed(self) -> list[tuple[SeenLayer, Settings]]:
        """The layers with hooks of ours."""
        return [
            (layer, layer.settings)
            for layer in self.layers
            if layer.settings is not None and layer.settings.our_hooks()
        ]

    def was_installed(self, settings: Settings) -> bool:
        """Return whether an installation into a settings file is noted, and not undone since."""
        # A project or plugin that was deleted as a whole needs no hooks.
        is_there = settings.original is not None or os.path.isdir(os.path.dirname(settings.target))
        return is_there and record_of(self.choices, settings) is not None

    @property
    def installed_at(self) -> float | None:
        """When the hooks were installed, epoch seconds; None when that is not known."""
        return self.choices.installed_at if self.choices and self.installed else None


def _look_at(name: str, path: str) -> SeenLayer:
    try:
        return SeenLayer(name, path, Settings(path), None)
    except (StateCorruptError, OSError) as error:
        return SeenLayer(name, path, None, str(error))
