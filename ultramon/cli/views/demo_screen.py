"""What `ultramon demo` shows: a live table on a terminal, lines elsewhere, and its result."""

from __future__ import annotations

import sys
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.text import Text

from ultramon.cli.agent_list import AgentList
from ultramon.cli.output import field, make_console, plural, say
from ultramon.cli.views.agent_table import LEVEL, NAME, NUMBERS, Column, Look, draw_table
from ultramon.state.liveness import ENDED, LOST
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from rich.console import Console, RenderableType
    from rich.table import Table

    from ultramon.backends.base import Backend
    from ultramon.fleet.supervise.result import SupervisorResult
    from ultramon.state.observed import ObservedAgent

_SHOWN_LINES = 6
_FRAMES_PER_SECOND = 10


@contextmanager
def shown(backend: Backend, run: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Show a run while the block runs, and how each agent ended; yields what shows a line."""
    console = make_console()
    agents = AgentList(backend, run, show_all=True, with_news=False)
    if quiet:
        yield lambda line: None
        return
    if not sys.stdout.isatty() or console.is_dumb_terminal:
        yield lambda line: click.echo(sanitize(line))
    else:
        from rich.live import Live

        lines: deque[str] = deque(maxlen=_SHOWN_LINES)
        with Live(
            get_renderable=lambda: _frame(agents, console, [*lines]),
            console=console,
            refresh_per_second=_FRAMES_PER_SECOND,
            # The last table is printed behind it, where it stays.
            transient=True,
        ):
            yield lines.append
    agents.refresh()
    console.print(_table(agents, console, left_out=()), "")


def _frame(agents: AgentList, console: Console, lines: list[str]) -> RenderableType:
    from rich.console import Group

    agents.refresh()
    followed = {one.record.predecessor_id for one in agents.seen}
    files_read = sum(one.record.tasks_completed for one in agents.seen)
    return Group(
        _table(agents, console, left_out=followed),
        Text(f"\n{plural(files_read, 'file')} read", "bold"),
        *(Text(sanitize(line), "dim", no_wrap=True, overflow="crop") for line in lines),
    )


def _table(agents: AgentList, console: Console, left_out: Collection[str | None]) -> Table:
    seen = {int(one.record.agent_id.rpartition(".")[2]): one for one in agents.seen}
    rows = [one for _, one in sorted(seen.items()) if one.record.agent_id not in left_out]
    return draw_table(rows, _COLUMNS, Look(is_wide=False, ascii_only=console.options.ascii_only))


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
    Column("heartbeat", _pulse, {"no_wrap": True, "justify": "right"}),
)


def print_proof(result: SupervisorResult, problems: list[str]) -> None:
    """Print what became of the files, and what was proven."""
    click.echo(f"files: {result}")
    if not problems:
        count = result.counts.assigned
        click.echo(
            f"by the workers' own notes all {count} files were read to the end, each exactly once"
        )
    for problem in problems:
        say(f"Error: {problem}")
