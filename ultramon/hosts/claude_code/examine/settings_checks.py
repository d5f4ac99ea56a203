"""What can be wrong with an installation in the host's settings: a function for each question.

To ask more, add a function to `CHECKS`. Never on a hook's path.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from ultramon.errors import StateCorruptError
from ultramon.hosts.claude_code.examine.examination import INSTALL, UNINSTALL, Examination
from ultramon.hosts.claude_code.examine.session_checks import check_sessions
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.install.commands import EVENTS, NOT_WAITED_FOR
from ultramon.hosts.claude_code.install.http_hooks import Link
from ultramon.hosts.claude_code.install.settings import ELSEWHERE, Layer
from ultramon.hosts.doctor_context import DoctorContext, ok, problem, warning
from ultramon.hosts.examine.launcher import check_hook_command
from ultramon.hosts.examine.resident import check_resident
from ultramon.hosts.install.hook_commands import OurCommand
from ultramon.hosts.install.hook_settings import ASYNC
from ultramon.hosts.install.planned_change import read_backup
from ultramon.hosts.installed_choices import choices_path
from ultramon.system.findings import Finding
from ultramon.system.terminal_text import first_of
from ultramon.system.timestamps import format_time

_MAX_COMMAND_CHARS = 120


def check_settings(seen: Examination) -> Iterator[Finding]:
    """Every layer: readable, with hooks of ultramon or without, with all that are needed."""
    for layer in seen.layers:
        name = f"{layer.name} settings"
        if layer.problem:
            yield problem(name, layer.problem, "mend the file")
            continue
        events = {hook.event for hook in layer.settings.our_hooks()}
        missing = [event for event in EVENTS if event not in events]
        if not events and seen.was_installed(layer.settings):
            fate = f"ultramon's hooks were installed here, and {_fate(seen, layer)}"
            cure = f"{layer.command(INSTALL)}; or, if that was meant, {layer.command(UNINSTALL)}"
            yield problem("hooks", f"{layer.path}: {fate}", cure)
        elif not events and seen.installed:
            yield ok(name, f"{layer.path}: no hooks of ultramon")
        elif not events:
            continue
        elif missing:
            lacking = f"{layer.path}: no hook for {', '.join(missing)}"
            yield warning(name, lacking, layer.command(INSTALL))
        else:
            yield ok(name, f"{layer.path}: hooks of ultramon for {len(events)} events")


def _fate(seen: Examination, layer: Layer) -> str:
    """Return what became of a settings file from which ultramon's hooks are gone."""
    settings = layer.settings
    if settings.original is None:
        return "the file was deleted since"
    overwritten = f"it was overwritten at {format_time(os.stat(settings.target).st_mtime)}"
    try:
        before = read_backup(seen.stored, settings) if seen.stored else None
    except StateCorruptError:
        before = None
    known = before.other_commands() if before else []
    new = [one[:_MAX_COMMAND_CHARS] for one in settings.other_commands() if one not in known]
    if new:
        return f"{overwritten} with other hooks: {first_of(new, separator='; ')}"
    if before is not None and settings.says_the_same_as(before.original or b""):
        return f"{overwritten} with what stood there before"
    return f"{overwritten} without them"


def check_disabled(seen: Examination) -> Iterator[Finding]:
    """Whether something turns the hooks off."""
    for layer in seen.layers:
        if layer.settings.disables_hooks:
            find = problem if seen.installed else warning
            message = f"{layer.path}: disableAllHooks is true: no hook and no status line runs"
            yield find("disableAllHooks", message, "take it out there")


def check_installed_once(seen: Examination) -> Iterator[Finding]:
    """Hooks of all layers run, so two of them do the work twice."""
    names = [layer.name for layer in seen.installed if layer.name != ELSEWHERE]
    if len(names) > 1:
        message = f"the hooks are in the {' and '.join(names)} settings"
        yield warning("layers", message, f"{UNINSTALL} --{names[-1]}")


