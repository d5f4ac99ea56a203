"""The table of agents: its columns, and one row per agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ultramon.backends.machines import are_several, shown_machine
from ultramon.cli.output import (
    action_style,
    age,
    field,
    held_tokens,
    make_console,
    make_table,
    print_line,
    say,
    short_tokens,
    summary_line,
    tokens,
    usage_bar,
)
from ultramon.context.level_words import brief_level_words
from ultramon.pictures.sparkline import sparkline
from ultramon.state.agent_rows import (
    MAX_TAG_CHARS,
    doing_words,
    name_of,
    need_of,
    phase_of,
    runway_words,
    summarize,
    tasks_words,
)
from ultramon.state.liveness import ENDED, LOST, STALE
from ultramon.state.plan_words import plan_line
from ultramon.state.record import ANSWER, PERMISSION
from ultramon.state.usage_percent import usage_words
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rich.console import Console
    from rich.table import Table

    from ultramon.backends.base import Backend
    from ultramon.cli.agent_list import AgentList
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.observed import ObservedAgent, Unreadable
    from ultramon.state.plan_limits import AccountPlan

_WIDE = 100
_MAX_PROJECT_CHARS = 12
_MAX_MACHINE_CHARS = 16
_GAP = 2
_ASKED = (PERMISSION, ANSWER)


class Look(NamedTuple):
    """How the cells of a table are drawn."""

    is_wide: bool
    ascii_only: bool
    trend_of: Callable[[ObservedAgent], str] | None = None
    """Returns the sparkline of an agent; None = draw none."""
    now: float = 0.0
    """Epoch seconds, for the time since the last activity."""
    is_brief: bool = False
    """Whether states are one or two words, without reasons."""
    cost_of: Callable[[ObservedAgent], str] | None = None
    """Returns what an agent cost, in at most six cells; None = not shown."""
    plan_of: Callable[[ObservedAgent], str] | None = None
    """Returns what is used of a session's plan, in at most ten cells; None = not shown."""
    machines: Mapping[str, str] | None = None
    """What people see of each machine, by its id; None = the store is that of one machine."""


class Column(NamedTuple):
    """A column of a table of agents."""

    header: str
    cell: Callable[[ObservedAgent, Look], tuple[str, str]]
    """Returns the text and its style."""
    options: dict[str, Any]
    rank: int = 0
    """Where a table has no room, the columns of the highest rank go first; 0 = it stays."""
    cells: int = 0
    """Its width in the application of `ultramon watch`."""
    from_width: int = 0
    """Narrower terminals leave it out of the application."""


if TYPE_CHECKING:
    FilledColumn = tuple[Column, list[tuple[str, str]]]


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


def _machine(one: ObservedAgent, look: Look) -> tuple[str, str]:
    name = field(shown_machine(look.machines, one.record.hostname))
    if len(name) > _MAX_MACHINE_CHARS:
        name = f"{name[: _MAX_MACHINE_CHARS - 1]}{'.' if look.ascii_only else '…'}"
    return name, ""


def _tag(one: ObservedAgent, look: Look) -> tuple[str, str]:
    name = name_of(one.record)
    return field(name.tag if name.project or name.title else ""), "dim"


