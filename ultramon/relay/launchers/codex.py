"""Starts ``codex exec`` with hooks for one run: nothing is installed anywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ultramon.errors import ConfigurationError
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.codex.last_reading import read_last_reading
from ultramon.hosts.codex.rollouts import find_thread
from ultramon.hosts.codex.setup import EVENTS, HOOK, SECONDS, TIMEOUTS
from ultramon.hosts.install.hook_commands import command_line, script_path
from ultramon.hosts.install.interpreter import this_interpreter
from ultramon.hosts.transcripts.records import OVERFLOW
from ultramon.relay.launchers.hooked_launcher import (
    ELSEWHERE,
    OWN,
    START_SECONDS,
    UNSEEN,
    HookedLauncher,
)
from ultramon.relay.launchers.json_lines import JsonLines, as_count, as_object, as_text
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    MAX_TEXT_CHARS,
    OVERFLOWED,
    OVERLOADED,
    USAGE,
    ContextOutcome,
    ProviderLimit,
    SpentTokens,
    end_after_result,
    limit_by_status,
)
from ultramon.relay.launchers.payer import API_KEY, SUBSCRIPTION, Payer, read_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ultramon.hosts.transcripts.records import LastReading

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


_KEY, _TOKEN = "CODEX_API_KEY", "CODEX_ACCESS_TOKEN"
_SOURCE = "sessionFlags"
_LIST = 2
_CLIENT = {"name": "ultramon", "version": "1"}
_ENDS_AT = re.compile(
    r"try again at (?:([A-Z][a-z]{2}) (\d{1,2})(?:st|nd|rd|th), (\d{4}) )?(\d{1,2}:\d{2} [AP]M)"
)
"""When a usage limit ends, in the host's local time: a time of the same day, or with a date."""
_MINUTE_SECONDS = 60.0
_OVERLOADED = ("server_overloaded", "internal_server_error")


class CodexLauncher(HookedLauncher):
    """Launcher of the real host; its arguments are those of `HookedLauncher`."""

    host = CODEX
    product = "Codex"
    usual_program = "codex"
    version_pattern = re.compile(r"^codex-cli (\d+)\.(\d+)\.(\d+)\b")
    tested_version = (0, 169, 0)
    refused_arguments = REFUSED_ARGUMENTS

    def check_hooks(self, cwd: str) -> None:
        """Have the host list the hooks; see `HookedLauncher.check_hooks`."""
        if not self._trust:
            allowed = f"set so that hooks run: {UNSEEN.partition(', and ')[0]}"
            raise ConfigurationError("hooks", "off", allowed, "the host's configuration")

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what requests are charged to; see `AgentLauncher`.

        A key in the environment comes before a login. Another provider, or a login in the keyring
        of the system, is not known.
        """
        if environ.get(_KEY):
            return Payer(API_KEY, _KEY)
        if environ.get(_TOKEN):
            return Payer(SUBSCRIPTION, _TOKEN)
        login = read_object(os.path.join(self.host.dialect.account_directory(environ), "auth.json"))
        if login.get("OPENAI_API_KEY"):
            return Payer(API_KEY, "auth.json")
        return Payer(SUBSCRIPTION) if login.get("tokens") else Payer()

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
        """Return the arguments of ``codex exec``; see `HookedLauncher.arguments`."""
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


def listed_hooks(program: str, settings: Sequence[str]) -> dict[str, str]:
    """Return the mark of each hook of a command line that the host would run, by its name.

    Codex runs a hook only where its mark is trusted. The relay trusts its own hooks for one run by
    their marks; a switch that trusts all would run hooks as well that the user has not reviewed.

    Args:
        program: The host.
        settings: Arguments that name the hooks.

    Raises:
        ConfigurationError: The host does not answer.
    """
    try:
        process = subprocess.Popen(
            [program, "app-server", *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        allowed = f"Codex; it does not start: {error.strerror}"
        raise ConfigurationError("program", program, allowed) from error
    # Its output is read line by line, which has no timeout of its own.
    watchdog = threading.Timer(START_SECONDS, process.kill)
    watchdog.start()
    try:
        for answer in _ask(process):
            if answer.get("id") == _LIST:
                return dict(_marks(answer))
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()
    allowed = f"Codex; it did not list its hooks within {START_SECONDS} s"
    raise ConfigurationError("program", program, allowed)


def toml_text(text: str) -> str:
    """Return a text as TOML."""
    # Every JSON string is a TOML string but for DEL, which TOML wants escaped as well.
    return json.dumps(text).replace("\x7f", "\\u007f")


def _ask(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Ask for the hooks, and yield what the host says."""
    asked: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": {"clientInfo": _CLIENT}},
        {"method": "initialized"},
        {"id": _LIST, "method": "hooks/list", "params": {}},
    ]
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(b"".join(json.dumps(one).encode() + b"\n" for one in asked))
        process.stdin.flush()
    yield from JsonLines(process.stdout)