def check_waiting(seen: Examination) -> Iterator[Finding]:
    """Whether the host waits for the hooks whose answer counts, and for no other one."""
    enforce = seen.stored is not None and seen.stored.enforce is not None
    for layer, hook in seen.hooks:
        if not isinstance(hook.runs, OurCommand):
            continue
        is_async = layer.settings.get(*hook.path, ASYNC)
        install = layer.command(INSTALL)
        if is_async is True and hook.event != NOT_WAITED_FOR:
            message = f"{layer.path}: {hook.event} is async: what it says to the agent is lost"
            yield problem("async", message, install)
        elif is_async is True and enforce:
            message = f"{layer.path}: {hook.event} is async, and enforcement counts running calls"
            yield warning("async", message, install)
        elif is_async is None and hook.event == NOT_WAITED_FOR and not enforce:
            message = f"{layer.path}: each tool call waits for {hook.event}, which says nothing"
            yield warning("async", message, install)


def check_commands(seen: Examination) -> Iterator[Finding]:
    """Whether what the settings name is there, starts, and is this ultramon."""
    commands: dict[OurCommand, Layer] = {}
    for layer, hook in seen.hooks:
        if isinstance(hook.runs, OurCommand):
            commands.setdefault(hook.runs, layer)
    own_choices = choices_path(seen.state_directory, CLAUDE_CODE.name)
    for found, layer in commands.items():
        install, script = layer.command(INSTALL), layer.settings.script
        yield from check_hook_command(found, script, own_choices, install)


def check_requests(seen: Examination) -> Iterator[Finding]:
    """Hooks that an earlier ultramon wrote as requests to a server, which takes none now."""
    links = {layer.path: (layer, hook.runs) for layer, hook in seen.hooks
             if isinstance(hook.runs, Link)}  # fmt: skip
    for path, (layer, link) in links.items():
        message = f"{path}: tool calls go to {link.url}, where no server takes them any more"
        yield problem("requests", f"{message}: they are not reported", layer.command(INSTALL))


def check_own_resident(seen: Examination) -> Iterator[Finding]:
    """Whether a resident answers."""
    yield from check_resident(seen, seen.stored, "resident", INSTALL)


def check_choices(seen: Examination) -> Iterator[Finding]:
    """Whether the stored choices are there and can be read."""
    path, stored = choices_path(seen.state_directory, CLAUDE_CODE.name), seen.stored
    if seen.stored_problem is not None:
        message = f"{seen.stored_problem}; until then no agent is warned"
        yield problem("choices", message, INSTALL)
    elif stored is not None:
        rungs = [f"{one.name} at {one.describe().removesuffix('+')}" for one in stored.ladder.rungs]
        note = f', critical note "{stored.critical_note}"' if stored.critical_note else ""
        note += ", pins" if stored.pins else ""
        if stored.enforce is not None:
            note += f", enforces {stored.enforce}{' (dry run)' * stored.enforce_dry_run}"
        note += ", resident" if stored.resident else ""
        yield ok("choices", f"{path}: audience {stored.audience}, {', '.join(rungs)}{note}")
    elif seen.installed:
        yield warning("choices", f"{path} is gone: the defaults hold", INSTALL)


def check_status_line(seen: Examination) -> Iterator[Finding]:
    """Whether the status line is still ultramon's where it was installed."""
    if seen.stored is None or seen.stored.status_line_show == "none":
        return
    here = [layer for layer in seen.layers if layer.name != ELSEWHERE]
    lines = [layer for layer in here if layer.settings.get("statusLine") is not None]
    shown = lines[-1] if lines else None  # the strongest layer wins
    if shown is not None and shown.settings.our_status_line():
        yield ok("status line", f"{shown.path}: ultramon's")
    elif not any(layer in here for layer in seen.installed):
        return
    elif shown is None:
        message = "was taken out since: windows are known only from the model's name"
        cure = f"{INSTALL}, or with --status-line none to be asked no more"
        yield warning("status line", message, cure)
    else:
        message = f"{shown.path}: another tool's is shown, ultramon's gets nothing"
        cure = f"{shown.command(INSTALL)} chains it; --status-line none leaves it alone"
        yield warning("status line", message, cure)


CHECKS: tuple[Callable[[Examination], Iterator[Finding]], ...] = (
    check_settings,
    check_disabled,
    check_installed_once,
    check_waiting,
    check_commands,
    check_requests,
    check_own_resident,
    check_choices,
    check_status_line,
    check_sessions,
)


def examine(context: DoctorContext) -> list[Finding]:
    """Ask every question about the host's settings and sessions."""
    examination = Examination(context)
    return [finding for check in CHECKS for finding in check(examination)]
