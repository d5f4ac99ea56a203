"""Starts the headless Claude Code with hooks for one run: nothing is installed anywhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

from ultramon.context.ladder import FORCE_RETURN
from ultramon.context.limits import resolve_limit, window_for_model
from ultramon.context.note import check_critical_note
from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.claude_code import NAME
from ultramon.hosts.claude_code.compaction_trigger import compaction_limits
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.setup.commands import (
    EVENTS,
    HOOK_SCRIPT,
    command_line,
    script_path,
)
from ultramon.hosts.claude_code.setup.http_hooks import entry_for
from ultramon.hosts.claude_code.setup.launcher import Launcher
from ultramon.hosts.claude_code.setup.settings import Settings, find_layers
from ultramon.hosts.installed_choices import AGENT, NOBODY, InstalledChoices, choices_path
from ultramon.hosts.interpreter import this_interpreter
from ultramon.hosts.store import HookStore
from ultramon.monitor.handoff import ASSIGNMENT, SUPERVISED
from ultramon.relay.launchers.claude_code_output import read_outcome
from ultramon.relay.launchers.port import (
    CheckedClient,
    ContextCommand,
    HandOverLevel,
    run_directory,
)
from ultramon.state.record import StateRecord
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled
from ultramon.system.files import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ultramon.context.ladder import Ladder
    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall

TESTED_VERSION = (2, 1, 330)
"""The client that ultramon's own tests drive."""
MAX_PROMPT_BYTES = 128 * 1024 - 1
"""Linux takes no longer argument."""
_START_SECONDS = 30
_VERSION = re.compile(r"^(\d+)\.(\d+)\.(\d+)\b")

_OWN = "the relay gives it itself"
_UNSEEN = "with it no hook runs, and the relay would see nothing"
_ELSEWHERE = "the session would run elsewhere"
REFUSED_ARGUMENTS = {
    "-p": _OWN,
    "--print": _OWN,
    "--output-format": _OWN,
    "--input-format": _OWN,
    "--settings": f"{_OWN}; put yours into the settings of the project",
    "--session-id": _OWN,
    "-r": _OWN,
    "--resume": _OWN,
    "-c": _OWN,
    "--continue": _OWN,
    "--fork-session": _OWN,
    "--from-pr": _OWN,
    "--bare": _UNSEEN,
    "--safe-mode": _UNSEEN,
    "--no-session-persistence": "hooks read the transcript, and none would be written",
    "--bg": _ELSEWHERE,
    "--background": _ELSEWHERE,
    "--cloud": _ELSEWHERE,
}
"""Arguments of the user that a relay cannot do with, with the reason."""
OUTER_VARIABLES = (
    "CLAUDECODE",
    "CLAUDE_CODE_ENTRYPOINT",
    "CLAUDE_CODE_MESSAGING_TOKEN",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_PID",
    "CLAUDE_PROJECT_DIR",
    # A program that the agent runs is no worker of the relay.
    SUPERVISED,
    ASSIGNMENT,
)
"""What a client sets for its own tools, where one starts a relay; and what only workers need."""
_PERMITTING = ("--allowedTools", "--allowed-tools", "--permission-mode", "--disallowedTools")