def _marks(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    folders = as_object(answer.get("result")).get("data")
    for folder in folders if isinstance(folders, list) else ():
        for hook in folder["hooks"]:
            if hook["source"] == _SOURCE and hook["enabled"]:
                yield hook["key"], hook["currentHash"]


def read_outcome(
    lines: Iterable[bytes],
    exit_code: int | None,
    last_turn: Callable[[str], LastReading | None] = lambda _: None,
) -> ContextOutcome:
    """Return how a context ended, by what ``codex exec --json`` printed and by its rollout.

    The output has words for people, the rollout has the kind of an error. Unknown lines and fields
    are passed over: a newer host may print more.

    Args:
        lines: The output; the last line may be cut.
        exit_code: Of the process. 0 proves nothing, a failure is one whatever was printed.
        last_turn: Returns what the rollout of a thread says at its end; None = there is none.
    """
    thread_id: str | None = None
    error: str | None = None
    text = ""
    result: dict[str, Any] | None = None
    objects = JsonLines(lines)
    for entry in objects:
        kind = entry.get("type")
        if kind == "thread.started":
            thread_id = as_text(entry.get("thread_id"), 100) or thread_id
        elif kind in ("turn.completed", "turn.failed"):
            result = entry
        elif kind == "item.completed":
            item = as_object(entry.get("item"))
            if item.get("type") == "agent_message":
                text = as_text(item.get("text"), MAX_TEXT_CHARS) or text
        elif kind == "error":
            error = as_text(entry.get("message"), MAX_TEXT_CHARS) or error
    end, limit, reason = CUT_OFF, None, ""
    if result is not None and result["type"] == "turn.completed":
        end, error = end_after_result(COMPLETED, exit_code)
    elif result is not None:
        failure = as_object(result.get("error"))
        error = as_text(failure.get("message"), MAX_TEXT_CHARS) or error or "unknown"
        turn = None if thread_id is None else last_turn(thread_id)
        reason = (turn.error if turn is not None else None) or ""
        limit = _limit(reason, None if turn is None else turn.error_status, error)
        end = OVERFLOWED if reason == OVERFLOW else FAILED if limit is None else LIMITED
    return ContextOutcome(
        end,
        exit_code,
        session_id=thread_id,
        reason=reason,
        last_text=text,
        error=error,
        limit=limit,
        spent=_spent(as_object((result or {}).get("usage"))),
        is_session_sum=True,
        skipped_lines=objects.skipped,
    )


def _limit(reason: str, status: int | None, words: str) -> ProviderLimit | None:
    """Return the limit that ended the turn; None = it ended for another reason."""
    if reason == "usage_limit_exceeded":
        return ProviderLimit(USAGE, _end_of_limit(words))
    if reason in _OVERLOADED and status != 429:
        return ProviderLimit(OVERLOADED)
    return limit_by_status(status)


def _end_of_limit(words: str) -> float | None:
    """Return when a limit has ended, epoch seconds; the host leaves out the seconds."""
    found = _ENDS_AT.search(words)
    if found is None:
        return None
    month, day, year, clock = found.groups()
    date = f"{month} {day} {year}" if month else datetime.now().strftime("%b %d %Y")
    try:
        at = datetime.strptime(f"{date} {clock}", "%b %d %Y %I:%M %p")
    except ValueError:
        return None
    # The words have no seconds: a minute later the limit has ended for sure.
    return at.timestamp() + _MINUTE_SECONDS


def _spent(usage: dict[str, Any]) -> SpentTokens:
    """Return the sum over the thread; what the host calls its input has the cached tokens in."""
    created = as_count(usage.get("cache_write_input_tokens"))
    cached = as_count(usage.get("cached_input_tokens"))
    return SpentTokens(
        input_tokens=max(0, as_count(usage.get("input_tokens")) - created - cached),
        cache_creation_tokens=created,
        cache_read_tokens=cached,
        output_tokens=as_count(usage.get("output_tokens")),
    )
