"""The setup of opencode: its plugin, installed, removed and examined.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ultramon.hosts.doctor_context import ok, warning
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.installed_choices import choices_path
from ultramon.hosts.opencode import configuration
from ultramon.hosts.opencode.configuration import CONFIG_VARIABLE, config_directory
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.opencode.plugin_file import FILE_NAME, PluginFile
from ultramon.hosts.user_hooks import UserHooks, user_file
from ultramon.system.findings import Finding
from ultramon.system.processes import working_directory

PROJECT = "project"
PROJECT_FOLDER = ".opencode"
PACKAGE = os.path.join("node_modules", "@opencode-ai", "plugin")
_FETCHES = (
    "with any plugin opencode itself fetches @opencode-ai/plugin once, into the folder that holds"
    " it; offline each start waits about 70 s for that"
)
_CURE = "look for ultramon.js in the log of `opencode --print-logs`, and at --pure or OPENCODE_PURE"


class OpencodeSetup(UserHooks):
    """One file in the folder of plugins, of the user or of a project."""

    own_options = ("resident", "enforce", "enforce_dry_run")
    host = OPENCODE
    members: Mapping[str, Any] = {}
    layers = ("user", PROJECT)
    silence_cure = _CURE

    def load(self) -> PluginFile:
        """Return the user's plugin; where that is not there, a project's in this directory."""
        user, cwd = _user_plugin(), working_directory()
        if cwd is None or user.holds_ours():
            return user
        project = _project_plugin(cwd)
        return project if project.holds_ours() else user

    def load_layer(self, request: SetupRequest) -> PluginFile:
        """Return the file of the user or of the project; raises as `load`."""
        found = _project_plugin(request.cwd) if request.layer == PROJECT else _user_plugin()
        found.choices = choices_path(request.state_directory, OPENCODE.name)
        return found

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan the plugin; note what the client does by itself where there is any."""
        plan = super().plan_installation(request)
        if not os.path.isdir(os.path.join(_folder_of(plan.settings), PACKAGE)):
            plan.notes.append(_FETCHES)
        return plan

    def begun_since(self, since: float) -> dict[str, float]:
        """Return the sessions that began since a time, by one query."""
        from ultramon.hosts.opencode.database import sessions_since

        path = configuration.OPENCODE.database_path(os.environ)
        with suppress(OSError, ValueError):
            return {} if path is None else sessions_since(path, since)
        return {}

    def check(self, settings: HookSettings) -> Iterator[Finding]:
        """Ask whether the plugin is that of this version, and has what the client fetches."""
        if isinstance(settings, PluginFile) and not settings.is_current:
            message = f"{settings.path}: is not as this version of ultramon writes it"
            yield warning("opencode plugin", message, "ultramon install opencode")
        folder = _folder_of(settings)
        if os.path.isdir(os.path.join(folder, PACKAGE)):
            yield ok("opencode package", f"{os.path.join(folder, PACKAGE)} is there")
        else:
            cure = "start opencode once with a network"
            yield warning("opencode package", f"{folder}: {_FETCHES}", cure)

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that it would load in a project now, as `port.Setup`."""
        yield os.path.join(config_directory(environ), "AGENTS.md")
        yield from files_above(project, "AGENTS.md")

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "opencode", "--prompt", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "opencode", "-s", session_id


SETUP = OpencodeSetup()


def _folder_of(settings: HookSettings) -> str:
    """Return opencode's own folder, in which that of the plugins lies."""
    return os.path.dirname(os.path.dirname(settings.target))


def _user_plugin() -> PluginFile:
    return PluginFile(user_file(config_directory(os.environ), FILE_NAME, CONFIG_VARIABLE))


def _project_plugin(cwd: str) -> PluginFile:
    return PluginFile(os.path.join(os.path.abspath(cwd), PROJECT_FOLDER, FILE_NAME))
