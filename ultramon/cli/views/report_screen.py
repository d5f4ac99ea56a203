"""The report on one screen of 80 by 24."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, NamedTuple

from ultramon.cli.output import field, level_style, make_console, make_table, plural, short_tokens
from ultramon.context.ladder import CRITICAL, WARNING
from ultramon.hosts.transcripts.records import MEMORY
from ultramon.prices.cost import cost_words, dollars, range_words, short_cost
from ultramon.recordings.short_names import short_names
from ultramon.recordings.source_words import REST, servers_in, source_words
from ultramon.recordings.survey import MOST_NAMES, WORST_SESSIONS
from ultramon.state.plan_words import plan_line
from ultramon.state.usage_percent import whole_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table
    from rich.text import Text

    from ultramon.recordings.bills import CostFacts, PriceData
    from ultramon.recordings.survey_models import SessionFacts, Share, StandingCost, Survey
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.plan_limits import AccountPlan

_LAST = "last"
_COLUMNS = ("worst", _LAST, "cost", "peak", "compacted", "subagents")
ORDER = "worst first: work lost, then compactions, tokens thrown away, fullness"
"""How the sessions are sorted, with their subagents."""
_BEYOND = f"beyond the first {MOST_NAMES}"
_FILES = "files"
_FILE_PARTS = 2
_ROWS = 4
_MAX_WIDTH = 120
_COMMAND_CELLS = 26
_PROJECT_CELLS = 9
_NAME_CELLS = 15
_PART_CELLS = 24
_USED_CELLS = 42
_LEAST_WORST = 4
_MOST_PLANS = 2
_SEPARATOR = " · "
_REPLAY = "ultramon replay "
_GAP = 2
_LEAST_PROMPT_CELLS = 10
_SHORT_ORDER = "worst first: work lost, compactions, tokens, fullness; see: ultramon replay ID"
"""Where a row has no room for the whole command."""
_FULL = 0.95
_HIGH = 0.75


def print_report(
    found: Survey,
    budgets: Sequence[BudgetReading] = (),
    plans: Sequence[AccountPlan] = (),
) -> None:
    """Print a survey with at least one session.

    Args:
        found: The survey.
        budgets: What the user's budgets amount to.
        plans: Accounts with limits of a plan.
    """
    from rich.text import Text

    console = make_console()
    title, source = title_of(found), price_words(found.price_data)
    facts = facts_of(found, console.width - _NAME_CELLS)
    if source and len(title) + len(source) + len(_SEPARATOR) <= console.width:
        title += _SEPARATOR + source
    elif source:
        facts.insert(1, ("prices", source.removeprefix("prices "), "dim"))
    now = time.time()
    for account in reversed(plans[:_MOST_PLANS]):
        is_used_up = any(limit.percent >= 100 for limit in account.limits)
        words = plan_line(account, now).removeprefix("plan ")
        facts.insert(0, ("plan", words, "yellow" if is_used_up else ""))
    if budgets:
        words = _SEPARATOR.join(field(one.words(now)) for one in budgets)
        reached = {one.level for one in budgets}
        level = next((one for one in (CRITICAL, WARNING) if one in reached), None)
        facts.insert(0, ("budgets", words, level_style(level)))
    console.print(Text(title, "bold"), no_wrap=True, overflow="crop")
    for name, words, style in facts:
        line = Text.assemble((f"  {name:<13}", "dim"), (words, style))
        console.print(line, no_wrap=True, overflow="ellipsis")
    standing = standing_rows(found)[: _ROWS + 1]
    for name, words in standing:
        line = Text.assemble((name, "dim"), words)
        console.print(line, no_wrap=True, overflow="ellipsis")
    # So many lines less, so that the screen keeps its height.
    less = bool(found.unreadable) + bool(found.plan_hits) + len(plans[:_MOST_PLANS])
    rows = max(1, _ROWS - less)
    console.print(_filled(found, min(console.width, _MAX_WIDTH), rows))
    worst = found.worst_sessions[: max(_LEAST_WORST, WORST_SESSIONS - len(standing))]
    commands = [replay_command(one) for one in worst]
    are_short = all(len(one) <= _COMMAND_CELLS for one in commands)
    layout = _layout(found, worst, commands if are_short else None, console.width)
    order = _SHORT_ORDER if layout.has_ids else ORDER
    console.print(Text(f"  {order}", "dim"), no_wrap=True, overflow="crop")
    console.print(layout.table())
    if not are_short:
        console.print()
        for one in filter(None, commands):
            # Not in the table: a line that a table folds cannot be copied.
            console.print(Text(field(one), "cyan"), soft_wrap=True)


def title_of(found: Survey) -> str:
    """Return what was looked at."""
    agents = f"{plural(found.sessions, 'session')}, {plural(found.subagents, 'subagent')}"
    parts = [
        "" if found.days is None else plural(found.days, "day"),
        f"{agents} in {plural(found.projects, 'project')}",
        ", ".join(found.hosts),
    ]
    return _SEPARATOR.join(filter(None, parts))


def price_words(data: PriceData | None) -> str:
    """Return where the prices come from, empty where nothing is priced."""
    if data is None:
        return ""
    day = "" if data.list_date is None else f" of {data.list_date.day} {data.list_date:%b}"
    if not data.has_own_prices:
        return f"prices{day} (list price, not your bill)"
    own = "" if data.own_date is None else f" of {data.own_date.day} {data.own_date:%b}"
    return f"prices of your file{own}, else list prices{day}"


def money_words(found: Survey, cells: int) -> str:
    """Return what it cost in at most so many cells, if that is possible."""
    if found.cost_usd is None:
        return f"unpriced: {plural(found.unpriced_sessions, 'session')}" if _spent(found) else ""
    words = cost_words(found.cost_usd, is_whole=not found.unpriced_sessions)
    if found.unpriced_sessions:
        words += f" ({plural(found.unpriced_sessions, 'session')} unpriced)"
    if found.cost_source == "host":
        words += " by the host's own count"
    most = found.read_again_most_usd or 0.0
    if not most:
        return words
    again = f"{range_words(found.read_again_usd or 0.0, most)} of it to read again"
    causes = [
        plural(count, word)
        for count, word in ((found.compactions, "compaction"), (found.restarts, "restart"))
        if count
    ]
    longest = f"{words}{_SEPARATOR}{again} after {', '.join(causes)}"
    return longest if len(longest) <= cells else f"{words}{_SEPARATOR}{again}"


def _spent(found: CostFacts) -> bool:
    return any(found.spent.model_dump().values())


def facts_of(found: Survey, cells: int = _MAX_WIDTH) -> list[tuple[str, str, str]]:
    """Return the main counts: name, words and style of each.

    Args:
        found: The survey.
        cells: How long the words may be, where there is a choice.
    """
    compacted = compacted_words(found)
    if found.overflows:
        compacted += f"; {plural(found.overflows, 'request')} refused"
    lost = "nothing"
    if found.compactions:
        measured = found.compactions - found.unmeasured_compactions
        lost = f"at least {short_tokens(found.discarded_tokens)} tokens"
        lost += f" by {plural(measured, 'compaction')}"
        if found.unmeasured_compactions:
            lost += f"; of {found.unmeasured_compactions:,} more it is unknown"
    subagents = (
        f"{found.subagents_empty:,} back empty{_unknown(found.subagents_return_unknown)}, "
        f"{found.subagents_near_limit:,} within {(1 - found.near_limit_ratio) * 100:.0f} % "
        f"of the limit{_unknown(found.subagents_end_unknown)}"
    )
    money = money_words(found, cells)
    return [
        *([("money", money, "")] if money else []),
        *([("plan", plan_words(found), "yellow")] if found.plan_hits else []),
        ("compacted", compacted, "yellow" if found.compactions else ""),
        ("thrown away", lost, "yellow" if found.discarded_tokens else ""),
        ("subagents", subagents, "red" if found.subagents_in_trouble else ""),
        *([("left out", left_out_words(found), "yellow")] if found.unreadable else []),
    ]


def compacted_words(found: Survey) -> str:
    """Return how many agents were compacted, of how many."""
    return (
        f"{found.sessions_compacted:,} of {plural(found.sessions, 'session')}, "
        f"{found.subagents_compacted:,} of {plural(found.subagents, 'subagent')}"
    )


def standing_words(found: Survey) -> str:
    """Return what stood before a person's first word, empty where that is unknown."""
    whole = found.standing
    if whole is None:
        return ""
    cost = "" if whole.cost_usd is None else f", ≈ {dollars(whole.cost_usd)}"
    return f"{short_tokens(whole.tokens)} tokens before your first word{cost}"


