"""What one hook is invoked with: the host and its environment, the choices, the time.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

import os

from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import StateError
from ultramon.hosts.installed_choices import NO_AUDIENCE, InstalledChoices
from ultramon.system import compact_json
from ultramon.system.files import read_private_file, replace_file
from ultramon.system.processes import boot_seconds, process_started_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ultramon.hosts.calls.learned_compactions import LearnedCompactions
    from ultramon.hosts.port import Host
    from ultramon.state.plan_limits import AccountPlan, PlanLimit

WINDOWS_SUFFIX = ".windows.json"
"""Of the file, after the host's name, that holds the windows that it reported."""
COMPACTIONS_SUFFIX = ".compactions.json"
"""Of the file, after the host's name, that holds the tokens before automatic compactions."""
_MAX_WINDOWS = 200


class Invocation:
    """One invocation of a hook.

    Args:
        host: Whose hook it is.
        directory: The state directory.
        choices_path: The choices of the installation; without readable ones no agent is warned.
        environ: The host's environment.
        event: The host's name for the event, for the failure log.
        now: Epoch seconds.

    Attributes:
        is_retry: Whether a resident may have begun to handle this call, and did not answer it.
        began_at: When the host made the call, on the clock of `boot_seconds`: calls may overtake
            each other, these times do not. A program that handles a call of its own process sets
            it; else it is the time now.
    """

    is_retry = False

    def __init__(
        self,
        host: Host,
        directory: str,
        choices_path: str,
        environ: Mapping[str, str],
        *,
        event: str,
        now: float,
    ) -> None:
        self.host = host
        self.directory = StateDirectory(directory)
        self.environ = environ
        self.event = event
        self.now = now
        self.began_at = boot_seconds()
        self._windows_path = os.path.join(self.directory.path, host.name + WINDOWS_SUFFIX)
        self._compactions: LearnedCompactions | None = None
        try:
            self.installed = InstalledChoices.load(choices_path)
        except (StateError, OSError) as error:
            self.fail("", str(error))
            self.installed = InstalledChoices(choices_path)
            # What the user chose cannot be read, so no agent is warned.
            self.installed.audience = NO_AUDIENCE

    @property
    def in_relay(self) -> bool:
        """Whether a relay runs this host; its own hooks alone get here then."""
        return bool(self.environ.get("ULTRAMON_RELAY"))

    def agent_of(self, session_id: str) -> str:
        """Return the id of the agent that a session is: in a relay the context that it runs."""
        name = self.environ.get("ULTRAMON_AGENT_ID") if self.in_relay else None
        return name or session_id

    def printer(self) -> list[Any]:
        """Return the process that prints the answer, as `is_unprinted` knows it."""
        return this_process()

    def is_unprinted(self, printer: object) -> bool:
        """Return whether the process that was to print something has not, and will not."""
        return is_gone(printer) or (self.is_retry and printer == self.printer())

    def fail(self, agent_id: str, problem: str) -> None:
        """Leave a line in the failure log."""
        from ultramon.hosts.failure_log import record

        record(self.directory.path, self.host.name, self.event, agent_id, problem, now=self.now)

    def windows(self) -> dict[str, int]:
        """Return the windows that the host reported, in tokens by model."""
        try:
            data, _ = read_private_file(self._windows_path)
            windows = compact_json.loads(data)
        except (OSError, ValueError):
            return {}
        if not isinstance(windows, dict):
            return {}
        return {m: w for m, w in windows.items() if type(w) is int and 0 < w <= 1_000_000_000}

    def compactions(self, *, must_exist: bool = True) -> LearnedCompactions | None:
        """Return the compactions of this host that were noted; None without any.

        Args:
            must_exist: False to note the first one.
        """
        if self._compactions is None:
            path = os.path.join(self.directory.path, self.host.name + COMPACTIONS_SUFFIX)
            if must_exist and not os.path.lexists(path):
                return None
            from ultramon.hosts.calls.learned_compactions import LearnedCompactions

            self._compactions = LearnedCompactions(path)
        return self._compactions

    def learn_window(self, model: str, window_tokens: int) -> None:
        """Remember the window that the host works with for a model.

        Raises:
            StateError: The state directory is not safe to use, or the file system refused.
        """
        known = self.windows()
        if known.pop(model, None) == window_tokens:
            return
        known[model] = window_tokens
        self.directory.prepare()
        newest = dict(list(known.items())[-_MAX_WINDOWS:])
        replace_file(self._windows_path, compact_json.dumps(newest).encode("ascii"))

    def learn_plan(self, limits: Sequence[PlanLimit]) -> AccountPlan | None:
        """Keep what the host says of the user's plan; return what is known of the account.

        None where it cannot be stored: the failure log says why, and no call depends on it.
        """
        from ultramon.state.plan_limits import PlanLimits

        account = os.path.abspath(self.host.dialect.account_directory(self.environ))
        try:
            plans = PlanLimits(self.directory.path)
            return plans.record(self.host.name, account, limits, self.now)
        except (StateError, OSError) as error:
            self.fail("", f"limits of the plan: {error}")
            return None


def this_process() -> list[Any]:
    """Return what names the process that is to print something, in a state."""
    return [os.getpid(), process_started_at(os.getpid())]


def is_gone(printer: object) -> bool:
    """Return whether the process that was to print something ended before it did."""
    if not isinstance(printer, list) or len(printer) != 2 or type(printer[0]) is not int:
        return False
    return bool(process_started_at(printer[0]) != printer[1])
