"""Starts the headless Gemini CLI, which the hooks of an installation report.

The client takes hooks from the settings of user and project, and from files that belong to root;
no argument and no variable names others. In a relay an installation's hooks work by its choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.gemini.setup import hooks
from ultramon.relay.launchers.gemini_arguments import (
    REFUSED_BY_BOTH,
    WAITS,
    GeminiArgumentsLauncher,
)
from ultramon.relay.launchers.gemini_output import read_outcome
from ultramon.relay.launchers.hooked_client import ELSEWHERE, OWN, UNSEEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall

REFUSED_ARGUMENTS = REFUSED_BY_BOTH | {
    "--session-file": OWN,
    "--experimental-acp": WAITS,
    "-w": ELSEWHERE,
}


class GeminiLauncher(GeminiArgumentsLauncher):
    """Launcher of the real client; its arguments are those of `HookedClientLauncher`."""

    host = GEMINI
    product = "Gemini CLI"
    usual_program = "gemini"
    tested_version = (0, 61, 0)
    refused_arguments = REFUSED_ARGUMENTS
    own_permissions = "your settings and policies"
    unanswered = "tools that would prompt are not offered"
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

    def describe_refused(self, call: RefusedCall) -> str:
        """Return an argument that offers the tool of this call; see `AgentLauncher`."""
        is_edit = call.tool in ("replace", "write_file")
        return "--approval-mode auto_edit" if is_edit else "--policy FILE"

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)
