"""Take an installation out of a settings file, and its traces with the last one.

Planned first, then shown, then done. Never on a hook's path.
"""

from __future__ import annotations

from ultramon.hosts.claude_code.install.settings import (
    USER,
    Settings,
    find_layers,
    layer_path,
)
from ultramon.hosts.install.installation import Removal
from ultramon.hosts.install.plans import SetupRequest


def plan_removal(request: SetupRequest) -> Removal:
    """Work out what taking ultramon out of a layer would change.

    Raises:
        StateCorruptError: The settings file cannot be read as such; it is left alone.
        StateSchemaError: A newer ultramon installed.
        OSError: The system refused to read something.
    """
    settings = Settings(layer_path(request.layer or USER, request.cwd))
    plan = Removal.begin(settings, request)
    plan.take_out()
    plan.plan_traces(installed_elsewhere(settings, request.cwd))
    return plan


def installed_elsewhere(settings: Settings, cwd: str) -> list[str]:
    """Return the paths of the other layers that hold ultramon's entries."""
    return [
        layer.path
        for layer in find_layers(cwd)
        if layer.settings.target != settings.target and layer.settings.holds_ours()
    ]
