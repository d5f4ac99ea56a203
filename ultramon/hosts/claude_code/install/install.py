"""Install into a settings file: planned first, then shown, then done. Planning writes nothing.

Never on a hook's path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ultramon.hosts.claude_code.install.commands import (
    HOOK_SCRIPT,
    SCRIPTS,
)
from ultramon.hosts.claude_code.install.settings import (
    PROJECT,
    USER,
    Layer,
    Settings,
    find_layers,
    layer_path,
)
from ultramon.hosts.install import installation
from ultramon.hosts.install.plans import Offer, SetupRequest
from ultramon.hosts.install.status_line import choose_parts, plan_status_line

_REQUESTS = ("via", "url", "secretIn")
"""In the record of an installation whose tool calls were requests to a server."""
_OURS = "a status line that shows the window"
_STATUS_LINES = {
    "own": f"hooks, and {_OURS}",
    "both": f"hooks, and {_OURS} beside yours",
    "chained": "hooks, and your status line, whose numbers ultramon reads",
}


@dataclass(kw_only=True)
class Installation(installation.Installation):
    """A planned installation.

    Attributes:
        finds_status_line: Whether there is a status line of another tool, and no choice about it
            yet.
    """

    settings: Settings
    finds_status_line: bool = False

    @property
    def contents(self) -> str:
        """Hooks, the status line that is shown, and the process that answers."""
        contents = super().contents
        if self.settings.our_status_line() is None:
            return contents
        return _STATUS_LINES[self.installed.status_line_show] + contents.removeprefix("hooks")

    @property
    def offer(self) -> Offer | None:
        """To show ultramon's status line beside the one that was just found."""
        if not self.finds_status_line or self.installed.status_line_show != "chained":
            return None
        return Offer(
            "A status line is there already. Show ultramon's beside it?", "status_line", "both"
        )

    def details(self) -> dict[str, Any]:
        """Return which status line is shown too."""
        return super().details() | {"statusLine": self.installed.status_line_show}


def plan_installation(request: SetupRequest, interpreter: str) -> Installation:
    """Work out what an installation into a layer would change.

    Args:
        request: What was asked for.
        interpreter: Absolute path of the Python that shall run the hook; see `check_interpreter`.

    Raises:
        StateCorruptError: The settings file cannot be read as such; it is left alone.
        ConfigurationError: A choice is not allowed.
        OSError: The system refused to read something.
    """
    layer = request.layer or USER
    settings = Settings(layer_path(layer, request.cwd))
    plan = Installation.begin(settings, request, interpreter)
    plan.restore_mode(plan.record)
    for name in _REQUESTS:
        plan.record.pop(name, None)
    plan.choose_resident(request)
    waits = plan.installed.enforce is not None
    settings.put_hooks(plan.command(SCRIPTS[HOOK_SCRIPT]), waits=waits)
    layers = find_layers(request.cwd)
    own = [one.settings.target for one in layers].index(settings.target)
    chosen = request.choices.status_line
    found = _replaced_status_line(settings, plan.record, layers[:own])
    others = len(plan.installed.installations) > 1
    is_new = plan_status_line(
        plan, settings, found, chosen, record=plan.record, carries_others=others
    )
    plan.finds_status_line = is_new and chosen is None
    choose_parts(plan.installed, request.choices)
    plan.after = settings.data
    _warn(plan, layer, [*layers[:own], *layers[own + 1 :]])
    return plan


def _replaced_status_line(settings: Settings, record: dict[str, Any], weaker: list[Layer]) -> Any:
    """Return the status line that the host would show here without ultramon's."""
    if settings.our_status_line() is not None:
        return record.get("statusLine")
    # Others that cannot be read are a finding of the doctor; the host does not read them either.
    for shown in (settings, *(layer.settings for layer in reversed(weaker))):
        if shown.get("statusLine") is not None:
            return None if shown.our_status_line() else shown.get("statusLine")
    return None


def _warn(plan: Installation, layer: str, others: list[Layer]) -> None:
    warn = plan.warnings.append
    if plan.settings.disables_hooks:
        warn(f"{plan.path}: disableAllHooks is true: no hook will run, and no status line")
    plan.warn_of_wrapped_hooks()
    if layer == PROJECT:
        warn(
            f"{plan.path} is usually shared, and these commands name paths of this machine; "
            "--local keeps them to yourself"
        )
    for other in others:
        if other.problem:
            warn(f"the {other.name} settings cannot be read: {other.problem}")
            continue
        if other.settings.our_hooks():
            warn(
                f"the {other.name} settings ({other.path}) run ultramon's hook too; "
                f"`ultramon uninstall claude-code --{other.name}` takes it out there"
            )
        if other.settings.disables_hooks:
            warn(f"{other.path}: disableAllHooks is true: no hook runs here")
