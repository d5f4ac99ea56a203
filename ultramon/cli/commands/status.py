"""`ultramon status`: every agent, the most urgent first."""

from __future__ import annotations

import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from ultramon.cli.agent_list import earlier_lives, look_at, open_agent_list
from ultramon.cli.output import (
    action_style,
    age,
    field,
    held_tokens,
    json_item,
    make_console,
    make_table,
    percent,
    print_json,
    print_json_list,
    say,
    short_tokens,
    summary_line,
    tokens,
    turns,
    usage_bar,
)
from ultramon.cli.selection import (
    directory_of,
    find_agent,
    limit_option,
    open_index,
    open_store,
    store_options,
)
from ultramon.pictures.sparkline import sparkline
from ultramon.state.agent_rows import name_of, need_of, phase_of, summarize
from ultramon.state.liveness import ENDED, LOST, STALE
from ultramon.state.observed import ObservedAgent, Unreadable, agents_json, unreadable_json
from ultramon.state.record import ANSWER, PERMISSION
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console
    from rich.table import Table

    from ultramon.backends.base import Backend
    from ultramon.cli.agent_list import AgentList

MAX_ROWS = 200
"""The default limit on a terminal: more rows scroll away unread."""

NO_AGENTS = (
    "no agents; `ultramon report` shows what sessions did so far, `ultramon install HOST` has the "
    "next ones of claude-code, codex, gemini or qwen report themselves, `ultramon demo` starts some"
)
"""What to do next where there is nothing to show."""
_WIDE = 100
_MAX_PROJECT_CHARS = 12
_GAP = 2
_MOST_TRENDS = 50
"""Of more agents the histories, read one by one, would cost more than the list."""
_ASKED = (PERMISSION, ANSWER)


