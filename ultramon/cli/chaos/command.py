"""`ultramon chaos`: runs an orchestrator, kills its workers, and reports lost work."""

from __future__ import annotations

import os
import random
import select
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ultramon.cli.chaos.victims import Victims
from ultramon.cli.demo.command import open_shared_store
from ultramon.cli.output import CommandFailed, ExitCode, field, print_json, say
from ultramon.cli.selection import store_options
from ultramon.system.terminal_text import first_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_TICK_SECONDS = 0.05
_END_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
_SHOWN_ITEMS = 20
_MAX_LINE_BYTES = 64 * 1024
_MAX_READS_OF_THE_REST = 16
"""The largest pipe holds no more."""


@click.command("chaos", context_settings={"allow_interspersed_args": False})
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
    assigned and never completed (lost), which were begun or completed more than once (repeated),
    and which agents died without a plan or an assignment, so that their work is unknown.

    The output of the command goes to stderr. The exit code is 0 if nothing was lost and the
    command ended with 0.
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
    ending = _attack(
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


class _Ending(NamedTuple):
    command_line: tuple[str, ...]
    pid: int
    returncode: int
    timed_out: bool
    seconds: float
    kills: int


def _attack(
    victims: Victims,
    command_line: tuple[str, ...],
    *,
    kills: int,
    every_seconds: float,
    timeout_seconds: float,
) -> _Ending:
    """Run the command to its end, and kill workers meanwhile."""
    url = getattr(victims.backend, "whole_url", victims.backend.url)
    environment = {**os.environ, "ULTRAMON_RUN": victims.run, "ULTRAMON_BACKEND": url}
    began = time.monotonic()
    process = subprocess.Popen(
        command_line,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A process group of its own can be ended whole.
        start_new_session=True,
    )
    killed = 0
    timed_out = False
    next_kill_at = began + _pause(every_seconds)
    try:
        with _Echo(process) as echo:
            while process.poll() is None and not timed_out:
                echo.pass_on()
                victims.look()
                now = time.monotonic()
                if killed < kills and now >= next_kill_at:
                    victim = victims.kill_one(spared=(process.pid, os.getpid()))
                    if victim is not None:
                        killed += 1
                        next_kill_at = now + _pause(every_seconds)
                        say(f"killed {victim.agent_id} (process {victim.pid})")
                timed_out = now - began >= timeout_seconds
            if timed_out:
                _end(process)
            echo.pass_on_the_rest()
    finally:
        _end(process)
    seconds = time.monotonic() - began
    return _Ending(
        command_line,
        pid=process.pid,
        returncode=process.returncode,
        timed_out=timed_out,
        seconds=seconds,
        kills=killed,
    )


def _pause(seconds: float) -> float:
    return random.uniform(0.5, 1.5) * seconds


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
    process.wait()


class _Echo:
    """Passes the output of a command on to stderr, sanitised, line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._process = process
        self._stream = process.stdout
        self._rest = b""
        self._is_open = True

    def __enter__(self) -> _Echo:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def pass_on(self, wait_seconds: float = _TICK_SECONDS) -> bool:
        """Wait for text and pass on whole lines; return whether there was text."""
        if not self._is_open:
            # The command closed its output and runs on.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_seconds)
            return False
        if not select.select([self._stream], [], [], wait_seconds)[0]:
            return False
        data = os.read(self._stream.fileno(), _MAX_LINE_BYTES)
        self._is_open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE_BYTES or not data:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line or data:
                say(line.decode("utf-8", "replace").rstrip("\r"))
        return bool(data)

    def pass_on_the_rest(self) -> None:
        """Pass on what is left in the pipe; living workers may keep it open and print on."""
        for _ in range(_MAX_READS_OF_THE_REST):
            if not (self._is_open and self.pass_on(0.0)):
                break
        if self._rest:
            say(self._rest.decode("utf-8", "replace"))


def _report(victims: Victims, ending: _Ending) -> dict[str, Any]:
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
        "lost": len(ledger.lost),
        "repeatedItems": ledger.repeated,
        "lostItems": ledger.lost,
        "diedWithoutPlan": victims.died_without_plan,
    }


def _problems(victims: Victims, ending: _Ending) -> list[str]:
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
            f"died without a plan: {_listed(victims.died_without_plan)}: nobody knows their work; "
            "Fleet.assign() it before the start"
        )
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
        f"repeated: {report['repeated']}; lost: {report['lost']}"
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
