"""The setup of a host that keeps its hooks in one file for each user.

Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ultramon.errors import ConfigurationError, UltramonError
from ultramon.hosts.doctor_context import DoctorContext, ok, problem, warning
from ultramon.hosts.examine.launcher import check_hook_command
from ultramon.hosts.examine.resident import check_resident
from ultramon.hosts.examine.sessions import begun_since, check_sessions
from ultramon.hosts.install.hook_commands import OurCommand
from ultramon.hosts.install.hook_settings import HookSettings
from ultramon.hosts.install.installation import Installation, Removal
from ultramon.hosts.install.interpreter import lasting_interpreter
from ultramon.hosts.install.plans import SetupRequest
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.hosts.port import Host, Setup
from ultramon.system.findings import Finding

_USER = "user"


class UserHooks(Setup):
    """Commands as hooks in that file: installed, removed, examined.

    Attributes:
        host: Its name.
        members: Of each hook, beside its type and its command, such as its ``timeout``.
        layers: Whose hooks there may be; the first is that of an installation that names none.
        timeouts: Of the events that take no longer one, in the host's unit.
        takes_handoff_note: Whether its compaction takes instructions from a hook.
        silence_cure: What to do about sessions of which no hook has written anything.
    """

    host: Host
    members: Mapping[str, Any]
    layers: tuple[str, ...] = (_USER,)
    timeouts: Mapping[str, int] = MappingProxyType({})
    takes_handoff_note = True
    silence_cure = ""

    def load(self) -> HookSettings:
        """Return the host's file, whether it exists or not.

        Raises:
            ConfigurationError: This user has no directory for it.
            StateError: It cannot be read.
        """
        raise NotImplementedError

    def load_layer(self, request: SetupRequest) -> HookSettings:
        """Return the file of the layer that a request names; raises as `load`."""
        return self.load()

    def begun_since(self, since: float) -> dict[str, float]:
        """Return the sessions that began after a time, each with its time, epoch seconds."""
        transcripts = self.host.transcripts

        def identify(path: str, lines: list[bytes]) -> str | None:
            found = transcripts.identify_file(path, lines)
            return None if found is None or found.agent_id is not None else found.session_id

        return begun_since(transcripts.transcript_files(os.environ), since, identify)

    def check(self, settings: HookSettings) -> Iterable[Finding]:
        """Answer the host's own questions about that file."""
        return ()

    def plan_installation(self, request: SetupRequest) -> Installation:
        """Plan one hook for each event, run by the Python of this program.

        Raises:
            ConfigurationError: A choice is not allowed, or this program may not last.
            StateError: A file cannot be read.
        """
        if request.choices.handoff_note and not self.takes_handoff_note:
            allowed = "a host whose compaction takes instructions;"
            allowed += f" {request.host} takes none from hooks"
            raise ConfigurationError("handoff_note", request.choices.handoff_note[:40], allowed)
        self._check_layer(request)
        interpreter = lasting_interpreter(request.cwd, force=request.force)
        settings = self.load_layer(request)
        plan = Installation.begin(settings, request, interpreter)
        plan.choose_resident(request)
        if plan.installed.enforce is not None:
            settings.events += settings.enforcing_events
        hook = {"type": "command", "command": plan.command(settings.script), **self.members}
        entries = {event: {"hooks": [hook]} for event in settings.events}
        for event, longest in self.timeouts.items():
            entries[event] = {"hooks": [{**hook, "timeout": longest}]}
        settings.put_entries(entries)
        plan.after = settings.data
        plan.warn_of_wrapped_hooks()
        return plan

    def plan_removal(self, request: SetupRequest) -> Removal:
        """Plan to take ultramon's hooks out of the file.

        Raises:
            ConfigurationError: There is no such layer.
            StateError: A file cannot be read; it is left alone.
        """
        self._check_layer(request)
        settings = self.load_layer(request)
        plan = Removal.begin(settings, request)
        plan.take_out()
        plan.beside += self.removals_beside(plan.installed)
        plan.plan_traces()
        return plan

    def removals_beside(self, installed: InstalledChoices) -> Iterable[Removal]:
        """Plan what an uninstallation takes out of further files; raises as `load`."""
        return ()

    def examine(self, context: DoctorContext) -> Iterator[Finding]:
        """Answer the questions about the hooks and the sessions; none where none are installed."""
        name = self.host.name
        install = f"ultramon install {name}"
        stored, stored_problem = context.choices(name)
        check = f"{name} hooks"
        try:
            hooks = self.load()
        except (UltramonError, OSError) as error:
            yield problem(check, str(error), "mend the file")
            return
        ours = hooks.our_hooks()
        if stored_problem is not None:
            yield problem(
                f"{name} choices", f"{stored_problem}; until then no agent is warned", install
            )
        if not ours:
            if stored is not None:
                yield problem(check, f"{hooks.path}: ultramon's hooks are gone", install)
            return
        needed = hooks.events
        if stored is not None and stored.enforce is not None:
            needed += hooks.enforcing_events
        missing = [event for event in needed if event not in {hook.event for hook in ours}]
        if missing:
            yield warning(check, f"{hooks.path}: no hook for {', '.join(missing)}", install)
        else:
            yield ok(check, f"{hooks.path}: hooks of ultramon for {len(ours)} events")
        yield from self.check(hooks)
        for command in dict.fromkeys(hook.runs for hook in ours):
            if isinstance(command, OurCommand):
                own_choices = choices_path(context.state_directory, name)
                for found in check_hook_command(command, hooks.script, own_choices, install):
                    yield found._replace(check=f"{name} {found.check}")
        yield from check_resident(context, stored, f"{name} resident", install)
        if stored is not None and stored.installed_at is not None:
            yield check_sessions(
                context,
                name,
                stored.installed_at,
                self.begun_since,
                name=f"{name} sessions",
                cure=self.silence_cure,
            )

    def _check_layer(self, request: SetupRequest) -> None:
        if request.layer not in (None, *self.layers):
            allowed = f"{' or '.join(self.layers)}: the hooks of {request.host} are those of a user"
            raise ConfigurationError("layer", request.layer, allowed, "argument")


def user_file(folder: str, name: str, variable: str) -> str:
    """Return the absolute path of a host's file, whether it exists or not.

    Args:
        folder: The host's directory, with ``~`` where this user has no home directory.
        name: Of the file in it.
        variable: The environment variable that moves the directory.

    Raises:
        ConfigurationError: There is no such directory.
    """
    if folder.startswith("~"):
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError(variable, None, allowed, "environment")
    return os.path.join(os.path.abspath(folder), name)
