"""The port between a relay and the program of an agent: one `AgentLauncher` for each host."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ultramon.relay.launchers.payer import Payer
from ultramon.system.files import open_private_output

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ultramon.relay.launchers.outcome import ContextOutcome, RefusedCall


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A program that is there and starts.

    Attributes:
        program: Its absolute path.
        version: As it says itself, empty where it cannot be asked.
        warning: A sentence for the user, or None.
    """

    program: str
    version: str = ""
    warning: str | None = None


@dataclass(frozen=True, slots=True)
class HandOverLevel:
    """Where a context is asked to hand over.

    Attributes:
        ratio: Share of the limit.
        limit_tokens: The limit; None = not known before the first reply.
        limit_name: Which limit it is: ``window``, ``trigger`` (the host compacts), ``refusal`` or
            ``limit`` (the user's cap); None = unknown.
    """

    ratio: float
    limit_tokens: int | None
    limit_name: str | None


@dataclass(frozen=True, slots=True)
class ContextCommand:
    """What starts one context.

    Attributes:
        arguments: The command line.
        environ: The whole environment.
        cwd: Where it works.
    """

    arguments: tuple[str, ...]
    environ: dict[str, str]
    cwd: str

    def start(self, output_path: str, errors_path: str) -> subprocess.Popen[bytes]:
        """Start the process, in a group of its own and with nothing to read.

        Its output goes to files and not to pipes, so that a context and its words outlive the
        process that started it.

        Args:
            output_path: For what it prints; made anew, readable by this user alone.
            errors_path: For its errors, likewise.

        Raises:
            OSError: The program, the directory or a file cannot be used.
        """
        with ExitStack() as files:
            output, errors = (
                files.enter_context(open_private_output(path))
                for path in (output_path, errors_path)
            )
            return subprocess.Popen(
                self.arguments,
                cwd=self.cwd,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                # A group of its own: what the agent starts is ended with it.
                start_new_session=True,
            )


class AgentLauncher(Protocol):
    """Starts contexts of one host for one relay, and reads what each said; a base of launchers.

    No method grants the agent anything: permissions are those of the user's own configuration and
    arguments.
    """

    name: str
    """Of the host, in options and texts."""
    uses_sdk: bool
    """Whether its agents keep their items and leave their handoffs by the SDK. Of the others the
    relay makes the handoff of their last words, and takes a failure of the host as final."""

    def check(self, cwd: str) -> CheckedProgram:
        """Find the host and ask for its version.

        Args:
            cwd: Where it shall work: its configuration there counts.

        Raises:
            ConfigurationError: It is not there, does not start, or cannot be watched there.
        """

    def hand_over_level(self, cwd: str, environ: Mapping[str, str]) -> HandOverLevel | None:
        """Return where its contexts hand over, as far as that is known before the first one.

        None, as here, where they decide it themselves.
        """
        return None

    def known_model(self, environ: Mapping[str, str]) -> str | None:
        """Return the model of its contexts, where that is known before the first reply.

        None, as here, where it is not.
        """
        return None

    def payer(self, cwd: str, environ: Mapping[str, str]) -> Payer:
        """Return what the requests of its contexts are charged to; unknown, as here, for some.

        Args:
            cwd: As for `check`.
            environ: That of its contexts.
        """
        return Payer()

    def describe_permissions(self) -> str:
        """Return which permissions its agents have, in words; empty, as here, for all."""
        return ""

    def describe_refused(self, call: RefusedCall) -> str:
        """Return what the user may add to allow a call; empty, as here, where it is unknown."""
        return ""

    def prepare(self) -> None:
        """Write what all contexts of the run need, such as hooks for this run alone.

        Here nothing. Repeating it is harmless. Nothing is installed outside of the relay's folder.

        Raises:
            StateError: The system refused.
        """
        return

    def command(
        self,
        prompt: str,
        *,
        cwd: str,
        session_id: str,
        environ: Mapping[str, str],
        resumes: bool = False,
    ) -> ContextCommand:
        """Return what starts a context.

        Args:
            prompt: Its first prompt.
            cwd: Where it works.
            session_id: The host's name for the session, a UUID.
            environ: The environment that the relay gives it.
            resumes: Whether the session is there already and is continued.

        Raises:
            ConfigurationError: The prompt is too long for a command line.
        """

    def end_session(
        self, agent_id: str, environ: Mapping[str, str], failed_with: str | None = None
    ) -> None:
        """Store the end of a session that has ended and whose last hook did not get to it.

        Here nothing: the agent does it. A host does not wait long for the hook of its end.
        Repeating it is harmless.

        Args:
            agent_id: The agent of the context.
            environ: The environment that the relay gave it.
            failed_with: Why its last request failed; None = it ended well.

        Raises:
            StateError: The state could not be stored.
        """
        return

    def read_outcome(self, lines: Iterable[bytes], exit_code: int | None) -> ContextOutcome:
        """Return how a context ended; never raises, whatever it printed.

        Args:
            lines: Its output.
            exit_code: Of the process; 0 alone is no proof of anything.
        """
