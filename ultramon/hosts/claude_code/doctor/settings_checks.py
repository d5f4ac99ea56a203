"""What can be wrong with an installation: one small function for each question.

To ask more, add a function to `CHECKS`. Changes nothing but for a probe file that it deletes; never
on a hook's path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

from ultramon.errors import StateCorruptError
from ultramon.hosts.claude_code.doctor.examination import ELSEWHERE, INSTALL, Examination, SeenLayer
from ultramon.hosts.claude_code.doctor.server_checks import check_requests, check_server
from ultramon.hosts.claude_code.doctor.session_checks import check_sessions
from ultramon.hosts.claude_code.host import NAME
from ultramon.hosts.claude_code.setup.commands import EVENTS, OurCommand, package_directory
from ultramon.hosts.claude_code.setup.interpreter import problem_of
from ultramon.hosts.claude_code.setup.launcher import read_launcher
from ultramon.hosts.claude_code.setup.planned_change import read_backup
from ultramon.hosts.doctor import OK, PROBLEM, WARNING, DoctorContext, Finding
from ultramon.hosts.installed_choices import InstalledChoices, choices_path
from ultramon.system.environment import is_on
from ultramon.system.timestamps import format_time

_MAX_NAMED = 3
_MAX_COMMAND_CHARS = 120


def check_settings(seen: Examination) -> Iterator[Finding]:
    """Every layer: readable, with our hooks or without, with all that are needed."""
    overwritten: list[SeenLayer] = []
    for layer in seen.layers:
        name = f"{layer.name} settings"
        if layer.settings is None:
            yield Finding(name, PROBLEM, str(layer.problem), "mend the file")
            continue
        events = {hook.event for hook in layer.settings.our_hooks()}
        missing = [event for event in EVENTS if event not in events]
        if not events and seen.was_installed(layer.settings):
            overwritten.append(layer)
            message = (
                f"{layer.path}: ultramon's hooks were installed here, and {_fate(seen, layer)}"
            )
            cure = f"{layer.install_command}; or, if that was meant, {layer.uninstall_command}"
            yield Finding("hooks", PROBLEM, message, cure)
        elif not events:
            yield Finding(name, OK, f"{layer.path}: no hooks of ultramon")
        elif missing:
            message = f"{layer.path}: no hook for {', '.join(missing)}"
            yield Finding(name, WARNING, message, layer.install_command)
        else:
            yield Finding(name, OK, f"{layer.path}: hooks of ultramon for {len(events)} events")
    if not (seen.installed or overwritten) and all(layer.settings for layer in seen.layers):
        yield Finding("hooks", WARNING, "are not installed", INSTALL)


def _fate(seen: Examination, layer: SeenLayer) -> str:
    """Return what became of a settings file in which our hooks are missing."""
    settings = layer.settings
    assert settings is not None
    if settings.original is None:
        return "the file was deleted since"
    at = format_time(os.stat(settings.target).st_mtime)
    try:
        before = read_backup(seen.state_directory, seen.stored, settings)
    except StateCorruptError:
        before = None
    known = before.other_commands() if before else []
    new = [command[:_MAX_COMMAND_CHARS] for command in settings.other_commands()
           if command not in known]  # fmt: skip
    if new:
        more = f" and {len(new) - _MAX_NAMED} more" if len(new) > _MAX_NAMED else ""
        return f"it was overwritten at {at} with other hooks: {'; '.join(new[:_MAX_NAMED])}{more}"
    if before is not None and settings.says_the_same_as(before.original or b""):
        return f"it was overwritten at {at} with what stood there before"
    return f"it was overwritten at {at} without them"


def check_disabled(seen: Examination) -> Iterator[Finding]:
    """Whether something turns the hooks off."""
    for layer in seen.layers:
        if layer.settings is not None and layer.settings.disables_hooks:
            status = PROBLEM if seen.installed else WARNING
            message = f"{layer.path}: disableAllHooks is true: no hook and no status line runs"
            yield Finding("disableAllHooks", status, message, "take it out there")
    if is_on("ULTRAMON_DISABLED"):
        message = "ULTRAMON_DISABLED is set: hooks started from here do nothing"
        yield Finding("environment", WARNING, message, "unset ULTRAMON_DISABLED")


def check_installed_once(seen: Examination) -> Iterator[Finding]:
    """Hooks of all layers run, so two of them do the work twice."""
    here = [layer for layer, _ in seen.installed if layer.name != ELSEWHERE]
    if len(here) > 1:
        names = " and ".join(layer.name for layer in here)
        cure = f"ultramon uninstall claude-code --{here[-1].name}"
        yield Finding("layers", WARNING, f"the hooks stand in the {names} settings", cure)


def check_commands(seen: Examination) -> Iterator[Finding]:
    """Whether what the settings name is there, starts, and is this ultramon."""
    commands: dict[OurCommand, SeenLayer] = {}
    for layer, settings in seen.installed:
        for hook in settings.our_hooks():
            if isinstance(hook.runs, OurCommand):
                commands.setdefault(hook.runs, layer)
    for found, layer in commands.items():
        try:
            command = read_launcher(found.program) if found.is_launcher else found
        except (StateCorruptError, OSError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", error)
            message = f"{found.program}: {reason}: no hook runs"
            yield Finding("launcher", PROBLEM, message, layer.install_command)
            continue
        yield _check_command(command, layer)
        if command.choices_path and os.path.realpath(command.choices_path) != os.path.realpath(
            choices_path(seen.state_directory, NAME)
        ):
            message = f"the hook uses {command.choices_path}, this is {seen.state_directory}"
            cure = f"set ULTRAMON_STATE_DIR, or {layer.install_command}"
            yield Finding("state directory", WARNING, message, cure)


def _check_command(command: OurCommand, layer: SeenLayer) -> Finding:
    program = shutil.which(command.program)
    if command.script is not None and not os.access(command.script, os.R_OK):
        message = f"{command.script} is gone: the hooks do nothing"
        return Finding("hook script", PROBLEM, message, layer.install_command)
    if program is None:
        message = f"{command.program} is gone: no hook can run"
        return Finding("interpreter", PROBLEM, message, layer.install_command)
    if command.script is None:
        return Finding("interpreter", OK, program)
    package = os.path.abspath(os.path.join(os.path.dirname(command.script), *[os.pardir] * 3))
    problem = problem_of(program, package)
    if problem is not None:
        message = f"{command.program} {problem}"
        return Finding("interpreter", PROBLEM, message, layer.install_command)
    if os.path.realpath(package) != os.path.realpath(package_directory()):
        message = f"the hooks run the ultramon in {package}, this is {package_directory()}"
        return Finding("interpreter", WARNING, message, layer.install_command)
    return Finding("interpreter", OK, f"{command.program} runs {command.script}")


def check_choices(seen: Examination) -> Iterator[Finding]:
    """Whether the stored choices are there and can be read."""
    path = choices_path(seen.state_directory, NAME)
    if seen.stored_problem is not None:
        message = f"{seen.stored_problem}; until then nobody is warned"
        yield Finding("choices", PROBLEM, message, INSTALL)
    elif seen.stored is not None:
        message = f"{path}: audience {seen.stored.audience}, {_rungs(seen.stored)}"
        if seen.stored.critical_note:
            message += f', critical note "{seen.stored.critical_note}"'
        yield Finding("choices", OK, message)
    elif seen.installed:
        yield Finding("choices", WARNING, f"{path} is gone: the defaults hold", INSTALL)


def _rungs(choices: InstalledChoices) -> str:
    return ", ".join(
        f"{rung.name} at {rung.describe().removesuffix('+')}" for rung in choices.ladder.rungs
    )


def check_status_line(seen: Examination) -> Iterator[Finding]:
    """Whether the status line is still ours where it was installed."""
    if seen.stored is None or seen.stored.status_line_show == "none":
        return
    shown: SeenLayer | None = None
    for layer in seen.layers:
        if layer.name == ELSEWHERE or layer.settings is None:
            continue
        if layer.settings.get("statusLine") is not None:
            shown = layer  # the strongest layer wins
    if shown is not None and shown.settings is not None and shown.settings.our_status_line():
        yield Finding("status line", OK, f"{shown.path}: ultramon's")
    elif not any(layer.name != ELSEWHERE for layer, _ in seen.installed):
        return
    elif shown is None:
        message = "was taken out since: windows are known only from the model's name"
        cure = f"{INSTALL}, or with --status-line none to be asked no more"
        yield Finding("status line", WARNING, message, cure)
    else:
        message = f"{shown.path}: another tool's is shown, ultramon's gets nothing"
        cure = f"{shown.install_command} chains it; --status-line none leaves it alone"
        yield Finding("status line", WARNING, message, cure)


CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    check_settings,
    check_disabled,
    check_installed_once,
    check_commands,
    check_requests,
    check_server,
    check_choices,
    check_status_line,
    check_sessions,
)


def examine(context: DoctorContext) -> list[Finding]:
    """Ask every question about the client's settings and sessions."""
    examination = Examination(context)
    return [finding for check in CHECKS for finding in check(examination)]