def standing_rows(found: Survey) -> list[tuple[str, str]]:
    """Return the line of what stands in every request, and one for each part of it."""
    words = standing_words(found)
    if not words:
        return []
    rows = [(f"  {'standing':<13}", words)]
    # A rest alone says no more than the line above it.
    is_known = any(one.source is not None for one in found.by_standing)
    for one in found.by_standing if is_known else ():
        name = _cut(field(part_name(one)), _PART_CELLS, keep_end=_is_path(one.source))
        facts = f"{one.tokens:>8,} {one.provenance:<10}{used_words(one, found.sessions)}"
        cost = "" if one.cost_usd is None else dollars(one.cost_usd)
        rows.append((f"    {name:<{_PART_CELLS}}", f"{facts:<{_USED_CELLS}}{cost:>10}"))
    return rows


def _is_path(source: str | None) -> bool:
    return source is not None and source.startswith(MEMORY)


def part_name(one: StandingCost) -> str:
    """Return what stands in every request, for people."""
    return REST if one.source is None else source_words(one.source)


def used_words(one: StandingCost, sessions: int) -> str:
    """Return in how many sessions a part stood, and in how many of them it was called."""
    held = "all" if one.sessions == sessions else plural(one.sessions, "session")
    if one.sessions_used is None:
        return held
    return f"{held}, used in {one.sessions_used:,}" if one.sessions_used else f"{held}, never used"


