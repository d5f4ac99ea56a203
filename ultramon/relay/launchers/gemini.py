"""Starts the headless Gemini CLI, which the hooks of an installation report.

The host takes hooks from the settings of user and project, and from files that belong to root;
no argument and no variable names others. In a relay an installation's hooks work by its choices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ultramon.context.limits import parse_overflow
from ultramon.errors import ConfigurationError
from ultramon.hosts.calls.switches import RELAY_SESSION
from ultramon.hosts.gemini.host import GEMINI
from ultramon.hosts.gemini.setup import find_switch, hooks
from ultramon.relay.launchers.hooked_launcher import ELSEWHERE, OWN, UNSEEN, HookedLauncher
from ultramon.relay.launchers.json_lines import JsonLines, as_count, as_object, as_text
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_REFUSED,
    MAX_REQUEST_CHARS,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    RefusedCall,
    SpentTokens,
    end_after_result,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


WAITS = "no person would answer it"
REFUSED_BY_BOTH = {
    "-p": OWN,
    "--prompt": OWN,
    "-o": OWN,
    "--output-format": OWN,
    "--session-id": OWN,
    "-r": OWN,
    "--resume": OWN,
    "-i": WAITS,
    "--prompt-interactive": WAITS,
    "--acp": WAITS,
    "-s": UNSEEN,
    "--sandbox": UNSEEN,
    "--worktree": ELSEWHERE,
}
REFUSED_ARGUMENTS = REFUSED_BY_BOTH | {
    "--session-file": OWN,
    "--experimental-acp": WAITS,
    "-w": ELSEWHERE,
}
_UNASKED = ("-y", "--yolo", "--approval-mode=yolo")
_PROMPTS = frozenset({"replace", "run_shell_command", "web_fetch", "write_file"})
"""Tools that a session without a person does not have where they would prompt."""
_LOGIN = "oauth-personal"
_BILLED_BY_USE = ("GOOGLE_GENAI_USE_VERTEXAI", "GEMINI_API_KEY")
_NO_TOOL = "tool_not_registered"
_USED_UP = re.compile(r"exhausted your|quota")


class GeminiArgumentsLauncher(HookedLauncher):
    """Launcher of Gemini CLI, or of Qwen Code, which was made from it and takes like arguments.

    Attributes:
        own_permissions: What holds where no argument says otherwise.
        unanswered: What becomes of a tool that would ask a person.
    """

    own_permissions: str
    unanswered: str

    def describe_permissions(self) -> str:
        """Return whose permissions hold; see `AgentLauncher.describe_permissions`."""
        own = self.given("--approval-mode")
        for argument in self._arguments:
            if argument in _UNASKED or own == "yolo":
                return f"permissions: nothing is asked, by your argument {argument}"
        whose = f"approval mode {own}" if own else self.own_permissions
        return f"permissions: {whose}; {self.unanswered}"

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of a headless session; see `HookedLauncher.arguments`."""
        return (
            *self._arguments,
            "--output-format", "stream-json",
            "--resume" if resumes else "--session-id", session_id,
            "--prompt", prompt,
        )  # fmt: skip

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return what has the hooks report this session, and none that its agent begins."""
        return {RELAY_SESSION: session_id}


class GeminiLauncher(GeminiArgumentsLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

    host = GEMINI
    product = "Gemini CLI"
    usual_program = "gemini"
    tested_version = (0, 61, 0)
    refused_arguments = REFUSED_ARGUMENTS
    own_permissions = "your settings and policies"
    unanswered = "tools that would prompt are not offered"
    outer_variables = ("GEMINI_CLI", "GEMINI_SESSION_ID", "GEMINI_PROJECT_DIR", "GEMINI_CWD")

    def check_settings(self, cwd: str) -> None:
        """Ask for an installation; see `HookedLauncher.check_settings`."""
        settings = hooks()
        missing = set(settings.events).difference(hook.event for hook in settings.our_hooks())
        if missing:
            allowed = "installed: `ultramon install gemini`; the host takes them from there only"
            raise ConfigurationError("hooks", "missing", allowed, settings.path)
        if (off := find_switch(settings)) is not None:
            allowed = f"otherwise, so {off.cure}: {UNSEEN}"
            raise ConfigurationError(off.name, off.value, allowed, settings.path)

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to; see `AgentLauncher`.

        The choice in the user's settings comes before the environment.
        """
        chosen = hooks().get("security", "auth", "selectedType")
        if chosen:
            return Payer(SUBSCRIPTION) if chosen == _LOGIN else Payer(API_KEY, str(chosen))
        if environ.get("GOOGLE_GENAI_USE_GCA") == "true":
            return Payer(SUBSCRIPTION)
        found = (name for name in _BILLED_BY_USE if environ.get(name))
        return next((Payer(API_KEY, name) for name in found), Payer())

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


