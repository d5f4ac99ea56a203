"""Installs commands as hooks into the one file that a client keeps for each user, and removes them.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from ultramon.errors import ConfigurationError
from ultramon.hosts.hook_settings import HookSettings
from ultramon.hosts.installation import Installation, Removal
from ultramon.hosts.interpreter import lasting_interpreter
from ultramon.hosts.setup import SetupRequest

_USER = "user"


def user_file(folder: str, name: str, variable: str) -> str:
    """Return the absolute path of a client's file, whether it exists or not.

    Args:
        folder: The client's directory, with ``~`` where this user has no home directory.
        name: Of the file in it.
        variable: The environment variable that moves the directory.

    Raises:
        ConfigurationError: There is no such directory.
    """
    if folder.startswith("~"):
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError(variable, None, allowed, "environment")
    return os.path.join(os.path.abspath(folder), name)


def plan_installation(
    settings: HookSettings,
    host: str,
    request: SetupRequest,
    *,
    timeouts: Mapping[str, int] = MappingProxyType({}),
    **members: object,
) -> Installation:
    """Plan one hook for each event of the settings, run by the Python of this program.

    Args:
        settings: The client's file.
        host: Name of the host.
        request: What was asked for.
        timeouts: Of the events that take no longer one, in the client's unit.
        members: Of each hook, beside its type and its command, such as its ``timeout``.

    Raises:
        ConfigurationError: A choice is not allowed, or this program may not last.
        StateError: A file cannot be read.
    """
    _check_layer(host, request)
    interpreter = lasting_interpreter(request.cwd, force=request.force)
    plan = Installation.begin(settings, host, request, interpreter)
    plan.choose_resident(request)
    if plan.installed.enforce is not None:
        settings.events += settings.enforcing_events
    hook = {"type": "command", "command": plan.command(settings.script), **members}
    entries = {event: {"hooks": [hook]} for event in settings.events}
    for event, longest in timeouts.items():
        entries[event] = {"hooks": [{**hook, "timeout": longest}]}
    settings.put_entries(entries)
    plan.after = settings.data
    plan.warn_of_wrapped_hooks()
    return plan


def plan_removal(settings: HookSettings, host: str, request: SetupRequest) -> Removal:
    """Plan to take ultramon's hooks out of the client's file.

    Raises:
        ConfigurationError: There is no such layer.
        StateError: A file cannot be read; it is left alone.
    """
    _check_layer(host, request)
    plan = Removal.begin(settings, host, request.state_directory)
    plan.take_out()
    plan.plan_traces()
    return plan


def refuse_handoff_note(host: str, request: SetupRequest) -> None:
    """Refuse a note for summaries, for a client whose compaction takes no instructions.

    Raises:
        ConfigurationError: There is one.
    """
    if request.choices.handoff_note:
        allowed = f"a host whose compaction takes instructions; {host} takes none from hooks"
        raise ConfigurationError("handoff_note", request.choices.handoff_note[:40], allowed)


def _check_layer(host: str, request: SetupRequest) -> None:
    if request.layer not in (None, _USER):
        allowed = f"{_USER}: the hooks of {host} are those of a user"
        raise ConfigurationError("layer", request.layer, allowed, "argument")
