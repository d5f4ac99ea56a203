"""Starts the headless Copilot CLI with a plugin for one run: nothing is installed anywhere.

An argument names the plugin's folder, which holds the hooks of the run. An installation's hooks
leave the contexts of a relay to these.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.hosts.copilot.host import COPILOT
from ultramon.hosts.copilot.setup import HOOK, CopilotHooks, CopilotSetup
from ultramon.hosts.install.hook_commands import command_line, script_path
from ultramon.hosts.install.interpreter import this_interpreter
from ultramon.relay.launchers.hooked_launcher import ELSEWHERE, OWN, HookedLauncher
from ultramon.relay.launchers.json_lines import JsonLines, as_number, as_object, as_text
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_REFUSED,
    MAX_REQUEST_CHARS,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    STOPPED,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    RefusedCall,
    end_after_result,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer
from ultramon.relay.run_folder import run_directory
from ultramon.system.files import make_private_directory, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FOLDER = "copilot.plugin"
_HOOKS = "hooks.json"
_WAITS = "no person would answer it"
REFUSED_ARGUMENTS = {
    "-p": OWN,
    "--prompt": OWN,
    "--output-format": OWN,
    "--session-id": OWN,
    "-r": OWN,
    "--resume": OWN,
    "--continue": OWN,
    "-s": OWN,
    "--silent": OWN,
    "-i": _WAITS,
    "--interactive": _WAITS,
    "--connect": ELSEWHERE,
    "-C": ELSEWHERE,
    "--worktree": ELSEWHERE,
}
_UNASKED = ("--allow-all-tools", "--allow-all", "--yolo")
_DENIED, _ENDED = "denied", "rejected"
"""Codes of calls that no person was there to allow, and that a hook denied."""
_PROVIDER = "COPILOT_PROVIDER_BASE_URL"
_QUOTA = "quota"


class CopilotLauncher(HookedLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

    host = COPILOT
    product = "Copilot CLI"
    usual_program = "copilot"
    version_pattern = re.compile(r"^GitHub Copilot CLI (\d+)\.(\d+)\.(\d+)\b")
    tested_version = (1, 0, 102)
    refused_arguments = REFUSED_ARGUMENTS
    outer_variables = ("COPILOT_CLI", "COPILOT_AGENT_SESSION_ID", "COPILOT_PROJECT_DIR")
    can_enforce = True

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to: the plan, but for a provider of the user's own."""
        return Payer(API_KEY, _PROVIDER) if environ.get(_PROVIDER) else Payer(SUBSCRIPTION)

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        for argument in self._arguments:
            if argument in _UNASKED:
                return f"permissions: nothing is asked, by your argument {argument}"
        return "permissions: your settings and arguments; what would prompt is denied"

    def describe_refused(self, call: RefusedCall) -> str:
        """Return an argument that allows calls like this one; see `AgentLauncher`."""
        rule = "write"
        if call.tool == "bash":
            rule = f"shell({next(iter(call.request.split()), '')}:*)"
        return f"--allow-tool {shlex.quote(rule)}"

    def prepare(self) -> None:
        """Write choices and plugin of the run into its folder."""
        super().prepare()
        folder = self._plugin_folder
        make_private_directory(folder)
        hooks = CopilotHooks(os.path.join(folder, _HOOKS), b"")
        command = command_line(this_interpreter(), script_path(HOOK), self._choices_path)
        hook = {"type": "command", "command": command, **CopilotSetup.members}
        events = hooks.events + (hooks.enforcing_events if self._enforce else ())
        hooks.put_entries({event: {"hooks": [hook]} for event in events})
        replace_file(hooks.path, hooks.data)
        about = {"name": "ultramon", "version": "1.0.0", "hooks": _HOOKS}
        replace_file(os.path.join(folder, "plugin.json"), json.dumps(about).encode("ascii"))

    @property
    def _plugin_folder(self) -> str:
        return os.path.join(run_directory(self._state_directory, self._run), _FOLDER)

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of a headless session; see `HookedLauncher.arguments`."""
        return (
            *self._arguments,
            "--plugin-dir", self._plugin_folder,
            "--output-format", "json",
            "--resume" if resumes else "--session-id", session_id,
            "--prompt", prompt,
        )  # fmt: skip

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended, by what it printed (``--output-format json``).

    The output names no tokens: what was spent is in the event file, where hooks count it.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    result: dict[str, Any] = {}
    failure: dict[str, Any] | None = None
    text, is_ended = "", False
    asked: dict[str, RefusedCall] = {}
    refused: list[RefusedCall] = []
    objects = JsonLines(lines)
    for entry in objects:
        kind, data = entry.get("type"), as_object(entry.get("data"))
        if kind == "result":
            result = entry
        elif kind == "tool.execution_start":
            asked[str(data.get("toolCallId"))] = _call(data)
        elif kind == "tool.execution_complete":
            code = as_object(data.get("error")).get("code")
            call = asked.get(str(data.get("toolCallId")))
            if code == _DENIED and call is not None:
                refused.append(call)
            is_ended |= code == _ENDED and "agentId" not in entry
        elif "agentId" in entry:
            continue  # of a subagent
        elif kind == "assistant.message":
            text = as_text(data.get("content"), MAX_TEXT_CHARS) or text
            # What a hook denied without ending the turn was followed by this.
            failure, is_ended = None, False
        elif kind == "session.error":
            failure = data
    end, error, limit = CUT_OFF, None, None
    if failure is not None:
        error = as_text(failure.get("message"), MAX_TEXT_CHARS) or "unknown"
        limit = _limit(failure)
        end = FAILED if limit is None else LIMITED
        if parse_overflow(error) is not None:
            end, limit = OVERFLOWED, None
    elif result:
        end, error = end_after_result(STOPPED if is_ended else COMPLETED, exit_code)
    return ContextOutcome(
        end,
        exit_code,
        session_id=as_text(result.get("sessionId"), 100) or None,
        reason=as_text((failure or {}).get("errorType"), 100),
        last_text=text,
        error=error,
        limit=limit,
        refused=tuple(refused[:MAX_REFUSED]),
        refused_count=len(refused),
        skipped_lines=objects.skipped,
    )


def _call(data: dict[str, Any]) -> RefusedCall:
    asked = as_object(data.get("arguments"))
    texts = (as_text(asked.get(name), MAX_REQUEST_CHARS) for name in ("command", "path"))
    tool = as_text(data.get("toolName"), MAX_REQUEST_CHARS)
    return RefusedCall(tool, next(filter(None, texts), ""))


def _limit(failure: dict[str, Any]) -> ProviderLimit | None:
    if failure.get("errorType") == _QUOTA:
        return ProviderLimit(USAGE)
    status = as_number(failure.get("statusCode"))
    return limit_by_status(None if status is None else int(status))
