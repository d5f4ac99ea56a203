"""Any program as an agent: it finds its work by its environment, as `ultramon.worker` does."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.relay.launchers.outcome import COMPLETED, CUT_OFF, FAILED, ContextOutcome
from ultramon.relay.launchers.port import AgentLauncher, CheckedProgram, ContextCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class CommandLauncher(AgentLauncher):
    """Launcher of a program of the user.

    It needs no hooks: the program reports for itself, stores its end, decides when it hands over
    and has all permissions of its user. Its prompt is not used, for the assignment in its
    environment says what to do.

    Args:
        run: The relay.
        command: The program and its arguments.
    """

    name = "command"
    uses_sdk = True

    def __init__(self, run: str, command: Sequence[str]) -> None:
        if not command:
            raise ConfigurationError("command", "", "a program and its arguments, after --")
        self._run = run
        self._command = tuple(command)

    def check(self, cwd: str) -> CheckedProgram:
        """Find the program; see `AgentLauncher.check`."""
        program = self._command[0]
        # A path with a folder in it is meant from where the program will work.
        found = shutil.which(os.path.join(cwd, program) if os.sep in program else program)
        if found is None:
            raise ConfigurationError("command", program, "a program that can be run")
        return CheckedProgram(os.path.abspath(found))

    def command(
        self,
        prompt: str,
        *,
        cwd: str,
        session_id: str,
        environ: Mapping[str, str],
        resumes: bool = False,
    ) -> ContextCommand:
        """Return the command in the relay's environment; see `AgentLauncher.command`."""
        return ContextCommand(self._command, {**environ, "ULTRAMON_RELAY": self._run}, cwd)

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how the process ended: what it printed is its own affair."""
        if exit_code == 0:
            return ContextOutcome(COMPLETED, 0)
        if exit_code is None or exit_code < 0:
            return ContextOutcome(CUT_OFF, exit_code)
        return ContextOutcome(FAILED, exit_code, error=f"exit {exit_code}")
