"""Starts the headless Qwen Code with hooks for one run: nothing is installed anywhere.

The host merges a file of defaults into all other settings, the hooks of each event among them;
a variable names that file.
"""

from __future__ import annotations

import os
import re
import shlex
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.errors import ConfigurationError
from ultramon.hosts.install.hook_commands import command_line, script_path
from ultramon.hosts.install.interpreter import this_interpreter
from ultramon.hosts.qwen.configuration import DEFAULTS_VARIABLE, system_defaults_path
from ultramon.hosts.qwen.host import QWEN
from ultramon.hosts.qwen.setup import HOOK, MILLISECONDS, OFF, QwenSettings, is_off, settings
from ultramon.relay.launchers.claude_code import StreamReader
from ultramon.relay.launchers.gemini import REFUSED_BY_BOTH, WAITS, GeminiArgumentsLauncher
from ultramon.relay.launchers.hooked_launcher import OWN, UNSEEN
from ultramon.relay.launchers.json_lines import as_count, as_object, as_text
from ultramon.relay.launchers.outcome import (
    MAX_TEXT_CHARS,
    OVERFLOWED,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    RefusedCall,
    SpentTokens,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer
from ultramon.relay.run_folder import run_directory
from ultramon.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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


_STATUS = re.compile(r"^\[API Error: (\d{3})\b")
_LOGIN, _KEY = "qwen-oauth", "OPENAI_API_KEY"
_USED_UP = re.compile(r"quota|usage limit", re.IGNORECASE)
_ENDS_AT = re.compile(r"reset at (\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?)")
"""When a quota begins anew, as providers say it; without a zone in local time."""


class QwenLauncher(GeminiArgumentsLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

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
        """Refuse settings that switch hooks off; see `HookedLauncher.check_settings`."""
        own = settings()
        if is_off(own):
            raise ConfigurationError(OFF, True, f"false: {UNSEEN}", own.path)

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to; see `AgentLauncher`.

        A plan that is used by a key counts as a key: nothing says which of them it is.
        """
        chosen = self.given("--auth-type") or settings().get("security", "auth", "selectedType")
        if chosen:
            return Payer(SUBSCRIPTION) if chosen == _LOGIN else Payer(API_KEY, str(chosen))
        return Payer(API_KEY, _KEY) if environ.get(_KEY) else Payer()

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


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended: the host prints Claude Code's stream, with errors of its own.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    return _Reader().read(lines, exit_code)


class _Reader(StreamReader):
    is_session_sum = True

    def read_end(self, result: dict[str, Any]) -> str:
        """Return how it ended; the host gives no reason, but says what failed."""
        is_overflow = result.get("is_error") is True and parse_overflow(self.describe_error() or "")
        return OVERFLOWED if is_overflow else super().read_end(result)

    def describe_error(self) -> str | None:
        """Return what failed, in the host's words."""
        words = as_object((self.result or {}).get("error")).get("message")
        return as_text(words, MAX_TEXT_CHARS) or super().describe_error()

    def read_limit(self, error: str) -> ProviderLimit | None:
        """Return the limit that ended the session; None = it ended for another reason."""
        found = _STATUS.search(error)
        status = int(found[1]) if found else None
        if _USED_UP.search(error) and (status in (None, 429)):
            return ProviderLimit(USAGE, _end_of_limit(error))
        return limit_by_status(status)

    def read_spent(self, result: dict[str, Any]) -> SpentTokens:
        """Return the sum over the session; what the host calls its input has the cached in."""
        used = as_object(result.get("usage"))
        cached = as_count(used.get("cache_read_input_tokens"))
        return SpentTokens(
            input_tokens=max(0, as_count(used.get("input_tokens")) - cached),
            cache_read_tokens=cached,
            output_tokens=as_count(used.get("output_tokens")),
        )


def _end_of_limit(words: str) -> float | None:
    found = _ENDS_AT.search(words)
    try:
        return None if found is None else datetime.fromisoformat(found[1]).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
