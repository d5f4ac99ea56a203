"""`ultramon chaos`: runs an orchestrator, kills its workers, and reports lost work."""

from __future__ import annotations

import shlex
import signal
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.chaos.attack import Ending, attack
from ultramon.cli.chaos.victims import Victims
from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.output import field, print_json, say
from ultramon.cli.selection import open_shared_store, store_options
from ultramon.system.terminal_text import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN_ITEMS = 20


@click.command(
    "chaos",
    epilog="Example: ultramon chaos --kills 10 -- python orchestrator.py",
    # Options behind the first word belong to the command that is run.
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command_line", metavar="COMMAND...", nargs=-1, required=True)
@click.option(
    "--kills", type=click.IntRange(0, 10_000), default=3, help="Number of workers to kill."
)
@click.option(
    "--every",
    type=click.FloatRange(0.01, 86_400.0),
    default=1.0,
    help="Seconds between two kills, on average.",
)
@click.option("--run", help="Run of the orchestrator.  [default: a new one]")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 604_800.0),
    default=300.0,
    help="Seconds until the command is ended.",
)
@store_options
def command(
    *,
    command_line: tuple[str, ...],
    kills: int,
    every: float,
    run: str | None,
    timeout: float,
    state_dir: str | None,
    json: bool,
) -> ExitCode:
    """Kill an orchestrator's workers, and count the work lost.

    COMMAND is your orchestrator itself, not a program that starts it; it runs with ULTRAMON_RUN
    set. Agents of that run that start meanwhile are killed at random with SIGKILL, never the
    orchestrator's own process. At its end states and journal show which items were planned or
    assigned and never completed (lost), which were given up with a reason (set aside), which a
    check never confirmed, which were begun or completed more than once (repeated), and which agents
    died without a plan or an assignment, so that their work is unknown.

    The output of the command goes to stderr. The exit code is 0 if nothing was lost or set aside,
    every check confirmed what it was asked about, and the command ended with 0.
    """
    from ultramon.system.environment import disabled
    from ultramon.system.ids import check_agent_id, random_hex

    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: agents would leave no records to judge by")
    if not hasattr(signal, "SIGKILL"):
        raise CommandFailed("this system has no SIGKILL")
    victims = Victims(
        open_shared_store(state_dir), check_agent_id(run or f"chaos-{random_hex(4)}", "run")
    )
    ending = attack(
        victims, command_line, kills=kills, every_seconds=every, timeout_seconds=timeout
    )
    victims.look_at_the_end()
    problems = _problems(victims, ending)
    if ending.kills < kills:
        why = ": all agents were in its own process" if victims.all_live_in(ending.pid) else ""
        say(f"Warning: {ending.kills} of {kills} kills, then the command ended{why}")
    if json:
        print_json({**_report(victims, ending), "problems": problems})
    else:
        _print(_report(victims, ending))
    for problem in problems:
        say(f"Error: {problem}")
    return ExitCode.FAILURE if problems else ExitCode.OK


def _report(victims: Victims, ending: Ending) -> dict[str, Any]:
    ledger = victims.ledger
    return {
        "run": victims.run,
        "command": list(ending.command_line),
        "returncode": ending.returncode,
        "timedOut": ending.timed_out,
        "seconds": round(ending.seconds, 3),
        "agents": len(ledger.agent_ids),
        "stillRunning": len(victims.living),
        "kills": ending.kills,
        "planned": len(ledger.planned),
        "completed": len(ledger.completed),
        "repeated": len(ledger.repeated),
        "setAside": len(ledger.set_aside),
        "lost": len(ledger.lost),
        "repeatedItems": ledger.repeated,
        "setAsideItems": ledger.set_aside,
        "unverifiedItems": ledger.unverified,
        "lostItems": ledger.lost,
        "diedWithoutPlan": victims.died_without_plan,
    }


def _problems(victims: Victims, ending: Ending) -> list[str]:
    """Return the reasons for failure; none on success."""
    problems = []
    ledger = victims.ledger
    if ending.timed_out:
        problems.append("the command took too long and was ended")
    elif ending.returncode:
        problems.append(f"the command {_how_it_ended(ending.returncode)}")
    if victims.unreadable:
        problems.append(f"states cannot be read: {_listed(sorted(victims.unreadable))}")
    if not ledger.agent_ids:
        problems.append(
            f"no agent started in run {victims.run}:"
            " a command that names its run itself needs --run"
        )
    elif not ledger.planned:
        problems.append("no agent planned anything, so nothing can be said about lost work")
    if victims.died_without_plan:
        problems.append(
            f"died without a plan: {_listed(victims.died_without_plan)}: their work is not known; "
            "Fleet.assign() it before the start"
        )
    if ledger.set_aside:
        named = [f"{name} ({reason})" for name, reason in ledger.set_aside.items()]
        problems.append(f"set aside: {_listed(named)}")
    if ledger.unverified:
        problems.append(f"claimed and not verified: {_listed(ledger.unverified)}")
    if ledger.lost:
        problems.append(f"lost: {_listed(ledger.lost)}")
    return problems


def _print(report: dict[str, Any]) -> None:
    shown = field(shlex.join(report["command"]))
    click.echo(f"{shown} {_how_it_ended(report['returncode'])} after {report['seconds']:.1f} s")
    living = f"; still running: {report['stillRunning']}" if report["stillRunning"] else ""
    click.echo(
        f"run {field(report['run'])}: agents: {report['agents']}; "
        f"workers killed: {report['kills']}{living}"
    )
    click.echo(
        f"items planned: {report['planned']}; completed: {report['completed']}; "
        f"repeated: {report['repeated']}; "
        + (f"set aside: {report['setAside']}; " if report["setAside"] else "")
        + f"lost: {report['lost']}"
    )
    if report["repeatedItems"]:
        click.echo(f"repeated: {_listed(report['repeatedItems'])}")


def _how_it_ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


def _listed(names: Sequence[str]) -> str:
    return first_of([field(name) for name in names], _SHOWN_ITEMS)