class ClaudeCodeLauncher:
    """Launcher of the real client.

    The user's settings, hooks and permissions stay in force: no argument is added that grants
    anything.

    Args:
        run: The relay.
        state_directory: Where states are kept.
        program: Name or path of the client.
        arguments: The user's arguments for each context.
        ladder: The rungs; None = those of the user's installation, else the default.
        context_limit_tokens: A cap on the window; None = that of the installation, if any.
        hand_over_note: A note to the agent, once, at the rung where it hands over.
        hand_over_from: The action of that rung, ``prepare_handoff`` or ``force_return``.
        warns: Whether agents learn of the level of their context at all.
        enforce: Whether a hook ends a context that is asked to return and goes on.

    Raises:
        ConfigurationError: A relay cannot do with one of the arguments, or the note is too long.
    """

    name = NAME
    uses_sdk = False

    def __init__(
        self,
        run: str,
        state_directory: str,
        *,
        program: str = "claude",
        arguments: Sequence[str] = (),
        ladder: Ladder | None = None,
        context_limit_tokens: int | None = None,
        hand_over_note: str = "",
        hand_over_from: str = FORCE_RETURN,
        warns: bool = True,
        enforce: bool = False,
    ) -> None:
        for argument in arguments:
            reason = REFUSED_ARGUMENTS.get(argument.partition("=")[0])
            if reason is not None:
                raise ConfigurationError(
                    "argument", argument, f"left out: {reason}", "command line"
                )
        self._run = run
        self._state_directory = os.path.abspath(state_directory)
        self._program = program
        self._arguments = tuple(arguments)
        self._ladder = ladder
        self._context_limit_tokens = context_limit_tokens
        self._hand_over_from = hand_over_from
        self._warns = warns
        self._hand_over_note = check_critical_note(hand_over_note, "hand_over_note")
        self._enforce = enforce
        self._choices_path = choices_path(run_directory(state_directory, run), NAME)
        self._hook = Launcher(HOOK_SCRIPT, this_interpreter(), self._choices_path)

    def check(self, cwd: str) -> CheckedClient:
        """Find the client and ask for its version; see `AgentLauncher.check`."""
        if disabled():
            raise ConfigurationError("ULTRAMON_DISABLED", "1", "unset for a relay", "environment")
        program = shutil.which(self._program)
        if program is None:
            raise ConfigurationError("program", self._program, "a Claude Code on this machine")
        for layer in find_layers(cwd):
            try:
                disables_hooks = Settings(layer.path).disables_hooks
            except (StateError, OSError):
                continue  # the client does not read it either
            if disables_hooks:
                allowed = f"false: {_UNSEEN}"
                raise ConfigurationError("disableAllHooks", True, allowed, layer.path)
        version = _ask_version(program)
        found = _VERSION.match(version)
        if found is None:
            raise ConfigurationError("program", program, f"Claude Code; it says {version[:80]!r}")
        warning = None
        if tuple(map(int, found.groups())) < TESTED_VERSION:
            tested = ".".join(map(str, TESTED_VERSION))
            warning = f"Claude Code {found[0]} is older than {tested}, which relays are tested with"
        return CheckedClient(os.path.abspath(program), found[0], warning)

    def hand_over_level(self, cwd: str, environ: Mapping[str, str]) -> HandOverLevel | None:
        """Return the rung and the limit, by settings and arguments; see `AgentLauncher`."""
        given = self._given("--model") or environ.get("ANTHROPIC_MODEL")
        # Short names such as `opus` stand for another model each year.
        model = given if given is not None and given.startswith("claude-") else None
        choices = self._choices()
        record = StateRecord("relay")
        record.model, record.host = model, NAME
        trigger, refusal = compaction_limits(environ, cwd, model, window_for_model(model, NAME))
        resolve_limit(
            record,
            explicit_limit_tokens=choices.context_limit_tokens,
            host_trigger_tokens=trigger,
            host_refusal_tokens=refusal,
        )
        actions = (choices.note_from, FORCE_RETURN)
        rungs = choices.ladder.resolve(record.context_limit).rungs
        rung = next((rung for rung in rungs if rung.action in actions), None)
        if rung is None:
            return None
        found = record.limit_candidates or ()
        name = next((one["name"] for one in found if one["verdict"] == "binding"), None)
        return HandOverLevel(rung.nominal_ratio, record.context_limit, name)

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

    def _given(self, name: str) -> str | None:
        """Return the value of one of the user's arguments."""
        for at, argument in enumerate(self._arguments):
            if argument.startswith(f"{name}="):
                return argument.partition("=")[2]
            if argument == name and at + 1 < len(self._arguments):
                return self._arguments[at + 1]
        return None

    def prepare(self) -> None:
        """Write the choices and the hook's program into the folder of the run."""
        mine = self._choices()
        make_private_directory(self._state_directory)
        mine.install()
        if self._hook.can_run:
            self._hook.write()

    def _choices(self) -> InstalledChoices:
        """Return the choices of the hooks of this run."""
        mine = InstalledChoices(self._choices_path)
        stored = InstalledChoices.load(choices_path(self._state_directory, NAME))
        mine.ladder = self._ladder or stored.ladder
        mine.context_limit_tokens = self._context_limit_tokens or stored.context_limit_tokens
        mine.handoff_note = stored.handoff_note
        mine.critical_note, mine.note_from = self._hand_over_note, self._hand_over_from
        mine.status_line_show = "none"
        if self._enforce:
            # The level is the lowest one: what must be obeyed is its request to return.
            asked = (rung.name for rung in mine.ladder.rungs if rung.action == FORCE_RETURN)
            mine.enforce = next(asked, None)
        return mine

    def settings(self) -> dict[str, object]:
        """Return the settings for one run: hooks, and nothing else."""
        command = f"exec {shlex.quote(self._hook.path)}"
        if not self._hook.can_run:
            command = command_line(this_interpreter(), script_path(HOOK_SCRIPT), self._choices_path)
        entries = {event: [entry_for(event, command, waits=self._enforce)] for event in EVENTS}
        return {"hooks": entries}

    def command(
        self,
        prompt: str,
        *,
        cwd: str,
        session_id: str,
        environ: Mapping[str, str],
        resumes: bool = False,
    ) -> ContextCommand:
        """Return what starts a context; see `AgentLauncher.command`."""
        # No argument holds half a character, e.g. from a broken file name.
        data = prompt.encode("utf-8", "replace")
        if not 0 < len(data) <= MAX_PROMPT_BYTES or b"\0" in data or data.startswith(b"-"):
            allowed = f"text of at most {MAX_PROMPT_BYTES:,} bytes that begins with no hyphen"
            raise ConfigurationError("prompt", f"{prompt[:40]}…", allowed)
        given = {name: value for name, value in environ.items() if name not in OUTER_VARIABLES}
        given["ULTRAMON_RELAY"] = self._run
        given["ULTRAMON_STATE_DIR"] = self._state_directory
        # The user of a relay wants the agent warned, whatever the project says of other sessions.
        given["ULTRAMON_AUDIENCE"] = AGENT if self._warns else NOBODY
        arguments = (
            self._program, "-p", data.decode(),
            "--output-format", "stream-json", "--verbose",
            "--resume" if resumes else "--session-id", session_id,
            "--settings", json.dumps(self.settings()),
            *self._arguments,
        )  # fmt: skip
        return ContextCommand(arguments, given, cwd)

    def end_session(self, agent_id: str, environ: Mapping[str, str]) -> None:
        """Store the end in the place of the hook; see `AgentLauncher.end_session`."""
        environ = {**environ, "ULTRAMON_RELAY": self._run}
        store = HookStore(
            CLAUDE_CODE,
            self._state_directory,
            self._choices_path,
            environ,
            event="SessionEnd",
            now=SYSTEM_CLOCK.now(),
        )
        store.update(agent_id, lambda agent: agent.finish("other"), create=False)

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; see `AgentLauncher.read_outcome`."""
        return read_outcome(lines, exit_code)


def _ask_version(program: str) -> str:
    """Return what the client says about its version.

    Raises:
        ConfigurationError: It does not start.
    """
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        reason = f"did not answer within {_START_SECONDS} s"
        raise ConfigurationError("program", program, f"Claude Code; it {reason}") from error
    except subprocess.CalledProcessError as error:
        raise ConfigurationError(
            "program", program, f"Claude Code; it exits with {error.returncode}"
        ) from error
    except OSError as error:
        raise ConfigurationError(
            "program", program, f"Claude Code; it does not start: {error.strerror}"
        ) from error
    return done.stdout.decode("utf-8", "replace").strip()