def _level(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return field(brief_level_words(one.record, with_limit=look.is_wide)), _style(one)


def _bar(one: ObservedAgent, look: Look) -> tuple[str, str]:
    width = 12 if look.is_wide else 8
    return usage_bar(one.record.usage_ratio, width, ascii_only=look.ascii_only), _style(one)


def _trend(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return "" if look.trend_of is None else look.trend_of(one), ""


def _cost(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return "" if look.cost_of is None else look.cost_of(one), ""


def _plan(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return "" if look.plan_of is None else look.plan_of(one), ""


def _tokens(one: ObservedAgent, look: Look) -> tuple[str, str]:
    write, of = (tokens, " of ") if look.is_wide else (short_tokens, "/")
    used = held_tokens(one.record, write)
    return f"{used}{of}{write(one.record.context_limit)}", ""


def _doing(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return field(doing_words(one.record)), ""


def _idle(one: ObservedAgent, look: Look) -> tuple[str, str]:
    return short_age(look.now - one.record.last_activity), "dim"


def short_age(seconds: float) -> str:
    """Return an age in few cells; one under a minute changes too often to be worth drawing."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "now"


def brief_state(one: ObservedAgent) -> str:
    """Return in one or two words what an agent does, needs, or ended with."""
    verdict = one.liveness.verdict
    if verdict in (LOST, STALE):
        return verdict
    if verdict == ENDED:
        return field(one.liveness.reason)
    return need_of(one) or field(phase_of(one.record))


def _state(one: ObservedAgent, look: Look) -> tuple[str, str]:
    """Return what an agent does, needs or ended with, and its style."""
    verdict, text, need = one.liveness.verdict, brief_state(one), need_of(one)
    if verdict in (LOST, STALE):
        reason = "" if look.is_brief else f": {field(one.liveness.reason)}"
        words = text if look.is_brief else f"{text.upper()}{reason}"
        return words, "bold red" if verdict == LOST else "yellow"
    if not need:
        return text, ""
    return f"needs {need}" if need in _ASKED and not look.is_brief else need, "bold yellow"


_WHOLE = {"no_wrap": True}
_RIGHT = {"no_wrap": True, "justify": "right"}
NAME = Column("agent", _name, {"min_width": 8})
LEVEL = Column("level", _level, _WHOLE)
HOST = Column("host", _host, _WHOLE, 8, 11, 116)
"""Where all agents have the same one it says nothing."""
MACHINE = Column("machine", _machine, _WHOLE, 4, _MAX_MACHINE_CHARS, 100)
"""Only of a store that several machines share, where agents of several are shown."""
TREND = Column("trend", _trend, _WHOLE, 3, 12, 104)
"""The only one that needs more than the state: the last readings of an agent."""
_BAR = Column("", _bar, _WHOLE, 6, 8, 76)
_USAGE = Column("usage", lambda one, _: (usage_words(one.record), _style(one)), _RIGHT, 0, 5)
_TOKENS = Column("tokens", _tokens, _RIGHT, 4)
_RUNWAY = Column("runway", lambda one, _: (runway_words(one), ""), _RIGHT, 2, 12, 60)
COST = Column("cost", _cost, _RIGHT, 9, 6, 84)
"""As `TREND` it needs more than the state: the transcript of an agent."""
PLAN = Column("plan", _plan, _RIGHT, 10, 10, 112)
"""Of one account the first line has it."""
_TASKS = Column("tasks", lambda one, _: (tasks_words(one.record), ""), _RIGHT, 5, 7, 92)
_HEARTBEAT = Column("beat", lambda one, _: (age(one.liveness.heartbeat_age_seconds), ""), _RIGHT, 3)
DOING = Column("doing", _doing, {"max_width": 32}, 7, 28, 140)
_STATE = Column("state", _state, {}, 0, 10, 44)
_IDLE = Column("age", _idle, _RIGHT, 0, 4, 52)
ID = Column("id", _tag, _WHOLE, 1, MAX_TAG_CHARS, 68)
NUMBERS = (_BAR, _USAGE, _TOKENS, _RUNWAY, _TASKS)
_OF_A_TABLE = (
    NAME, MACHINE, HOST, LEVEL, _BAR, _USAGE, TREND, _TOKENS, _RUNWAY, _TASKS, _HEARTBEAT, DOING,
    _STATE, ID,
)  # fmt: skip
OF_THE_APPLICATION = (
    MACHINE, HOST, _USAGE, _BAR, TREND, _RUNWAY, COST, PLAN, _TASKS, DOING, _STATE, _IDLE, ID,
)  # fmt: skip
"""The columns behind the names in `ultramon watch`."""


def status_table(
    seen: list[ObservedAgent],
    console: Console,
    *,
    backend: Backend | None = None,
    with_heartbeats: bool = False,
    machines: Mapping[str, str] | None = None,
) -> Table:
    """Draw agents as a table with as many columns as the console has room for.

    Args:
        seen: In the order of the rows.
        console: Where the table goes.
        backend: Has the histories of which trends are drawn; None = draw none.
        with_heartbeats: Show how long ago each agent beat.
        machines: As in `Look`.
    """
    is_wide, ascii_only = console.width >= _WIDE, console.options.ascii_only

    def trend_of(one: ObservedAgent) -> str:
        if backend is None or one.record.measured_at is None:
            return ""
        points, limit = backend.history(one.record.agent_id), one.record.context_limit
        width = 12 if is_wide else 8
        drawn = sparkline(points, limit_tokens=limit, width=width, ascii_only=ascii_only)
        # One reading shows no trend.
        return drawn if len(drawn.strip()) > 1 else ""

    left_out = [] if with_heartbeats else [_HEARTBEAT]
    if len({one.record.host for one in seen}) < 2:
        left_out.append(HOST)
    if not are_several(machines, seen):
        left_out.append(MACHINE)
    columns = [column for column in _OF_A_TABLE if column not in left_out]
    look = Look(is_wide, ascii_only, trend_of, machines=machines)
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
    """Leave out empty columns, then others until names have room to differ."""
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


NO_AGENTS = (
    "no agents; `ultramon report` shows what sessions did so far, `ultramon install HOST` has the "
    "next ones of claude-code, codex, copilot, gemini, opencode or qwen report themselves, "
    "`ultramon demo` starts some"
)
"""What to do next where there is nothing to show."""
_MOST_TRENDS = 50
"""Of more agents the histories, read one by one, would cost more than the list."""


def print_summary(seen: list[ObservedAgent]) -> None:
    """Print one line about all agents: who needs a person, and what the others do."""
    console = make_console()
    line = summary_line(summarize(seen, SYSTEM_CLOCK.now()), console.width)
    # Where all have ended there is nothing to say.
    if line:
        console.print(line, style="bold", no_wrap=True, overflow="crop")


def print_plans(plans: Iterable[AccountPlan]) -> None:
    """Print a line for each account whose limits are known."""
    now = SYSTEM_CLOCK.now()
    for account in plans:
        print_line(plan_line(account, now))


def print_budgets(budgets: Iterable[BudgetReading]) -> None:
    """Print a line for each budget whose spending is known."""
    now = SYSTEM_CLOCK.now()
    for one in budgets:
        print_line(budget_line(one, now))


def budget_line(budget: BudgetReading, now: float) -> str:
    """Return a budget in one line: ``budget daily: today $11.40 of 20, 57 %``."""
    return f"budget {budget.words(now)}"


def print_agents(
    seen: list[ObservedAgent],
    unreadable: list[Unreadable],
    hidden: int,
    *,
    backend: Backend | None = None,
    with_heartbeats: bool = False,
    machines: Mapping[str, str] | None = None,
) -> None:
    """Print agents as a table, and on stderr what the table leaves out.

    Args:
        seen: In the order of the rows.
        unreadable: The agents that cannot be shown.
        hidden: How many ended agents are left out.
        backend: Has the histories of which trends are drawn; None = draw none.
        with_heartbeats: Show how long ago each agent beat.
        machines: As in `Look`.
    """
    if seen:
        console = make_console()
        histories = backend if len(seen) <= _MOST_TRENDS else None
        table = status_table(
            seen, console, backend=histories, with_heartbeats=with_heartbeats, machines=machines
        )
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