def read_outcome(lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
    """Return how a context ended, by what it printed (``--output-format stream-json``).

    Unknown lines and fields are passed over: a newer host may print more.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
    """
    session_id: str | None = None
    result: dict[str, Any] = {}
    words: list[str] = []
    asked: dict[str, RefusedCall] = {}
    refused: list[RefusedCall] = []
    objects = JsonLines(lines)
    for entry in objects:
        kind = entry.get("type")
        if kind == "init":
            session_id = as_text(entry.get("session_id"), 100) or session_id
        elif kind == "result":
            result = entry
        elif kind == "message" and entry.get("role") == "assistant":
            words.append(as_text(entry.get("content"), MAX_TEXT_CHARS))
        elif kind == "tool_use":
            words.clear()
            tool = as_text(entry.get("tool_name"), MAX_REQUEST_CHARS)
            request = _request(as_object(entry.get("parameters")))
            asked[str(entry.get("tool_id"))] = RefusedCall(tool, request)
        elif kind == "tool_result" and as_object(entry.get("error")).get("type") == _NO_TOOL:
            call = asked.get(str(entry.get("tool_id")))
            # Any other tool that is missing was never offered: no permission refused it.
            if call is not None and call.tool in _PROMPTS:
                refused.append(call)
    end, error, limit = CUT_OFF, None, None
    if result.get("status") == "success":
        end, error = end_after_result(COMPLETED, exit_code)
    elif result:
        error = as_text(as_object(result.get("error")).get("message"), MAX_TEXT_CHARS) or "unknown"
        limit = _limit(exit_code, error)
        end = LIMITED if limit else OVERFLOWED if parse_overflow(error) else FAILED
    return ContextOutcome(
        end,
        exit_code,
        session_id=session_id,
        reason=as_text(result.get("status"), 100),
        last_text="".join(words)[:MAX_TEXT_CHARS],
        error=error,
        limit=limit,
        refused=tuple(refused[:MAX_REFUSED]),
        refused_count=len(refused),
        spent=_spent(as_object(result.get("stats"))),
        skipped_lines=objects.skipped,
    )


def _limit(exit_code: int | None, words: str) -> ProviderLimit | None:
    """Return the limit that ended the session; None = it ended for another reason.

    The exit code is the status of the answer, of which a process can say the last eight bits.
    """
    status = None if exit_code is None or exit_code < 400 - 256 else exit_code + 256
    if status == 429 and _USED_UP.search(words):
        return ProviderLimit(USAGE)
    return limit_by_status(status)


def _request(parameters: dict[str, Any]) -> str:
    texts = (as_text(parameters.get(name), MAX_REQUEST_CHARS) for name in ("command", "file_path"))
    return next(filter(None, texts), "")


def _spent(stats: dict[str, Any]) -> SpentTokens:
    """Return the tokens of this process; what the host calls ``input`` has no cached ones in."""
    return SpentTokens(
        input_tokens=as_count(stats.get("input")),
        cache_read_tokens=as_count(stats.get("cached")),
        output_tokens=as_count(stats.get("output_tokens")),
    )
