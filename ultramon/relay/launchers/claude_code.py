"""Starts the headless Claude Code with hooks for one run: nothing is installed anywhere."""

from __future__ import annotations

import json
import os
import re
import shlex
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.install.commands import EVENTS, HOOK_SCRIPT, SCRIPTS, entry_for
from ultramon.hosts.claude_code.install.settings import Settings, find_layers
from ultramon.hosts.install.interpreter import this_interpreter
from ultramon.hosts.install.launcher import Launcher
from ultramon.relay.launchers.hooked_launcher import ELSEWHERE, OWN, UNSEEN, HookedLauncher
from ultramon.relay.launchers.json_lines import JsonLines, as_count, as_number, as_object, as_text
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_REFUSED,
    MAX_REQUEST_CHARS,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    RATE,
    STOPPED,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    RefusedCall,
    SpentTokens,
    end_after_result,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer, read_object
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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


_BILLED_BY_USE = (
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_API_KEY",
)
_KEY_COMMAND = "apiKeyHelper"
_LOGIN_TOKEN = "CLAUDE_CODE_OAUTH_TOKEN"
_ENDS = {
    "completed": COMPLETED,
    "hook_stopped": STOPPED,
    "prompt_too_long": OVERFLOWED,
    # An interrupt from outside; the host then exits with 0.
    "aborted_streaming": CUT_OFF,
    "aborted_tools": CUT_OFF,
}
_ENDS_AT = re.compile(r"\|(\d{10})\b")
"""How older hosts say when a usage limit ends: the text, a bar, epoch seconds."""
_MAIN_INPUTS = ("command", "file_path", "notebook_path", "url", "query", "pattern", "skill")
"""Of the tools' inputs the one that says most."""


