"""The setup of Claude Code: hooks and a status line in a layer of its settings, or a plugin.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from ultramon.hosts.claude_code.compaction_trigger import config_directory
from ultramon.hosts.claude_code.examine.settings_checks import examine
from ultramon.hosts.claude_code.install import install, plugin, uninstall
from ultramon.hosts.doctor_context import DoctorContext
from ultramon.hosts.examine.memory_files import files_above
from ultramon.hosts.install.interpreter import lasting_interpreter
from ultramon.hosts.install.plans import Plan, SetupRequest
from ultramon.hosts.port import Setup
from ultramon.system.findings import Finding


class ClaudeCodeSetup(Setup):
    """Installs, removes and examines."""

    own_options = (
        "plugin", "status_line", "status_line_parts", "resident", "enforce", "enforce_dry_run",
    )  # fmt: skip

    def plan_installation(self, request: SetupRequest) -> Plan:
        """Plan an installation that runs the Python of this program.

        Raises:
            ConfigurationError: A choice is not allowed, or this program may not last.
            StateError: A file cannot be read.
        """
        interpreter = lasting_interpreter(request.cwd, force=request.force)
        if request.plugin is None:
            return install.plan_installation(request, interpreter)
        return plugin.plan_plugin(request.plugin, request, interpreter)

    def plan_removal(self, request: SetupRequest) -> Plan:
        """Plan to take an installation out.

        Raises:
            ConfigurationError: The plugin folder holds something else.
            StateError: A file cannot be read.
        """
        if request.plugin is None:
            return uninstall.plan_removal(request)
        return plugin.plan_plugin_removal(request.plugin, request)

    def examine(self, context: DoctorContext) -> Iterable[Finding]:
        """Answer the questions about settings, launchers, requests and transcripts."""
        return examine(context)

    def memory_files(self, environ: Mapping[str, str], project: str | None) -> Iterator[str]:
        """Yield the files of instructions that it would load in a project now, as `port.Setup`."""
        yield os.path.join(config_directory(environ), "CLAUDE.md")
        yield from files_above(project, "CLAUDE.md", "CLAUDE.local.md", above_repository=True)

    def continue_words(self, prompt: str) -> tuple[str, ...]:
        """Return the command that begins a session with a first message."""
        return "claude", prompt

    def resume_words(self, session_id: str) -> tuple[str, ...]:
        """Return the command that resumes a session."""
        return "claude", "--resume", session_id


SETUP = ClaudeCodeSetup()
