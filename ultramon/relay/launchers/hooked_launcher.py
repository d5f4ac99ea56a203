"""What holds for every host that ultramon's hooks report: `AgentLauncher` but for its words.

Nothing is installed anywhere: a subclass says how the host gets the hooks of a run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from ultramon.context.ladder import FORCE_RETURN
from ultramon.context.limits import resolve_limit, window_for_model
from ultramon.context.note import check_critical_note
from ultramon.errors import ConfigurationError
from ultramon.handoff import ASSIGNMENT, SUPERVISED
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.install.plans import ladder_of
from ultramon.hosts.installed_choices import AGENT, NO_AUDIENCE, InstalledChoices, choices_path
from ultramon.relay.launchers.port import (
    AgentLauncher,
    CheckedProgram,
    ContextCommand,
    HandOverLevel,
)
from ultramon.relay.run_folder import run_directory
from ultramon.state.record import StateRecord
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled
from ultramon.system.files import make_private_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.context.ladder import Ladder
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.port import Host

MAX_PROMPT_BYTES = 128 * 1024 - 1
"""Linux takes no longer argument."""
START_SECONDS = 30
OWN = "the relay gives it itself"
UNSEEN = "with it no hook runs, and the relay would see nothing"
ELSEWHERE = "the session would run elsewhere"
# A program that the agent runs is no worker of the relay.
WORKER_VARIABLES = (SUPERVISED, ASSIGNMENT)


class HookedLauncher(AgentLauncher):
    """Launcher of one host; a subclass says what is its own.

    The user's settings, hooks and permissions stay in force: no argument is added that grants
    anything.

    Args:
        run: The relay.
        state_directory: Where states are kept.
        program: Name or path of the host; None = its usual name.
        arguments: The user's arguments for each context.
        ladder: The rungs; None = those of the user's installation, else the default.
        context_limit_tokens: A cap on the window; None = that of the installation, if any.
        hand_over_note: A sentence for the agent, once, at the rung where it hands over.
        hand_over_from: The action of that rung, ``prepare_handoff`` or ``force_return``.
        warns: Whether agents are notified of the level of their context at all.
        enforce: Whether a hook ends a context that is asked to return and continues, where
            the host lets hooks do so.

    Attributes:
        host: The host.
        product: What people call it.
        usual_program: Its usual name on ``PATH``.
        version_pattern: Finds three groups of its version; most hosts say nothing before it.
        tested_version: The version that ultramon's own tests drive.
        refused_arguments: Arguments of the user that a relay cannot do with, with the reason.
        outer_variables: What the host sets for its own tools, where one starts a relay.
        can_enforce: Whether its hooks can end a turn.

    Raises:
        ConfigurationError: A relay cannot do with one of the arguments, or the note is too long.
    """

    uses_sdk = False
    host: Host
    product: str
    usual_program: str
    version_pattern = re.compile(r"^(\d+)\.(\d+)\.(\d+)\b")
    tested_version: tuple[int, int, int]
    refused_arguments: Mapping[str, str]
    outer_variables: tuple[str, ...] = ()
    can_enforce = False

    def __init__(
        self,
        run: str,
        state_directory: str,
        *,
        program: str | None = None,
        arguments: Sequence[str] = (),
        ladder: Ladder | None = None,
        context_limit_tokens: int | None = None,
        hand_over_note: str = "",
        hand_over_from: str = FORCE_RETURN,
        warns: bool = True,
        enforce: bool = False,
    ) -> None:
        for argument in arguments:
            reason = self.refused_arguments.get(argument.partition("=")[0])
            if reason is not None:
                raise ConfigurationError(
                    "argument", argument, f"left out: {reason}", "command line"
                )
        self.name = self.host.name
        self._run = run
        self._state_directory = os.path.abspath(state_directory)
        self._program = program or self.usual_program
        self._arguments = tuple(arguments)
        self._ladder = ladder
        self._context_limit_tokens = context_limit_tokens
        self._hand_over_from = hand_over_from
        self._warns = warns
        self._hand_over_note = check_critical_note(hand_over_note, "hand_over_note")
        self._enforce = enforce and self.can_enforce
        self._choices_path = choices_path(run_directory(state_directory, run), self.name)

    def check(self, cwd: str) -> CheckedProgram:
        """Find the host and ask for its version; see `AgentLauncher.check`."""
        if disabled():
            raise ConfigurationError("ULTRAMON_DISABLED", "1", "unset for a relay", "environment")
        program = shutil.which(self._program)
        if program is None:
            allowed = f"{self.product} on this machine; --agent takes another host"
            raise ConfigurationError("program", self._program, allowed)
        self.check_settings(cwd)
        version = self._ask_version(program)
        found = self.version_pattern.match(version)
        if found is None:
            allowed = f"{self.product}; it says {version[:80]!r}"
            raise ConfigurationError("program", program, allowed)
        warning, given = None, ".".join(found.groups())
        if tuple(map(int, found.groups())) < self.tested_version:
            tested = ".".join(map(str, self.tested_version))
            warning = f"{self.product} {given} is older than {tested}, which relays are tested with"
        self.check_hooks(cwd)
        return CheckedProgram(os.path.abspath(program), given, warning)

    def check_settings(self, cwd: str) -> None:
        """Read whether the host's settings let hooks run there.

        Raises:
            ConfigurationError: They do not.
        """

    def check_hooks(self, cwd: str) -> None:
        """Ask the host whether it will run the hooks there, if it can be asked.

        Raises:
            ConfigurationError: It will not.
        """

    def hand_over_level(self, cwd: str, environ: Mapping[str, str]) -> HandOverLevel | None:
        """Return the rung and the limit, by settings and arguments; see `AgentLauncher`."""
        model = self.known_model(environ)
        choices = self._choices()
        record = StateRecord("relay")
        record.model, record.host = model, self.name
        window = window_for_model(model, self.name)
        trigger, refusal = self.host.dialect.compaction_limits(environ, cwd, model, window)
        if self.host.dialect.prompts_before_compaction > 1:
            trigger = None  # a context has one prompt
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

    def given(self, *names: str) -> str | None:
        """Return the value of one of the user's arguments, by any of its names."""
        for at, argument in enumerate(self._arguments):
            name, is_one, value = argument.partition("=")
            if name in names and is_one:
                return value
            if name in names and at + 1 < len(self._arguments):
                return self._arguments[at + 1]
        return None

    def prepare(self) -> None:
        """Write the choices of the run's hooks into its folder."""
        mine = self._choices()
        make_private_directory(self._state_directory)
        mine.install()

    def _choices(self) -> InstalledChoices:
        """Return the choices of the hooks of this run."""
        mine = InstalledChoices(self._choices_path)
        # What the user chose for all sessions holds here too, where the relay does not say
        # otherwise.
        stored = InstalledChoices.load(choices_path(self._state_directory, self.name))
        mine.ladder = self._ladder or ladder_of(stored)
        mine.context_limit_tokens = self._context_limit_tokens or stored.context_limit_tokens
        mine.handoff_note = stored.handoff_note
        mine.critical_note, mine.note_from = self._hand_over_note, self._hand_over_from
        mine.status_line_show = "none"
        if self._enforce:
            # The level is the lowest one: what must be obeyed is its request to return.
            asked = (rung.name for rung in mine.ladder.rungs if rung.action == FORCE_RETURN)
            mine.enforce = next(asked, None)
        return mine

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
        # With a hyphen in front it would be taken for an option.
        if not 0 < len(data) <= MAX_PROMPT_BYTES or b"\0" in data or data.startswith(b"-"):
            allowed = f"text of at most {MAX_PROMPT_BYTES:,} bytes that begins with no hyphen"
            raise ConfigurationError("prompt", f"{prompt[:40]}…", allowed)
        outer = (*self.outer_variables, *WORKER_VARIABLES)
        given = {name: value for name, value in environ.items() if name not in outer}
        given["ULTRAMON_RELAY"] = self._run
        given["ULTRAMON_STATE_DIR"] = self._state_directory
        # The user of a relay wants the agent warned, whatever the project says of other sessions.
        given["ULTRAMON_AUDIENCE"] = AGENT if self._warns else NO_AUDIENCE
        given.update(self.variables(session_id))
        arguments = self.arguments(data.decode(), session_id, resumes=resumes)
        return ContextCommand((self._program, *arguments), given, cwd)

    def arguments(self, prompt: str, session_id: str, *, resumes: bool) -> tuple[str, ...]:
        """Return the arguments of the host, those of the user among them."""
        raise NotImplementedError

    def variables(self, session_id: str) -> Mapping[str, str]:
        """Return what else the host is started with in its environment."""
        return {}

    def end_session(
        self, agent_id: str, environ: Mapping[str, str], failed_with: str | None = None
    ) -> None:
        """Store the end in the place of the hook; see `AgentLauncher.end_session`."""
        environ = {**environ, "ULTRAMON_RELAY": self._run}
        store = HookStore(
            self.host,
            self._state_directory,
            self._choices_path,
            environ,
            event="SessionEnd",
            now=SYSTEM_CLOCK.now(),
        )

        def end(agent: HostedAgent) -> None:
            if failed_with is None:
                agent.finish("other")
            else:
                agent.end("failed", "request failed", failed_with)

        store.update(agent_id, end, create=False)

    def _ask_version(self, program: str) -> str:
        """Return what the host says about its version.

        Raises:
            ConfigurationError: It does not start.
        """
        try:
            done = subprocess.run(
                [program, "--version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=START_SECONDS,
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            reason = f"did not answer within {START_SECONDS} s"
            raise ConfigurationError("program", program, f"{self.product}; it {reason}") from error
        except subprocess.CalledProcessError as error:
            raise ConfigurationError(
                "program", program, f"{self.product}; it exits with {error.returncode}"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                "program", program, f"{self.product}; it does not start: {error.strerror}"
            ) from error
        return done.stdout.decode("utf-8", "replace").strip()