class ClaudeCodeLauncher(HookedLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

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
        """Refuse settings that switch hooks off; see `HookedLauncher.check_settings`."""
        for layer in find_layers(cwd):
            try:
                disables_hooks = Settings(layer.path).disables_hooks
            except (StateError, OSError):
                continue  # the host does not read it either
            if disables_hooks:
                allowed = f"false: {UNSEEN}"
                raise ConfigurationError("disableAllHooks", True, allowed, layer.path)

    def known_model(self, environ: Mapping[str, str]) -> str | None:
        """Return the model of the arguments or the environment; short names change each year."""
        given = self.given("--model") or environ.get("ANTHROPIC_MODEL")
        return given if given is not None and given.startswith("claude-") else None

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to, in the host's own order; see `AgentLauncher`.

        A headless session takes a key before a login. Logins in the keychain of macOS are not seen.
        """
        layers = [read_object(layer.path) for layer in find_layers(cwd)]
        given: dict[str, Any] = dict(environ)
        for settings in layers:
            given |= as_object(settings.get("env"))
        for name in _BILLED_BY_USE:
            if given.get(name):
                return Payer(API_KEY, name)
        if any(settings.get(_KEY_COMMAND) for settings in layers):
            return Payer(API_KEY, _KEY_COMMAND)
        if given.get(_LOGIN_TOKEN):
            return Payer(SUBSCRIPTION, _LOGIN_TOKEN)
        directory = self.host.dialect.account_directory(environ)
        login = read_object(os.path.join(directory, ".credentials.json")).get("claudeAiOauth")
        return Payer(SUBSCRIPTION) if login else Payer()

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
        """Return the arguments of a headless session; see `HookedLauncher.arguments`."""
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


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended, by what it printed (``--output-format stream-json``).

    Unknown lines and fields are passed over: a newer host may print more.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    return StreamReader().read(lines, exit_code)


class StreamReader:
    """What has been said so far, in the words of Claude Code; a subclass reads those of its kin.

    Attributes:
        result: The line that ended the last turn; None = none has ended.
        is_session_sum: As in the outcome.
    """

    is_session_sum = False

    def __init__(self) -> None:
        self._session_id: str | None = None
        self.result: dict[str, Any] | None = None
        self._text = ""
        self._error: dict[str, Any] | None = None
        self._usage_limit: ProviderLimit | None = None
        self._plan: tuple[tuple[str, object, object], ...] = ()
        self._refused: dict[str, RefusedCall] = {}
        self._retries = 0

    def read(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Take all lines and return the outcome."""
        objects = JsonLines(lines)
        for entry in objects:
            self.take(entry)
        return self.outcome(exit_code, objects.skipped)

    def take(self, entry: dict[str, Any]) -> None:
        """Take one line."""
        kind = entry.get("type")
        session_id = entry.get("session_id")
        if self._session_id is None and isinstance(session_id, str):
            self._session_id = session_id
        if kind == "result":
            self.result = entry
            self._take_refused(entry.get("permission_denials"))
        elif kind == "system":
            self._take_system(entry)
        elif kind == "assistant" and entry.get("parent_tool_use_id") is None:
            self._take_reply(entry)
        elif kind == "rate_limit_event":
            self._take_limit(as_object(entry.get("rate_limit_info")))

    def _take_reply(self, entry: dict[str, Any]) -> None:
        # A reply after a result begins another turn, as the end of a background task does.
        self.result = None
        content = as_object(entry.get("message")).get("content")
        for block in content if isinstance(content, list) else ():
            text = as_object(block).get("text")
            if isinstance(text, str) and text:
                self._text = text
        is_error = bool(entry.get("is_api_error_message") or entry.get("error"))
        self._error = entry if is_error else None

    def _take_system(self, entry: dict[str, Any]) -> None:
        if entry.get("subtype") == "api_retry":
            self._retries += 1
        elif entry.get("subtype") == "permission_denied":
            self._take_refused([entry])

    def _take_refused(self, calls: object) -> None:
        for call in calls if isinstance(calls, list) else ():
            tool = as_object(call).get("tool_name")
            if not isinstance(tool, str):
                continue
            asked = call.get("tool_input")
            # The line at the time of the call has no input; the result repeats it with one.
            key = call.get("tool_use_id")
            key = key if isinstance(key, str) else f"#{len(self._refused)}"
            if asked is None and key in self._refused:
                continue
            self._refused[key] = RefusedCall(tool[:MAX_REQUEST_CHARS], _request(as_object(asked)))

    def _take_limit(self, info: dict[str, Any]) -> None:
        self._usage_limit = None
        if info.get("status") == "rejected":
            self._usage_limit = ProviderLimit(USAGE, as_number(info.get("resetsAt")))
        windows = as_object(info.get("unifiedWindows"))
        found = ((name, as_object(windows.get(name))) for name in (FIVE_HOURS, SEVEN_DAYS))
        plan = tuple(
            (name, one.get("utilization"), one.get("resetsAt")) for name, one in found if one
        )
        self._plan = plan or self._plan

    def outcome(self, exit_code: int | None, skipped: int) -> ContextOutcome:
        """Return the outcome of what was taken; so many lines were skipped."""
        result = self.result
        end, error, limit = CUT_OFF, None, None
        if result is not None:
            end = self.read_end(result)
            # The host says `success` where the provider refused, and exits with 0 where a hook
            # ended the turn.
            if end in (COMPLETED, STOPPED) and result.get("is_error") is not False:
                end = FAILED
            if end in (COMPLETED, STOPPED):
                end, error = end_after_result(end, exit_code)
        if end not in (COMPLETED, STOPPED):
            error = error or self.describe_error()
            limit = None if end == OVERFLOWED else self.read_limit(error or "")
            if limit is not None and result is not None:
                end = LIMITED
        result = result or {}
        return ContextOutcome(
            end,
            exit_code,
            session_id=self._session_id,
            reason=as_text(result.get("terminal_reason") or result.get("subtype"), 100),
            last_text=as_text(result.get("result"), MAX_TEXT_CHARS) or self._text[:MAX_TEXT_CHARS],
            error=error,
            limit=limit if end == LIMITED else None,
            refused=tuple(self._refused.values())[:MAX_REFUSED],
            refused_count=len(self._refused),
            retries=self._retries,
            spent=self.read_spent(result),
            is_session_sum=self.is_session_sum,
            cost_usd=as_number(result.get("total_cost_usd")),
            skipped_lines=skipped,
            plan=self._plan,
        )

    def read_end(self, result: dict[str, Any]) -> str:
        """Return how the last turn ended, by its own words."""
        # Launchers before 2.1 give no reason.
        if "terminal_reason" not in result and result.get("subtype") == "success":
            return COMPLETED
        return _ENDS.get(str(result.get("terminal_reason")), FAILED)

    def describe_error(self) -> str | None:
        """Return what went wrong, in the host's words; None where it says nothing."""
        result = self.result or {}
        errors = result.get("errors")
        words = [one for one in errors if isinstance(one, str)] if isinstance(errors, list) else []
        if result.get("is_error") is not False:
            words.append(as_text(result.get("result"), MAX_TEXT_CHARS))
        if self._error is not None and not any(words):
            words.append(self._text)
        text = "; ".join(word for word in words if word)
        if not text and self.result is not None:
            text = as_text(result.get("terminal_reason") or result.get("subtype"), 100) or "unknown"
        return text[:MAX_TEXT_CHARS] or None

    def read_limit(self, error: str) -> ProviderLimit | None:
        """Return the limit that ended the session; None = it ended for another reason."""
        found_error = self._error or {}
        status = found_error.get("api_error_status") or (self.result or {}).get("api_error_status")
        if status == 429 or found_error.get("error") == "rate_limit":
            found = _ENDS_AT.search(error)
            if found is not None:
                return ProviderLimit(USAGE, float(found[1]))
            return self._usage_limit or ProviderLimit(RATE)
        return limit_by_status(status if isinstance(status, int) else None)

    def read_spent(self, result: dict[str, Any]) -> SpentTokens:
        """Return the sum over all models of a session, those of subagents too."""
        names = ("inputTokens", "cacheCreationInputTokens", "cacheReadInputTokens", "outputTokens")
        models = [as_object(one) for one in as_object(result.get("modelUsage")).values()]
        return SpentTokens(*(sum(as_count(one.get(name)) for one in models) for name in names))


def _request(asked: dict[str, Any]) -> str:
    for name in _MAIN_INPUTS:
        if isinstance(asked.get(name), str):
            return as_text(asked[name], MAX_REQUEST_CHARS)
    return json.dumps(asked)[:MAX_REQUEST_CHARS] if asked else ""
