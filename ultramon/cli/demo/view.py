"""What `ultramon demo` shows: a live table on a terminal, lines elsewhere, and its result."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click
from rich.text import Text

from ultramon.cli.commands.status import LEVEL, NAME, NUMBERS, Column, Look, draw_table
from ultramon.cli.output import (
    field,
    held_tokens,
    make_console,
    make_table,
    percent,
    plural,
    say,
)
from ultramon.state.liveness import ENDED, LOST
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ultramon.cli.demo.crew import Crew
    from ultramon.cli.demo.proof import Evidence
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.record import StateRecord

_SHOWN_LINES = 6
_SHOWN_PROBLEMS = 10


def watch(crew: Crew, *, quiet: bool) -> None:
    """Show the crew until it is done: a live table on a terminal, lines elsewhere."""
    console = make_console()
    if quiet or not sys.stdout.isatty() or console.is_dumb_terminal:
        _watch_lines(crew, quiet=quiet)
    else:
        _watch_live(crew, console)


def _watch_lines(crew: Crew, *, quiet: bool) -> None:
    working = True
    while working:
        working = crew.step()
        for line in crew.take_news():
            if not quiet:
                click.echo(sanitize(line))
        if working:
            crew.wait()


def _watch_live(crew: Crew, console: Console) -> None:
    from rich.live import Live

    lines: list[str] = []
    with Live(console=console, auto_refresh=False, transient=True) as live:
        working = True
        while working:
            working = crew.step()
            lines = [*lines, *crew.take_news()][-_SHOWN_LINES:]
            live.update(_frame(crew, console, lines), refresh=True)
            if working:
                crew.wait()


def _frame(crew: Crew, console: Console, lines: list[str]) -> RenderableType:
    from rich.console import Group

    seen = crew.agents.seen
    followed = {one.record.predecessor_id for one in seen}
    shown = sorted(
        (one for one in seen if one.record.agent_id not in followed),
        key=lambda one: _lane_and_generation(one.record),
    )
    ascii_only = console.options.ascii_only
    overflow: Literal["crop", "ellipsis"] = "crop" if ascii_only else "ellipsis"
    return Group(
        draw_table(shown, _COLUMNS, Look(is_wide=False, ascii_only=ascii_only)),
        Text(""),
        Text(f"{plural(crew.files_read, 'file')} read", "bold"),
        *(Text(sanitize(line), "dim", no_wrap=True, overflow=overflow) for line in lines),
    )


def _pulse(one: ObservedAgent, look: Look) -> tuple[str, str]:
    verdict, age = one.liveness.verdict, one.liveness.heartbeat_age_seconds
    if verdict == LOST:
        return "LOST", "bold red"
    return (field(one.record.outcome) if verdict == ENDED or age is None else f"{age:.1f} s"), ""


# Widths that hold the longest usual text keep the columns where they are.
_COLUMNS = (
    NAME._replace(options={"no_wrap": True, "min_width": 13}),
    LEVEL._replace(options={"no_wrap": True, "min_width": 8}),
    *NUMBERS,
    Column("heartbeat", 0, _pulse, {"no_wrap": True, "justify": "right"}),
)


def print_summary(summary: dict[str, Any], evidence: Evidence) -> None:
    """Print how each agent ended, and what was proven."""
    _print_agents(
        evidence.records, {handoff["agentId"]: handoff["reason"] for handoff in evidence.handoffs}
    )
    reasons = ", ".join(
        f"{count} {_how(reason)}" for reason, count in sorted(summary["handoffReasons"].items())
    )
    click.echo(f"{summary['agents']} agents, each a process, read {summary['tokens']:,} tokens")
    click.echo(f"handoffs: {summary['handoffs']}" + (f" ({reasons})" if reasons else ""))
    if summary["kills"]:
        click.echo(
            f"workers killed: {summary['kills']}; files begun again: "
            f"{summary['itemsBegunAgain']}; files lost: {summary['itemsLost']}"
        )
    if summary["everyItemDoneOnce"]:
        click.echo(
            f"checked against the stored records: all {summary['items']} files were read, "
            "each exactly once, and every handoff has one successor"
        )
    problems = summary["problems"]
    for problem in problems[:_SHOWN_PROBLEMS]:
        say(f"Error: {problem}")
    if len(problems) > _SHOWN_PROBLEMS:
        say(f"Error: and {len(problems) - _SHOWN_PROBLEMS} problems more")


def _print_agents(records: list[StateRecord], reasons: dict[str, str]) -> None:
    console = make_console()
    table = make_table()
    for name in ("agent", "ended"):
        table.add_column(name, no_wrap=True)
    for name in ("files", "tokens", "usage"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in sorted(records, key=_lane_and_generation):
        ending = "killed" if record.active else record.outcome or "?"
        reason = reasons.get(record.agent_id, "lost")
        if reason != "lost":
            ending += f", {reason.replace('_', ' ')}"
        table.add_row(
            Text(record.agent_id),
            Text(ending, "red" if record.active else ""),
            str(record.tasks_completed),
            held_tokens(record),
            percent(record.usage_ratio),
        )
    console.print(table)
    console.print()


def _how(reason: str) -> str:
    """Say in a word what led to a handoff."""
    return "rebuilt" if reason == "lost" else f"at {reason.removeprefix('threshold_')}"


def _lane_and_generation(record: StateRecord) -> list[int]:
    return [int(part) for part in record.agent_id.rpartition("-")[2].split(".")]
