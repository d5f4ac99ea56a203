"""What `ultramon install` and `uninstall` ask of Claude Code: a layer of settings, or a plugin."""

from __future__ import annotations

from ultramon.hosts.claude_code.setup import install, plugin, uninstall
from ultramon.hosts.interpreter import lasting_interpreter
from ultramon.hosts.setup import Plan, SetupRequest


def plan_installation(request: SetupRequest) -> Plan:
    """Plan an installation that runs the Python of this program.

    Raises:
        ConfigurationError: A choice is not allowed, or this program may not last.
        StateError: A file cannot be read.
    """
    interpreter = lasting_interpreter(request.cwd, force=request.force)
    if request.plugin is None:
        return install.plan_installation(request, interpreter)
    return plugin.plan_plugin(request.plugin, request, interpreter)


def plan_removal(request: SetupRequest) -> Plan:
    """Plan to take an installation out.

    Raises:
        ConfigurationError: The plugin folder holds something else.
        StateError: A file cannot be read.
    """
    if request.plugin is None:
        return uninstall.plan_removal(request)
    return plugin.plan_plugin_removal(request.plugin, request)
