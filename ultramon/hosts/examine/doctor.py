"""What the doctor asks whatever the host: the state directory, states, failure logs, readings.

A host adds its own questions by `Setup.examine`. Looks only, and changes nothing but for a probe
file that it deletes; never on a hook's path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator

from ultramon.backends.local.journal_check import examine_journal
from ultramon.backends.local.state_files import SUFFIXES, StateDirectory
from ultramon.context.ladder import Rung
from ultramon.errors import (
    ConfigurationError,
    StateDirectoryError,
    StateError,
    StateSchemaError,
    UltramonError,
)
from ultramon.hosts import failure_log
from ultramon.hosts.blind_sessions import find_blind
from ultramon.hosts.doctor_context import DoctorContext, ok, problem, warning
from ultramon.hosts.installed_choices import AGENT, BOTH
from ultramon.hosts.port import Host
from ultramon.notices.budgets import read_budgets
from ultramon.notices.commands import read_commands
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.command_runs import CommandRuns, StoredRuns, commands_key
from ultramon.state.liveness import LOST, STALE, judge
from ultramon.state.plan_limits import PlanLimits
from ultramon.state.record import SCHEMA
from ultramon.state.watched_levels import SILENT_SECONDS, watched_at
from ultramon.system.environment import is_on
from ultramon.system.files import delete_quietly, make_private_directory, write_new_file
from ultramon.system.findings import OK, Finding
from ultramon.system.ids import random_hex
from ultramon.system.processes import this_machine
from ultramon.system.terminal_text import first_of
from ultramon.system.timestamps import format_time
from ultramon.system.windows_drives import windows_drive_of

MEASURED_AFTER_SECONDS = 120.0
"""An agent that is active for longer has had a response that could be read."""
_PROBE_BYTES = 16 * 1024
_SHOWN_FAILURES = 3
_ROOM = "make room there, make it writable, or set ULTRAMON_STATE_DIR"


def check_environment(_: DoctorContext) -> Iterator[Finding]:
    """Whether hooks do anything at all."""
    if is_on("ULTRAMON_DISABLED"):
        message = "ULTRAMON_DISABLED is set: hooks started from here do nothing"
        yield warning("environment", message, "unset ULTRAMON_DISABLED")


def check_directory(context: DoctorContext) -> Iterator[Finding]:
    """Whether the state directory is this user's alone, and takes what hooks write."""
    name, directory = "state directory", context.state_directory
    if not os.path.lexists(directory):
        parent = os.path.dirname(directory)
        while not os.path.lexists(parent):
            parent = os.path.dirname(parent)
        if os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK):
            yield ok(name, f"{directory} does not exist yet")
        else:
            message = f"{directory} cannot be made in {parent}: no state is kept"
            yield problem(name, message, _ROOM)
        return
    try:
        make_private_directory(directory)
    except StateDirectoryError as error:
        yield problem(name, f"{error.path}: {error.reason}", f"chmod 700 {error.path}")
        return
    for folder in (directory, StateDirectory(directory).folder):
        if os.path.isdir(folder) and (refusal := _probe(folder)) is not None:
            message = f"{folder} takes no file ({refusal}): no state is kept"
            yield problem(name, message, _ROOM)
            return
    if (drive := windows_drive_of(directory)) is not None:
        message = f"{directory} is on the Windows drive {drive}, which does not keep Linux' locks"
        yield warning(name, message, "set ULTRAMON_STATE_DIR to a directory of Linux")
        return
    yield ok(name, directory)


def _probe(folder: str) -> str | None:
    """Write a file as large as a state and delete it; return why that does not work."""
    path = os.path.join(folder, f"doctor.{random_hex(6)}.tmp")
    try:
        write_new_file(path, bytes(_PROBE_BYTES))
    except OSError as error:
        return str(error.strerror)
    finally:
        delete_quietly(path)
    return None


def check_states(context: DoctorContext) -> Iterator[Finding]:
    """Every state: readable, this user's, of a known schema, and of an agent that is not lost."""
    broken: list[str] = []
    newer: list[str] = []
    silent: list[str] = []
    count = 0
    directory = StateDirectory(context.state_directory)
    try:
        directory.list_ids()
    except StateError as error:
        yield problem("states", f"{error.path}: {error.reason}", "see who owns it")
        return
    for agent_id, state in context.states():
        count += 1
        if isinstance(state, StateSchemaError):
            newer.append(agent_id)
        elif isinstance(state, UltramonError):
            broken.append(f"{agent_id} ({getattr(state, 'reason', state)})")
        elif state.schema > SCHEMA:
            newer.append(agent_id)
        else:
            try:
                beat = directory.heartbeat_at(agent_id)
                verdict = judge(state, beat, context.now, this_machine()).verdict
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                # A state with a right checksum can still hold numbers that no agent ever had.
                broken.append(f"{agent_id} (its values make no sense: {error})")
                continue
            if verdict in (LOST, STALE):
                silent.append(f"{agent_id} ({verdict})")
    if broken:
        cure = f"look at them in {directory.folder} and move them away"
        yield problem("states", f"cannot be read: {first_of(broken)}", cure)
    if newer:
        yield warning("states", f"written by a newer ultramon: {first_of(newer)}", "upgrade")
    if silent:
        cure = "ultramon resume lists what can continue"
        yield warning("states", f"ended without saying so: {first_of(silent)}", cure)
    if not (broken or newer or silent):
        yield ok("states", f"{count} readable")


