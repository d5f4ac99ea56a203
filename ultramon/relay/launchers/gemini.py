"""Starts the headless Gemini CLI, which the hooks of an installation report.

The client takes hooks from the settings of user and project, and from files that belong to root;
no argument and no variable names others. In a relay an installation's hooks work by its choices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.gemini.setup import hooks
from ultramon.hosts.hook_program import RELAY_SESSION
from ultramon.relay.launchers.gemini_output import read_outcome
from ultramon.relay.launchers.hooked_client import ELSEWHERE, OWN, UNSEEN, HookedClientLauncher

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall

_WAITS = "nobody would answer it"
REFUSED_ARGUMENTS = {
    "-p": OWN,
    "--prompt": OWN,
    "-o": OWN,
    "--output-format": OWN,
    "--session-id": OWN,
    "-r": OWN,
    "--resume": OWN,
    "--session-file": OWN,
    "-i": _WAITS,
    "--prompt-interactive": _WAITS,
    "--acp": _WAITS,
    "--experimental-acp": _WAITS,
    "-s": UNSEEN,
    "--sandbox": UNSEEN,
    "-w": ELSEWHERE,
    "--worktree": ELSEWHERE,
}
_UNASKED = ("-y", "--yolo", "--approval-mode=yolo")


class GeminiLauncher(HookedClientLauncher):
    """Launcher of the real client; its arguments are those of `HookedClientLauncher`."""

    host = GEMINI
    product = "Gemini CLI"
    usual_program = "gemini"
    version_pattern = re.compile(r"^(\d+)\.(\d+)\.(\d+)\b")
    tested_version = (0, 61, 0)
    refused_arguments = REFUSED_ARGUMENTS
    outer_variables = ("GEMINI_CLI", "GEMINI_SESSION_ID", "GEMINI_PROJECT_DIR", "GEMINI_CWD")

    def check_settings(self, cwd: str) -> None:
        """Ask for an installation; see `HookedClientLauncher.check_settings`."""
        settings = hooks()
        missing = set(settings.events).difference(hook.event for hook in settings.our_hooks())
        if missing:
            allowed = "installed: `ultramon install gemini`; the client takes them from there only"
            raise ConfigurationError("hooks", "missing", allowed, settings.path)
        if settings.get("hooksConfig", "enabled") is False:
            raise ConfigurationError("hooksConfig.enabled", False, f"true: {UNSEEN}", settings.path)

    def known_model(self, environ: Mapping[str, str]) -> str | None:
        """Return the model of the arguments or the environment."""
        return self.given("-m", "--model") or environ.get("GEMINI_MODEL")

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        own = self.given("--approval-mode")
        for argument in self._arguments:
            if argument in _UNASKED or own == "yolo":
                return f"permissions: nothing is asked, by your argument {argument}"
        whose = f"approval mode {own}" if own else "your settings and policies"
        return f"permissions: {whose}; tools that would prompt are not offered"

    def describe_refused(self, call: RefusedCall) -> str:
        """Return an argument that offers the tool of this call; see `AgentLauncher`."""
        is_edit = call.tool in ("replace", "write_file")
        return "--approval-mode auto_edit" if is_edit else "--policy FILE"

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of a headless session; see `HookedClientLauncher.arguments`."""
        return (
            *self._arguments,
            "--output-format", "stream-json",
            "--resume" if resumes else "--session-id", session_id,
            "--prompt", prompt,
        )  # fmt: skip

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return what has installed hooks serve this session, and none that its agent begins."""
        return {RELAY_SESSION: session_id}

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)
