"""Starts ``opencode run`` with a plugin for one run: nothing is installed anywhere.

A variable holds configuration that the host merges into all other; it names the plugin, which takes
the variable away from what the agent starts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.errors import ConfigurationError
from ultramon.hosts.install.hook_commands import command_line, script_path
from ultramon.hosts.install.interpreter import this_interpreter
from ultramon.hosts.opencode.configuration import LIMITS_VARIABLE, config_directory
from ultramon.hosts.opencode.configuration import OPENCODE as OPENCODE_FILES
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.opencode.plugin_file import HOOK, PluginFile
from ultramon.hosts.opencode.reader import ABORTED, OVERFLOW_ERROR
from ultramon.relay.launchers.hooked_launcher import ELSEWHERE, OWN, UNSEEN, HookedLauncher
from ultramon.relay.launchers.json_lines import (
    JsonLines,
    as_count,
    as_number,
    as_object,
    as_text,
)
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    STOPPED,
    ContextOutcome,
    SpentTokens,
    end_after_result,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer, read_object
from ultramon.relay.run_folder import run_directory
from ultramon.system.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIGURATION = "OPENCODE_CONFIG_CONTENT"
_PLUGINS = "plugin"
_FILE = "ultramon.js"
_MAX_MODEL_CHARS = 200
_PURE = "OPENCODE_PURE"
REFUSED_ARGUMENTS = {
    "run": OWN,
    "--format": OWN,
    "-c": OWN,
    "--continue": OWN,
    "-s": OWN,
    "--session": OWN,
    "--fork": OWN,
    "--command": "the prompt is the relay's",
    "-i": "it waits for a person",
    "--interactive": "it waits for a person",
    "--pure": UNSEEN,
    "--attach": ELSEWHERE,
    "--dir": ELSEWHERE,
}


class OpencodeLauncher(HookedLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

    host = OPENCODE
    product = "opencode"
    usual_program = "opencode"
    tested_version = (1, 18, 33)
    refused_arguments = REFUSED_ARGUMENTS
    outer_variables = ("OPENCODE", "OPENCODE_PID", LIMITS_VARIABLE)
    can_enforce = True

    def check_settings(self, cwd: str) -> None:
        """Refuse what keeps plugins out; see `HookedLauncher.check_settings`."""
        if os.environ.get(_PURE, "").lower() not in ("", "0", "false"):
            raise ConfigurationError(_PURE, os.environ[_PURE], f"unset: {UNSEEN}", "environment")
        _own_configuration()

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to, by the provider of the model; see `AgentLauncher`.

        Of a key in the environment or the configuration nothing is known.
        """
        configured = read_object(os.path.join(config_directory(environ), "opencode.json"))
        model = as_text(self.given("-m", "--model") or configured.get("model"), _MAX_MODEL_CHARS)
        logins = read_object(os.path.join(OPENCODE_FILES.data_directory(environ), "auth.json"))
        login = as_object(logins.get(model.partition("/")[0]))
        if login.get("type") == "oauth":
            return Payer(SUBSCRIPTION)
        return Payer(API_KEY, "auth.json") if login.get("type") == "api" else Payer()

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        if "--auto" in self._arguments:
            return "permissions: what is not denied is allowed, by your argument --auto"
        return "permissions: those of your configuration; what would prompt is denied"

    def prepare(self) -> None:
        """Write choices and plugin of the run into its folder."""
        super().prepare()
        plugin = PluginFile(self._plugin_path)
        plugin.choices = self._choices_path
        command = command_line(this_interpreter(), script_path(HOOK), self._choices_path)
        plugin.put_entries({event: {"hooks": [{"command": command}]} for event in plugin.events})
        replace_file(self._plugin_path, plugin.data)

    @property
    def _plugin_path(self) -> str:
        return os.path.join(run_directory(self._state_directory, self._run), _FILE)

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return the user's own configuration of this kind, with the plugin of the run."""
        given = _own_configuration()
        own = given.get(_PLUGINS)
        plugins = [*own] if isinstance(own, list) else []
        plugins.append(Path(self._plugin_path).as_uri())
        return {CONFIGURATION: json.dumps({**given, _PLUGINS: plugins})}

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of the host; see `HookedLauncher.arguments`."""
        resumed = ("--session", session_id) if resumes else ()
        return "run", "--format", "json", *self._arguments, *resumed, prompt

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)


def _own_configuration() -> dict[str, Any]:
    """Return what the user's own variable holds; empty without one.

    Raises:
        ConfigurationError: It is no JSON object: the plugin cannot be added.
    """
    text = os.environ.get(CONFIGURATION) or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        allowed = "a JSON object without comments, to which a plugin is added"
        raise ConfigurationError(CONFIGURATION, text[:80], allowed, "environment")
    return found


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended, by what ``opencode run --format json`` printed.

    A failure that a later reply has mended is none, though the host exits with 1 for it.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing.
    """
    session_id: str | None = None
    texts: list[str] = []
    failure: dict[str, Any] | None = None
    is_mended = is_over = False
    spent, cost_usd = SpentTokens(), 0.0
    objects = JsonLines(lines)
    for entry in objects:
        kind, part = entry.get("type"), as_object(entry.get("part"))
        session_id = as_text(entry.get("sessionID"), 100) or session_id
        if kind == "text":
            texts.append(as_text(part.get("text"), MAX_TEXT_CHARS))
        elif kind == "tool_use":
            texts.clear()
        elif kind == "step_finish":
            spent, cost_usd = spent + _spent(part), cost_usd + (as_number(part.get("cost")) or 0.0)
            is_over = part.get("reason") == "stop"
            is_mended, failure = is_mended or failure is not None, None
        elif kind == "error":
            failure = as_object(entry.get("error"))
    end, error, reason, limit = CUT_OFF, None, "", None
    if failure is not None:
        reason = as_text(failure.get("name"), 100)
        data = as_object(failure.get("data"))
        error = as_text(data.get("message"), MAX_TEXT_CHARS) or reason or "unknown"
        status = as_number(data.get("statusCode"))
        limit = limit_by_status(None if status is None else int(status))
        end = FAILED if limit is None else LIMITED
        if reason == OVERFLOW_ERROR or parse_overflow(error) is not None:
            end, limit = OVERFLOWED, None
        elif reason == ABORTED:
            end, error = STOPPED, None
    elif is_over:
        end, error = end_after_result(COMPLETED, 0 if is_mended and exit_code == 1 else exit_code)
    return ContextOutcome(
        end,
        exit_code,
        session_id=session_id,
        reason=reason,
        last_text="\n".join(filter(None, texts))[:MAX_TEXT_CHARS],
        error=error,
        limit=limit,
        spent=spent,
        cost_usd=cost_usd or None,
        skipped_lines=objects.skipped,
    )


def _spent(part: dict[str, Any]) -> SpentTokens:
    tokens = as_object(part.get("tokens"))
    cache = as_object(tokens.get("cache"))
    return SpentTokens(
        as_count(tokens.get("input")),
        as_count(cache.get("write")),
        as_count(cache.get("read")),
        as_count(tokens.get("output")) + as_count(tokens.get("reasoning")),
    )