def check_journal(context: DoctorContext) -> Iterator[Finding]:
    """A journal that is damaged, or rows of it that are passed over."""
    found = examine_journal(context.state_directory)
    yield from (finding for finding in found if finding.status != OK)


def check_set_aside(context: DoctorContext) -> Iterator[Finding]:
    """Files that could not be read and were kept as evidence."""
    for folder in (context.state_directory, StateDirectory(context.state_directory).folder):
        try:
            names = sorted(name for name in os.listdir(folder) if ".corrupt-" in name)
        except OSError:
            continue
        # The state of an agent may bear such a name too.
        kept = [name for name in names if not name.endswith(SUFFIXES)]
        if kept:
            message = f"set aside as unreadable: {first_of(kept)} in {folder}"
            yield warning("set aside", message, "look at them, then delete them")


def check_plans(context: DoctorContext) -> Iterator[Finding]:
    """The limits of the user's plans: readable, and announced by a process that looks at them."""
    plans = PlanLimits(context.state_directory)
    if damaged := plans.damaged():
        message = f"cannot be read, or were set aside: {first_of(damaged)} in {plans.folder}"
        yield warning("plan", message, "look at them, then delete them")
    shown = [
        f"{account.name} {limit.name} {limit.percent} %"
        for account in plans.accounts(context.now)
        for limit in account.limits
    ]
    if not shown:
        return
    at = watched_at(context.state_directory)
    if at is not None and context.now - at <= SILENT_SECONDS:
        yield ok("plan", f"used: {first_of(shown)}; levels are announced")
    else:
        message = f"used: {first_of(shown)}; no process announces levels"
        cure = "ultramon serve, web, watch or relay does while it runs"
        yield warning("plan", message, cure)


def check_budgets(context: DoctorContext) -> Iterator[Finding]:
    """The user's budgets: what is spent, and whether a process looks."""
    try:
        names = [one.name for one in read_budgets()]
    except ConfigurationError:
        return  # the check of the settings says what is wrong
    if not names:
        return
    readings = BudgetReadings(context.state_directory).read(context.now)
    at = watched_at(context.state_directory)
    if readings and at is not None and context.now - at <= SILENT_SECONDS:
        shown = [one.words(context.now) for one in readings]
        yield ok("budgets", f"{first_of(shown)}; levels are announced")
    else:
        message = f"{first_of(names)}: no process looks what is spent, or announces levels"
        cure = "ultramon serve, web, watch or relay does while it runs"
        yield warning("budgets", message, cure)


def check_commands(context: DoctorContext) -> Iterator[Finding]:
    """The user's commands at events: what they did, and whether a process is there to run them."""
    try:
        commands, path = read_commands()
    except ConfigurationError:
        return  # the check of the settings says what is wrong
    if not commands:
        return
    stored = StoredRuns(context.state_directory, commands_key(path))
    runs = stored.read()
    for name, command in commands.items():
        found = runs.get(name, CommandRuns())
        message = f"{name}: {command.program} {found.words()}"
        if shutil.which(os.path.expanduser(command.run[0])) is None:
            message = f"{name}: {command.run[0]} is no program here"
            yield warning("commands", message, f"correct on.{name}.run in {path}")
        elif found.last_problem:
            yield warning("commands", message, f"ultramon on test {name} runs it now")
        else:
            yield ok("commands", message)
    at = stored.watched_at()
    if at is None or context.now - at > SILENT_SECONDS:
        message = f"{first_of([*commands])}: no process is there to run them"
        yield warning("commands", message, "ultramon serve, web, watch or relay does")


def check_failures(context: DoctorContext, hosts: Iterable[Host]) -> Iterator[Finding]:
    """What hooks could not do, as they logged it."""
    is_quiet = True
    for host in hosts:
        path = failure_log.log_path(context.state_directory, host.name)
        try:
            noted = failure_log.read(path)
        except (StateError, OSError) as error:
            is_quiet = False
            yield problem("failures", f"the log cannot be read: {error}", "delete it")
            continue
        noted = [one for one in noted if not failure_log.is_delay(one.get("problem"))]
        if noted:
            is_quiet = False
            shown = "; ".join(
                " ".join(str(one.get(name) or "?") for name in ("at", "event", "problem"))
                for one in noted[-_SHOWN_FAILURES:]
            )
            cure = f"when they are understood, delete {path}"
            yield warning("failures", f"{len(noted)} noted, the last: {shown}", cure)
    if is_quiet:
        yield ok("failures", "no hook noted one")


