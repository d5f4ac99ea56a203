"""Starts the headless Qwen Code with hooks for one run: nothing is installed anywhere.

The client merges a file of defaults into all other settings, the hooks of each event among them;
a variable names that file.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.hosts.hook_commands import command_line, script_path
from ultramon.hosts.interpreter import this_interpreter
from ultramon.hosts.qwen.configuration import DEFAULTS_VARIABLE, system_defaults_path
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.qwen.setup import HOOK, MILLISECONDS, OFF, QwenSettings, is_off, settings
from ultramon.relay.launchers.gemini_arguments import (
    REFUSED_BY_BOTH,
    WAITS,
    GeminiArgumentsLauncher,
)
from ultramon.relay.launchers.hooked_client import OWN, UNSEEN
from ultramon.relay.launchers.port import run_directory
from ultramon.relay.launchers.qwen_output import read_outcome
from ultramon.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall

_FILE = "qwen.defaults.json"
REFUSED_ARGUMENTS = REFUSED_BY_BOTH | {
    "--input-format": OWN,
    "-c": OWN,
    "--continue": OWN,
    "--fork-session": OWN,
    "--chat-recording": "hooks read the session file",
    "--json-schema": "the last message is the notes for the next context",
    "--input-file": WAITS,
    "--bare": UNSEEN,
    "--safe-mode": UNSEEN,
}


class QwenLauncher(GeminiArgumentsLauncher):
    """Launcher of the real client; its arguments are those of `HookedClientLauncher`."""

    host = QWEN
    product = "Qwen Code"
    usual_program = "qwen"
    tested_version = (0, 24, 4)
    refused_arguments = REFUSED_ARGUMENTS
    own_permissions = "your settings and arguments"
    unanswered = "what would prompt is denied"
    can_enforce = True
    outer_variables = ("QWEN_CODE", "QWEN_CODE_SESSION_ID", "QWEN_CODE_MODEL", "QWEN_PROJECT_DIR")

    def check_settings(self, cwd: str) -> None:
        """Refuse settings that switch hooks off; see `HookedClientLauncher.check_settings`."""
        own = settings()
        if is_off(own):
            raise ConfigurationError(OFF, True, f"false: {UNSEEN}", own.path)

    def describe_refused(self, call: RefusedCall) -> str:
        """Return an argument that allows calls like this one; see `AgentLauncher`."""
        rule = call.tool
        if rule == "run_shell_command" and (words := call.request.split()):
            rule = f"{rule}({words[0]})"
        return f"--allowed-tools {shlex.quote(rule)}"

    def prepare(self) -> None:
        """Write choices and defaults of the run into its folder; those of the machine stay in."""
        super().prepare()
        defaults = QwenSettings(system_defaults_path(os.environ))
        command = command_line(this_interpreter(), script_path(HOOK), self._choices_path)
        hook = {"type": "command", "command": command, "timeout": MILLISECONDS}
        defaults.put_entries({event: {"hooks": [hook]} for event in defaults.events})
        # Else no task list is kept, and only a single item could be claimed.
        switch = ("tools", "todoWrite", "enabled")
        for depth in (0, 1, 2):
            if not defaults.document.has(*switch[: depth + 1]):
                defaults.document.add(switch[:depth], {} if depth < 2 else True, switch[depth])
        defaults.document.replace(switch, True)
        replace_file(self._defaults_path, defaults.data)

    @property
    def _defaults_path(self) -> str:
        return os.path.join(run_directory(self._state_directory, self._run), _FILE)

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return the file of defaults, and whose session its hooks report."""
        return {DEFAULTS_VARIABLE: self._defaults_path, **super().variables(session_id)}

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)
