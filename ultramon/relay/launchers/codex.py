"""Starts ``codex exec`` with hooks for one run: nothing is installed anywhere."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.codex.last_reading import read_last_reading
from ultramon.hosts.codex.rollouts import find_thread
from ultramon.hosts.codex.setup import EVENTS, HOOK, SECONDS, TIMEOUTS
from ultramon.hosts.hook_commands import command_line, script_path
from ultramon.hosts.interpreter import this_interpreter
from ultramon.relay.launchers.codex_hooks import listed_hooks, toml_text
from ultramon.relay.launchers.codex_output import read_outcome
from ultramon.relay.launchers.hooked_client import (
    ELSEWHERE,
    OWN,
    UNSEEN,
    HookedClientLauncher,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ultramon.hosts.records import LastReading
    from ultramon.relay.launchers.outcome import ContextOutcome

REFUSED_ARGUMENTS = {
    "--json": OWN,
    "--experimental-json": OWN,
    "resume": OWN,
    "fork": OWN,
    "review": OWN,
    "--output-schema": "the last message is the notes for the next context",
    "--ephemeral": "hooks read the rollout, and none would be written",
    "-C": ELSEWHERE,
    "--cd": ELSEWHERE,
    "--worktree": ELSEWHERE,
}
_UNASKED = ("--dangerously-bypass-approvals-and-sandbox", "--yolo")


class CodexLauncher(HookedClientLauncher):
    """Launcher of the real client; its arguments are those of `HookedClientLauncher`."""

    host = CODEX
    product = "Codex"
    usual_program = "codex"
    version_pattern = re.compile(r"^codex-cli (\d+)\.(\d+)\.(\d+)\b")
    tested_version = (0, 169, 0)
    refused_arguments = REFUSED_ARGUMENTS

    def check_hooks(self, cwd: str) -> None:
        """Have the client list the hooks; see `HookedClientLauncher.check_hooks`."""
        if not self._trust:
            allowed = f"set so that hooks run: {UNSEEN.partition(', and ')[0]}"
            raise ConfigurationError("hooks", "off", allowed, "the client's configuration")

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        for argument in self._arguments:
            if argument in _UNASKED:
                return f"permissions: nothing is asked, by your argument {argument}"
        own = self.given("-s", "--sandbox")
        sandbox = f"sandbox {own}" if own else "the sandbox of your configuration"
        return f"permissions: {sandbox}; what would prompt is denied"

    @cached_property
    def _hooks(self) -> tuple[str, ...]:
        script = script_path(HOOK)
        command = toml_text(command_line(this_interpreter(), script, self._choices_path))
        hook = f'type="command",command={command},timeout='
        settings = [
            f"hooks.{event}=[{{hooks=[{{{hook}{TIMEOUTS.get(event, SECONDS)}}}]}}]"
            for event in EVENTS
        ]
        return tuple(word for setting in settings for word in ("-c", setting))

    @cached_property
    def _trust(self) -> tuple[str, ...]:
        """The argument that has these hooks run, and no other one; empty where none would run."""
        found = listed_hooks(self._program, self._hooks)
        if len(found) < len(EVENTS):
            return ()
        trusted = ",".join(
            f"{toml_text(key)}={{trusted_hash={toml_text(found[key])}}}" for key in found
        )
        return "-c", f"hooks.state={{{trusted}}}"

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of ``codex exec``; see `HookedClientLauncher.arguments`."""
        return (
            "exec", "--json",
            *self._hooks, *self._trust,
            # Else no task list is kept, and only a single item could be claimed.
            "-c", "tools.update_plan.enabled=true",
            *self._arguments,
            *(("resume", session_id) if resumes else ()),
            prompt,
        )  # fmt: skip

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code, _last_turn)


def _last_turn(thread_id: str) -> LastReading | None:
    """Return what the rollout of a thread says about its last turn."""
    path = find_thread(os.environ, thread_id)
    try:
        return None if path is None else read_last_reading(path, is_subagent=False)
    except (OSError, ValueError):
        return None