def plan_words(found: Survey) -> str:
    """Return how often a usage limit was reached, and how long agents waited for it."""
    words = f"usage limit hit {found.plan_hits:,}x"
    minutes = round(found.plan_wait_seconds / 60)
    if not minutes:
        return words
    hours, minutes = divmod(minutes, 60)
    return f"{words}, {f'{hours:,} h {minutes:02}' if hours else f'{minutes} min'} waited"


def left_out_words(found: Survey) -> str:
    """Return how many files could not be read, by reason, the most frequent first."""
    reasons = Counter(one.reason for one in found.unreadable)
    counts = ", ".join(f"{count:,} {field(reason)}" for reason, count in reasons.most_common())
    return f"{plural(len(found.unreadable), 'file')}: {counts}"


def _unknown(count: int) -> str:
    return f" ({count:,} unknown)" if count else ""


def _percent(ratio: float) -> str:
    return "<1 %" if 0 < ratio < 0.005 else f"{ratio * 100:.0f} %"


def source_name(name: str | None, found: Survey) -> str:
    """Return what brought tokens, for people."""
    servers = servers_in(one.source for one in found.by_standing if one.source)
    return _BEYOND if name is None else source_words(name, servers)


def file_names(shares: Sequence[Share]) -> list[str]:
    """Return the ends of paths, which tell files apart better than their beginnings."""
    names = short_names({one.name for one in shares if one.name is not None}, _FILE_PARTS)
    return [_BEYOND if one.name is None else names[one.name] for one in shares]


def replay_command(session: SessionFacts) -> str:
    """Return the command that shows a session, empty where it would name what is hidden."""
    target = session.replay_target
    if target is None:
        return ""
    # A name that begins with a hyphen would be taken for an option.
    return f"{_REPLAY}{'-- ' if target.startswith('-') else ''}{shlex.quote(target)}"