def check_measured(context: DoctorContext, host: Host) -> Iterator[Finding]:
    """Sessions that shall be warned and whose fill is not known."""
    choices, _ = context.choices(host.name)
    if choices is None or choices.audience not in (AGENT, BOTH):
        return
    blind = [
        record.agent_id
        for record in context.agents(host.name)
        if record.active
        and record.measured_at is None
        and record.last_activity - record.started_at > MEASURED_AFTER_SECONDS
    ]
    if blind:
        message = f"registered, but never measured: {first_of(blind)}"
        cure = "ultramon explain says what is known; the failures above may say why"
        yield warning("readings", message, cure)


def check_blind(context: DoctorContext, host: Host) -> Iterator[Finding]:
    """Sessions that reported once, and reply without a hook that says so."""
    blind = [
        f"{record.agent_id} (last hook {format_time(record.last_heartbeat)})"
        for record in context.agents(host.name)
        if find_blind(record, context.now) is not None
    ]
    if blind:
        message = f"went blind, their readings are old: {first_of(blind)}"
        cure = (
            "look at the host's hooks, which were taken out or switched off under them, and start"
            " these sessions anew"
        )
        yield warning("readings", message, cure)


def check_levels(context: DoctorContext, host: Host) -> Iterator[Finding]:
    """Whether hooks warn where the table ``[levels]`` says now."""
    from ultramon.hosts.install.plans import ladder_of

    choices, _ = context.choices(host.name)
    if choices is None:
        return
    try:
        now = ladder_of(choices)
    except ConfigurationError as error:
        yield warning(f"{host.name} levels", str(error), "correct it there")
        return
    differ = [
        f"{one.name} at {_share(one)}, not {_share(other)}"
        for one, other in zip(choices.ladder.rungs, now.rungs, strict=True)
        if one != other
    ]
    if differ:
        cure = f"ultramon install {host.name} takes them over"
        yield warning(f"{host.name} levels", f"hooks have {'; '.join(differ)}", cure)


def _share(rung: Rung) -> str:
    return rung.describe().removesuffix("+")


def check_enforcement(context: DoctorContext, host: Host) -> Iterator[Finding]:
    """Where returns are enforced: whether that is on, and what it has ended, or would have."""
    from ultramon.hosts.calls.enforcement import MAX_ENDS, describe, is_enforced, why_off
    from ultramon.hosts.calls.memory import HookMemory

    choices, _ = context.choices(host.name)
    if choices is None or choices.enforce is None:
        return
    name = f"{host.name} enforcement"
    try:
        reason = why_off(context.state_directory, host.name)
    except (StateError, OSError) as error:
        reason = str(error)
    if reason is not None:
        cure = f"ultramon install {host.name} switches it on again; --enforce none for good"
        yield warning(name, f"has switched itself off: {reason}", cure)
        return
    found: dict[bool, list[str]] = {True: [], False: []}
    for record in context.agents(host.name):
        memory = HookMemory.of(record.extra.get(host.memory_field))
        if (text := describe(memory)) is not None:
            found[is_enforced(memory)].append(f"{record.agent_id} ({text})")
    if choices.enforce_dry_run:
        shown = first_of(found[False]) if found[False] else "none would have been ended"
        yield ok(name, f"dry run from {choices.enforce}: {shown}")
    else:
        shown = first_of(found[True]) if found[True] else "none was ended"
        limit = f"at most {MAX_ENDS} an hour"
        yield ok(name, f"of agents that do not return, from {choices.enforce}, {limit}: {shown}")


def examine(context: DoctorContext, host_name: str | None = None) -> list[Finding]:
    """Ask every question, of every host or of one.

    Raises:
        ConfigurationError: There is no host of that name.
    """
    from ultramon.hosts.registry import find_host, find_hosts

    hosts, broken = ([find_host(host_name)], []) if host_name else find_hosts()
    findings = [
        warning("hosts", f"{one.name} of {one.distribution} {one.problem}",
                f"upgrade or remove {one.distribution}")
        for one in broken
    ]  # fmt: skip
    of_hosts = [finding for host in hosts for finding in host.setup.examine(context)]
    if host_name is not None and not hosts[0].has_hooks:
        of_hosts = [ok(host_name, "transcripts only: it calls no hooks, nothing is installed")]
    hosts = [host for host in hosts if host.has_hooks]
    if not of_hosts:
        cure = " or ".join(sorted(f"ultramon install {host.name}" for host in hosts))
        findings.append(warning("hooks", "are not installed", cure))
    findings += of_hosts
    for check in (
        check_environment,
        check_directory,
        check_states,
        check_journal,
        check_set_aside,
        check_plans,
        check_budgets,
        check_commands,
    ):
        findings += check(context)
    findings += check_failures(context, hosts)
    for host in hosts:
        findings += check_measured(context, host)
        findings += check_blind(context, host)
        findings += check_levels(context, host)
        findings += check_enforcement(context, host)
    return findings