@click.command("status")
@click.argument("agent", required=False)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Show ended agents too; with --run also those whose ids went on in another run.",
)
@click.option("--run", help="Only agents of this run.  [default: all runs]")
@limit_option(f"{MAX_ROWS} on a terminal, else all")
@store_options
def command(
    *,
    agent: str | None,
    show_all: bool,
    run: str | None,
    limit: int | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Show how full every agent's window is, the most urgent first.

    AGENT is an id, the beginning of one, or a label; without it all living agents are shown. Lost
    agents (their process is gone, or silent for long) and stale ones are marked. Where there is
    room for it, and of at most 50 agents, trend draws the last readings.
    """
    backend = open_store(state_dir)
    if agent is not None:
        seen, unreadable = look_at([find_agent(backend, agent)])
        if json:
            print_json(agents_json(seen, unreadable))
        else:
            print_agents(seen, unreadable, 0, backend=backend)
        return
    if limit is None and not json and sys.stdout.isatty():
        limit = MAX_ROWS
    is_whole = json and limit is None
    agent_list = open_agent_list(
        backend,
        run,
        show_all=show_all,
        is_cut=True,
        index=open_index(backend, "texts") if is_whole else None,
    )
    earlier = earlier_lives(backend, run) if run is not None and show_all else []
    if json:
        agents = chain(agent_list.stream(limit), (json_item(one.to_json()) for one in earlier))
        print_json_list(
            "agents",
            islice(agents, limit),
            lambda: unreadable_json(agent_list.unreadable) | resident_json(backend),
        )
    else:
        agent_list.refresh(limit)
        # Of a part the numbers would be wrong.
        if len(agent_list.seen) > 1 and not agent_list.left_out and sys.stdout.isatty():
            print_summary(agent_list.seen)
        print_agents(
            (agent_list.seen + earlier)[:limit],
            agent_list.unreadable,
            agent_list.hidden,
            backend=backend,
        )
    print_left_out(agent_list)
    for facts in resident_json(backend).values():
        say(f"hooks are answered by process {facts['pid']} since {facts['since']}")


def resident_json(backend: Backend) -> dict[str, Any]:
    """Return what the process that answers hooks says about itself, as a member; none without."""
    if sys.platform == "win32":
        return {}
    from ultramon.hosts.resident.place import Place

    running = Place(directory_of(backend)).running()
    return {} if running is None else {"resident": running}


def print_summary(seen: list[ObservedAgent]) -> None:
    """Print one line about all agents: who needs a person, and what the others do."""
    console = make_console()
    line = summary_line(summarize(seen, SYSTEM_CLOCK.now()), console.width)
    if console.options.ascii_only:
        line = line.replace(" · ", " - ")
    # Where all have ended there is nothing to say.
    if line:
        console.print(line, style="bold", no_wrap=True, overflow="crop")


def print_agents(
    seen: list[ObservedAgent],
    unreadable: list[Unreadable],
    hidden: int,
    *,
    backend: Backend | None = None,
    with_heartbeats: bool = False,
) -> None:
    """Print agents as a table, and on stderr what the table leaves out.

    Args:
        seen: In the order of the rows.
        unreadable: The agents that cannot be shown.
        hidden: How many ended agents are left out.
        backend: Has the histories of which trends are drawn; None = draw none.
        with_heartbeats: Show how long ago each agent beat.
    """
    if seen:
        console = make_console()
        histories = backend if len(seen) <= _MOST_TRENDS else None
        table = status_table(seen, console, backend=histories, with_heartbeats=with_heartbeats)
        console.print(table)
    for problem in unreadable:
        say(f"Warning: {problem.agent_id} cannot be read: {problem.reason}")
    if hidden:
        say(f"{hidden} ended, shown with --all")
    elif not seen and not unreadable:
        say(NO_AGENTS)


def print_left_out(agent_list: AgentList) -> None:
    """Report the number of agents that a limit leaves out."""
    if agent_list.left_out:
        total = agent_list.verdicts.total()
        say(f"{agent_list.left_out:,} less urgent ones left out, shown with --limit {total}")


class Column(NamedTuple):
    """A column of a table of agents."""

    header: str
    cell: Callable[[ObservedAgent, Look], tuple[str, str]]
    """Returns the text and its style."""
    options: dict[str, Any]
    rank: int = 0
    """Where room is short, the columns of the highest rank go first; 0 = it stays."""


if TYPE_CHECKING:
    FilledColumn = tuple[Column, list[tuple[str, str]]]


class Look(NamedTuple):
    """How the cells of a table are drawn."""

    is_wide: bool
    ascii_only: bool
    backend: Backend | None = None
    """Has the histories of which trends are drawn; None = draw none."""


def _style(one: ObservedAgent) -> str:
    return action_style(one.record.action, one.record.threshold_status)


def _name(one: ObservedAgent, look: Look) -> tuple[str, str]:
    name = name_of(one.record)
    project = field(name.project)
    if not look.is_wide and len(project) > _MAX_PROJECT_CHARS:
        project = f"{project[: _MAX_PROJECT_CHARS - 1]}{'.' if look.ascii_only else '…'}"
    return field(str(name._replace(project=project))), ""


def _host(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return field(one.record.host), ""


def _tag(one: ObservedAgent, look: Look) -> tuple[str, str]:
    name = name_of(one.record)
    return field(name.tag if name.project or name.title else ""), "dim"


def _level(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return field(one.record.threshold_status) or "unknown", _style(one)


def _bar(one: ObservedAgent, look: Look) -> tuple[str, str]:
    width = 12 if look.is_wide else 8
    return usage_bar(one.record.usage_ratio, width, ascii_only=look.ascii_only), _style(one)


def _trend(one: ObservedAgent, look: Look) -> tuple[str, str]:
    record = one.record
    if look.backend is None or record.measured_at is None:
        return "", ""
    drawn = sparkline(
        look.backend.history(record.agent_id),
        limit_tokens=record.context_limit,
        width=12 if look.is_wide else 8,
        ascii_only=look.ascii_only,
    )
    # One reading shows no trend.
    return drawn if len(drawn.strip()) > 1 else "", ""


def _tokens(one: ObservedAgent, look: Look) -> tuple[str, str]:
    write, of = (tokens, " of ") if look.is_wide else (short_tokens, "/")
    used = held_tokens(one.record, write, ascii_only=look.ascii_only)
    return f"{used}{of}{write(one.record.context_limit)}", ""


def _runway(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return "" if one.liveness.verdict == ENDED else turns(one.runway_turns), ""


def _tasks(one: ObservedAgent, look: Look) -> tuple[str, str]:
    done, total = one.record.tasks_completed, one.record.tasks_total
    return (str(done) if done else "") if total is None else f"{done}/{total}", ""


def _doing(one: ObservedAgent, look: Look) -> tuple[str, str]:
    task, title = one.record.current_task, name_of(one.record).title
    return "" if task is None or task == title else field(task), ""


def state_cell(one: ObservedAgent) -> tuple[str, str]:
    """Return what an agent does, needs or ended with, and its style."""
    verdict, reason = one.liveness.verdict, field(one.liveness.reason)
    if verdict in (LOST, STALE):
        return f"{verdict.upper()}: {reason}", "bold red" if verdict == LOST else "yellow"
    if verdict == ENDED:
        return reason, ""
    need = need_of(one)
    if not need:
        return field(phase_of(one.record)), ""
    return f"needs {need}" if need in _ASKED else need, "bold yellow"


_WHOLE = {"no_wrap": True}
_RIGHT = {"no_wrap": True, "justify": "right"}
NAME = Column("agent", _name, {"min_width": 8})
LEVEL = Column("level", _level, _WHOLE)
NUMBERS = (
    Column("", _bar, _WHOLE, 6),
    Column("usage", lambda one, _: (percent(one.record.usage_ratio), _style(one)), _RIGHT),
    Column("tokens", _tokens, _RIGHT, 4),
    Column("runway", _runway, _RIGHT, 2),
    Column("tasks", _tasks, _RIGHT, 5),
)
_HEARTBEAT = Column("beat", lambda one, _: (age(one.liveness.heartbeat_age_seconds), ""), _RIGHT, 3)
_HOST = Column("host", _host, _WHOLE, 8)
_COLUMNS = (
    NAME,
    _HOST,
    LEVEL,
    *NUMBERS[:2],
    Column("trend", _trend, _WHOLE, 3),
    *NUMBERS[2:],
    _HEARTBEAT,
    Column("doing", _doing, {"max_width": 32}, 7),
    Column("state", lambda one, _: state_cell(one), {}),
    Column("id", _tag, _WHOLE, 1),
)


def status_table(
    seen: list[ObservedAgent],
    console: Console,
    *,
    backend: Backend | None = None,
    with_heartbeats: bool = False,
) -> Table:
    """Draw agents as a table with as many columns as the console has room for.

    Args:
        seen: In the order of the rows.
        console: Where the table goes.
        backend: Has the histories of which trends are drawn; None = draw none.
        with_heartbeats: Show how long ago each agent beat.
    """
    look = Look(console.width >= _WIDE, console.options.ascii_only, backend)
    left_out = [] if with_heartbeats else [_HEARTBEAT]
    # Where all have the same host it says nothing.
    if len({one.record.host for one in seen}) < 2:
        left_out.append(_HOST)
    columns = [column for column in _COLUMNS if column not in left_out]
    return draw_table(seen, columns, look, width=console.width)


def draw_table(
    seen: list[ObservedAgent], columns: Iterable[Column], look: Look, *, width: int | None = None
) -> Table:
    """Draw one row per agent.

    Args:
        seen: In the order of the rows.
        columns: From left to right.
        look: How cells are drawn.
        width: Leave out empty columns, and the less important ones beyond so many cells; None =
            keep all.
    """
    from rich.text import Text

    filled = [(column, [column.cell(one, look) for one in seen]) for column in columns]
    if width is not None:
        filled = _fitting(filled, look, width)
    table = make_table()
    for column, _ in filled:
        table.add_column(column.header, **column.options)
    # Rich takes missing room from columns that may wrap; these cut their text instead.
    overflow: Literal["crop", "ellipsis"] = "crop" if look.ascii_only else "ellipsis"
    for one, *cells in zip(seen, *(cells for _, cells in filled), strict=True):
        row = [Text(*cell, no_wrap=True, overflow=overflow) for cell in cells]
        table.add_row(*row, style="dim" if one.liveness.verdict == ENDED else None)
    return table


def _fitting(filled: list[FilledColumn], look: Look, width: int) -> list[FilledColumn]:
    """Leave out empty columns, then others until names have room enough to be told apart."""
    from rich.cells import cell_len

    enough = {"agent": 30 if look.is_wide else 22, "state": 16, "doing": 16}

    def needed(column: Column, cells: list[tuple[str, str]]) -> int:
        widest = max(cell_len(text) for text in (column.header, *(text for text, _ in cells)))
        return min(widest, enough.get(column.header, widest)) + _GAP

    kept = {
        column.header: needed(column, cells)
        for column, cells in filled
        if not column.rank or any(text.strip() for text, _ in cells)
    }
    for column, _ in sorted(filled, key=lambda one: one[0].rank, reverse=True):
        if not column.rank or sum(kept.values()) - _GAP <= width:
            break
        kept.pop(column.header, None)
    return [(column, cells) for column, cells in filled if column.header in kept]
