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
from ultramon.state.liveness import ENDED, LOST, STALE
from ultramon.state.observed import ObservedAgent, Unreadable, agents_json, unreadable_json
from ultramon.state.record import short_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from rich.console import Console
    from rich.table import Table

    from ultramon.backends.base import Backend
    from ultramon.cli.agent_list import AgentList

MAX_ROWS = 200
"""The default limit on a terminal: more rows scroll away unread."""

NO_AGENTS = (
    "no agents; `ultramon report` shows what sessions did so far, `ultramon install claude-code` "
    "has the next ones report themselves, `ultramon demo` starts some"
)
"""What to do next where there is nothing to show."""
_WIDE = 100


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
    agents (their process is gone, or silent for long) and stale ones are marked.
    """
    backend = open_store(state_dir)
    if agent is not None:
        seen, unreadable = look_at([find_agent(backend, agent)])
        if json:
            print_json(agents_json(seen, unreadable))
        else:
            print_agents(seen, unreadable, 0)
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
        print_agents((agent_list.seen + earlier)[:limit], agent_list.unreadable, agent_list.hidden)
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


def print_agents(
    seen: list[ObservedAgent],
    unreadable: list[Unreadable],
    hidden: int,
    *,
    with_heartbeats: bool = False,
) -> None:
    """Print agents as a table, and on stderr what the table leaves out."""
    if seen:
        console = make_console()
        console.print(status_table(seen, console, with_heartbeats=with_heartbeats))
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
    from_width: int
    """Narrower terminals leave the column out."""
    cell: Callable[[ObservedAgent, Look], tuple[str, str]]
    """Returns the text and its style."""
    options: dict[str, Any]


class Look(NamedTuple):
    """How the cells of a table are drawn."""

    is_wide: bool
    ascii_only: bool


def _style(one: ObservedAgent) -> str:
    return action_style(one.record.action, one.record.threshold_status)


def _name(one: ObservedAgent, look: Look) -> tuple[str, str]:
    record = one.record
    label = f" ({field(record.label)})" if record.label else ""
    return field(short_id(record)) + label, ""


def _level(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return field(one.record.threshold_status) or "unknown", _style(one)


def _bar(one: ObservedAgent, look: Look) -> tuple[str, str]:
    width = 12 if look.is_wide else 8
    return usage_bar(one.record.usage_ratio, width, ascii_only=look.ascii_only), _style(one)


def _tokens(one: ObservedAgent, look: Look) -> tuple[str, str]:
    write, of = (tokens, " of ") if look.is_wide else (short_tokens, "/")
    used = held_tokens(one.record, write, ascii_only=look.ascii_only)
    return f"{used}{of}{write(one.record.context_limit)}", ""


def _runway(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return "" if one.liveness.verdict == ENDED else turns(one.runway_turns), ""


def _tasks(one: ObservedAgent, look: Look) -> tuple[str, str]:
    done, total = one.record.tasks_completed, one.record.tasks_total
    return (str(done) if done else "") if total is None else f"{done}/{total}", ""


def _state(one: ObservedAgent, look: Look) -> tuple[str, str]:
    verdict, reason = one.liveness.verdict, field(one.liveness.reason)
    if verdict in (LOST, STALE):
        return f"{verdict.upper()}: {reason}", "bold red" if verdict == LOST else "yellow"
    return reason if verdict == ENDED else field(one.record.phase), ""


_WHOLE = {"no_wrap": True}
_RIGHT = {"no_wrap": True, "justify": "right"}
NAME = Column("agent", 0, _name, {"min_width": 8})
LEVEL = Column("level", 0, _level, _WHOLE)
NUMBERS = (
    Column("", 60, _bar, _WHOLE),
    Column("usage", 0, lambda one, _: (percent(one.record.usage_ratio), _style(one)), _RIGHT),
    Column("tokens", 60, _tokens, _RIGHT),
    Column("runway", 70, _runway, _RIGHT),
    Column("tasks", 70, _tasks, _RIGHT),
)
_HEARTBEAT = Column(
    "beat", 70, lambda one, _: (age(one.liveness.heartbeat_age_seconds), ""), _RIGHT
)
_COLUMNS = (
    NAME,
    LEVEL,
    *NUMBERS,
    _HEARTBEAT,
    Column("doing", _WIDE, lambda one, _: (field(one.record.current_task), ""), {"max_width": 32}),
    Column("state", 0, _state, {}),
)


def status_table(
    seen: list[ObservedAgent], console: Console, *, with_heartbeats: bool = False
) -> Table:
    """Draw agents as a table with as many columns as the console has room for.

    Args:
        seen: In the order of the rows.
        console: Where the table goes.
        with_heartbeats: Show how long ago each agent beat.
    """
    columns = [
        column
        for column in _COLUMNS
        if console.width >= column.from_width and (with_heartbeats or column is not _HEARTBEAT)
    ]
    return draw_table(seen, columns, Look(console.width >= _WIDE, console.options.ascii_only))


def draw_table(seen: list[ObservedAgent], columns: Collection[Column], look: Look) -> Table:
    """Draw one row per agent."""
    from rich.text import Text

    table = make_table()
    for column in columns:
        table.add_column(column.header, **column.options)
    # Rich takes missing room from columns that may wrap; these cut their text instead.
    overflow: Literal["crop", "ellipsis"] = "crop" if look.ascii_only else "ellipsis"
    for one in seen:
        cells = [
            Text(*column.cell(one, look), no_wrap=True, overflow=overflow) for column in columns
        ]
        table.add_row(*cells, style="dim" if one.liveness.verdict == ENDED else None)
    return table
