"""Starts the headless Claude Code with hooks for one run: nothing is installed anywhere."""

from __future__ import annotations

import json
import shlex
from functools import cached_property
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.setup.commands import EVENTS, HOOK_SCRIPT, SCRIPTS
from ultramon.hosts.claude_code.setup.http_hooks import entry_for
from ultramon.hosts.claude_code.setup.settings import Settings, find_layers
from ultramon.hosts.interpreter import this_interpreter
from ultramon.hosts.launcher import Launcher
from ultramon.relay.launchers.claude_code_output import read_outcome
from ultramon.relay.launchers.hooked_client import (
    ELSEWHERE,
    OWN,
    UNSEEN,
    HookedClientLauncher,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall

REFUSED_ARGUMENTS = {
    "-p": OWN,
    "--print": OWN,
    "--output-format": OWN,
    "--input-format": OWN,
    "--settings": f"{OWN}; put yours into the settings of the project",
    "--session-id": OWN,
    "-r": OWN,
    "--resume": OWN,
    "-c": OWN,
    "--continue": OWN,
    "--fork-session": OWN,
    "--from-pr": OWN,
    "--bare": UNSEEN,
    "--safe-mode": UNSEEN,
    "--no-session-persistence": "hooks read the transcript, and none would be written",
    "--bg": ELSEWHERE,
    "--background": ELSEWHERE,
    "--cloud": ELSEWHERE,
}
_PERMITTING = ("--allowedTools", "--allowed-tools", "--permission-mode", "--disallowedTools")


class ClaudeCodeLauncher(HookedClientLauncher):
    """Launcher of the real client; its arguments are those of `HookedClientLauncher`."""

    host = CLAUDE_CODE
    product = "Claude Code"
    usual_program = "claude"
    tested_version = (2, 1, 330)
    refused_arguments = REFUSED_ARGUMENTS
    outer_variables = (
        "CLAUDECODE",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_MESSAGING_TOKEN",
        "CLAUDE_CODE_SESSION_ID",
        "CLAUDE_PID",
        "CLAUDE_PROJECT_DIR",
    )
    can_enforce = True

    @cached_property
    def _hook(self) -> Launcher:
        return Launcher(SCRIPTS[HOOK_SCRIPT], this_interpreter(), self._choices_path)

    def check_settings(self, cwd: str) -> None:
        """Refuse settings that switch hooks off; see `HookedClientLauncher.check_settings`."""
        for layer in find_layers(cwd):
            try:
                disables_hooks = Settings(layer.path).disables_hooks
            except (StateError, OSError):
                continue  # the client does not read it either
            if disables_hooks:
                allowed = f"false: {UNSEEN}"
                raise ConfigurationError("disableAllHooks", True, allowed, layer.path)

    def known_model(self, environ: Mapping[str, str]) -> str | None:
        """Return the model of the arguments or the environment; short names change each year."""
        given = self.given("--model") or environ.get("ANTHROPIC_MODEL")
        return given if given is not None and given.startswith("claude-") else None

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        for argument in self._arguments:
            name, _, value = argument.partition("=")
            if name == "--dangerously-skip-permissions" or "bypassPermissions" in (value, argument):
                return f"permissions: nothing is asked, by your argument {argument}"
        own = any(argument.startswith(_PERMITTING) for argument in self._arguments)
        whose = "your settings and arguments" if own else "your settings"
        return f"permissions: {whose}; what would prompt is denied"

    def describe_refused(self, call: RefusedCall) -> str:
        """Return an argument that allows calls like this one; see `AgentLauncher`."""
        rule = call.tool
        if call.tool == "Bash" and (words := call.request.split()):
            rule = f"Bash({words[0]} *)"
        return f"--allowedTools {shlex.quote(rule)}"

    def prepare(self) -> None:
        """Write the choices and the hook's program into the folder of the run."""
        super().prepare()
        if self._hook.can_run:
            self._hook.write()

    def settings(self) -> dict[str, object]:
        """Return the settings for one run: hooks, and nothing else."""
        command = self._hook.command
        entries = {event: [entry_for(event, command, waits=self._enforce)] for event in EVENTS}
        return {"hooks": entries}

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of a headless session; see `HookedClientLauncher.arguments`."""
        return (
            "-p", prompt,
            "--output-format", "stream-json", "--verbose",
            "--resume" if resumes else "--session-id", session_id,
            "--settings", json.dumps(self.settings()),
            *self._arguments,
        )  # fmt: skip

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)
