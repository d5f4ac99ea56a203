"""Plan a plugin folder of the host, and its removal, instead of a change of its settings.

Hooks only: the host takes no status line from a plugin. Never on a hook's path.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ultramon.errors import ConfigurationError
from ultramon.hosts.claude_code.install.commands import EVENTS, HOOK_SCRIPT, SCRIPTS, entry_for
from ultramon.hosts.claude_code.install.install import Installation
from ultramon.hosts.claude_code.install.settings import Settings
from ultramon.hosts.claude_code.install.uninstall import installed_elsewhere
from ultramon.hosts.install.installation import FOLDERS, Removal
from ultramon.hosts.install.planned_change import PlannedChange
from ultramon.hosts.install.plans import SetupRequest
from ultramon.version import __version__

PLUGIN_NAME = "ultramon"
MANIFEST = os.path.join(".claude-plugin", "plugin.json")
HOOKS = os.path.join("hooks", "hooks.json")
_DESCRIPTION = "Knows how full the context window of every session and subagent is."


def plan_plugin(directory: str, request: SetupRequest, interpreter: str) -> Installation:
    """Work out which files a plugin folder gets.

    Args:
        directory: The folder; missing, empty, or an older plugin of ultramon.
        request: What was asked for.
        interpreter: Absolute path of the Python that shall run the hook; see `check_interpreter`.

    Raises:
        ConfigurationError: The folder holds something else, or a choice is not allowed.
        StateCorruptError: A file of the plugin cannot be read.
    """
    check_plugin_directory(directory)
    manifest, hooks = _files(directory)
    plan = Installation.begin(hooks, request, interpreter)
    plan.record["backup"] = plan.backup = None
    plan.record.pop(FOLDERS, None)  # a removal deletes those of a plugin whoever made them
    plan.choose_resident(request)
    command, waits = plan.command(SCRIPTS[HOOK_SCRIPT]), plan.installed.enforce is not None
    entries = {event: [entry_for(event, command, waits=waits)] for event in EVENTS}
    plan.after = _encode({"description": _DESCRIPTION, "hooks": entries})
    about = {"name": PLUGIN_NAME, "version": __version__, "description": _DESCRIPTION}
    plan.beside.append(PlannedChange(settings=manifest, after=_encode(about)))
    return plan


def plan_plugin_removal(directory: str, request: SetupRequest) -> Removal:
    """Work out what taking a plugin folder away would delete: ultramon's files, and no others.

    Raises:
        ConfigurationError: The folder holds something else.
        StateCorruptError: A file of the plugin cannot be read.
    """
    check_plugin_directory(directory)
    manifest, hooks = _files(directory)
    plan = Removal.begin(hooks, request)
    plan.beside.append(PlannedChange(settings=manifest))
    folders = [os.path.dirname(file.target) for file in (manifest, hooks)]
    plan.directories = [*folders, os.path.realpath(directory)]
    plan.plan_traces(installed_elsewhere(hooks, request.cwd))
    return plan


def check_plugin_directory(directory: str) -> None:
    """Make sure that a folder is free, or holds ultramon's plugin.

    Raises:
        ConfigurationError: It holds something else, or is no directory.
    """
    allowed = "a directory that is missing, empty, or holds ultramon's plugin"
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError("plugin", directory, f"{allowed}: {error.strerror}") from error
    if names and Settings(os.path.join(directory, MANIFEST)).get("name") != PLUGIN_NAME:
        raise ConfigurationError("plugin", directory, allowed)


def _files(directory: str) -> tuple[Settings, Settings]:
    return (
        Settings(os.path.join(directory, MANIFEST)),
        Settings(os.path.join(directory, HOOKS)),
    )


def _encode(content: dict[str, Any]) -> bytes:
    return f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()