def _filled(found: Survey, width: int, rows: int) -> Table:
    """Draw what filled the windows: sources, files and projects beside each other."""
    from rich.text import Text

    table = make_table()
    parts: tuple[tuple[str, Sequence[tuple[str, Share]]], ...] = (
        ("sources (estimate)", [(source_name(one.name, found), one) for one in found.by_source]),
        (_FILES, list(zip(file_names(found.by_file), found.by_file, strict=True))),
        ("projects", [(one.name or "unknown", one) for one in found.by_project]),
    )
    name_width = max(8, (width - 3 * 5 - 5 * 2) // 3)
    columns = []
    for title, shares in parts:
        table.add_column(title, width=name_width, no_wrap=True)
        table.add_column("", width=5, justify="right", no_wrap=True)
        names = [
            _cut(field(name), name_width, keep_end=title == _FILES or _is_path(one.name))
            for name, one in shares[:rows]
        ]
        columns += [names, [_percent(one.share_ratio) for _, one in shares[:rows]]]
    if not found.by_file:
        columns[2] = ["none named"]
    for row in zip_longest(*columns, fillvalue=""):
        table.add_row(*map(Text, row))
    return table


class _Column(NamedTuple):
    """A column of the table of sessions."""

    name: str
    cells: Sequence[Text]
    justify: Literal["left", "right"] = "left"

    @property
    def width(self) -> int:
        return max(len(self.name), *(one.cell_len for one in self.cells))


class _Layout(NamedTuple):
    """What there is room for."""

    columns: Sequence[_Column]
    has_ids: bool
    """Whether a row ends with an id alone, instead of the command that shows its session."""

    def table(self) -> Table:
        """Draw the table."""
        table = make_table()
        for one in self.columns:
            table.add_column(one.name, no_wrap=True, justify=one.justify)
        for cells in zip(*(one.cells for one in self.columns), strict=True):
            table.add_row(*cells)
        return table


def _layout(
    found: Survey,
    sessions: Sequence[SessionFacts],
    commands: Sequence[str] | None,
    console_width: int,
) -> _Layout:
    """Find room for what each session is about, which ids alone do not say.

    Args:
        found: The survey.
        sessions: Of it, those to list.
        commands: That show them; None = they stand elsewhere.
        console_width: In cells.
    """
    from rich.text import Text

    rows = [_cells(one) for one in sessions]
    columns = [
        _Column(name, [row[number] for row in rows], "right" if number > 1 else "left")
        for number, name in enumerate(_COLUMNS)
    ]
    # What is empty everywhere takes no room; nor does a host that the title names alone.
    known = [one for one in columns if any(cell.plain for cell in one.cells)]
    about = [_Column("host", [Text(one.host) for one in sessions])] if len(found.hosts) > 1 else []
    prompts = [field(one.first_prompt or "") for one in sessions]
    whole, ids = [], []
    if commands is not None:
        whole = [_Column("see it again", [Text(field(one), "cyan") for one in commands])]
        names = [one.removeprefix(_REPLAY) for one in commands]
        ids = [_Column("id", [Text(field(one), "cyan") for one in names])]
    without_day = [one for one in known if one.name != _LAST]
    tries = [(known, whole), (known, ids), (without_day, ids)] if any(prompts) else [(known, whole)]
    for first, last in tries:
        others = [*first, *about, *last]
        room = min(console_width, _MAX_WIDTH) - sum(one.width + _GAP for one in others)
        if room >= (_LEAST_PROMPT_CELLS if any(prompts) else 0):
            cut = _Column("began with", [Text(_cut(one, room)) for one in prompts])
            has_ids = bool(last) and last is ids
            return _Layout([*first, *about, *([cut] if any(prompts) else []), *last], has_ids)
    return _Layout([*known, *whole], has_ids=False)


def _cells(one: SessionFacts) -> list[Text]:
    """Return the cells of a session below `_COLUMNS`."""
    from rich.text import Text

    peak = one.peak_ratio
    # As hooks decide, and as every other face of a coding agent shows it.
    shown = "?" if peak is None else f"{whole_percent(peak, rounds=True)} %"
    return [
        Text(_cut(field(one.project or "unknown"), _PROJECT_CELLS)),
        Text(f"{one.ended_at:%m-%d}" if one.ended_at else "?"),
        Text(short_cost(one.cost_usd, is_whole=not one.unpriced_sessions)),
        Text(shown, _peak_style(peak)),
        Text(compacted(one)),
        Text(subagents(one), "red" if one.subagents_in_trouble else ""),
    ]


def compacted(session: SessionFacts) -> str:
    """Return how often and how much, empty for never."""
    if not session.compactions:
        return ""
    lost = short_tokens(session.discarded_tokens)
    if session.unmeasured_compactions == session.compactions:
        lost = "?"
    return f"{session.compactions}x {lost}"


def subagents(session: SessionFacts) -> str:
    """Return how many of the subagents came back empty or ended near their limit."""
    if not session.subagents:
        return ""
    bad = session.subagents_in_trouble
    return f"{bad} of {session.subagents}" if bad else str(session.subagents)


def _peak_style(ratio: float | None) -> str:
    if ratio is None:
        return "dim"
    return "bold red" if ratio >= _FULL else "yellow" if ratio >= _HIGH else ""


def _cut(text: str, cells: int, *, keep_end: bool = False) -> str:
    """Return what fits into so many cells, with ``~`` where something is missing."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= cells:
        return text
    if not keep_end:
        return f"{set_cell_size(text, cells - 1)}~"
    # Cell by cell, as rich cuts at the end alone and a character may be two cells wide.
    while cell_len(text) > cells - 1:
        text = text[1:]
    return f"~{text}"
