"""The lines of the application: what is listed in which order, and how one line is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from ultramon.backends.machines import are_several
from ultramon.cli.output import field
from ultramon.cli.views import agent_table
from ultramon.cli.views.agent_table import (
    COST,
    DOING,
    HOST,
    ID,
    MACHINE,
    OF_THE_APPLICATION,
    PLAN,
    TREND,
    brief_state,
)
from ultramon.state.liveness import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ultramon.cli.views.agent_table import Column
    from ultramon.state.agent_rows import AgentRow, RowGroup

SORTS = ("urgency", "usage", "name", "activity")
"""The orders of rows; groups follow their first row."""
_MIN_NAME_CELLS = 20
_ENOUGH_NAME_CELLS = 28
"""For a task of some words below a session."""


class Line(NamedTuple):
    """One line of the list."""

    row: AgentRow | None
    """None = a heading."""
    heading: str
    depth: int
    """How many sessions stand above it; 0 for one that nothing stands above."""
    is_last: bool
    """Whether no other agent follows below the same one."""


@dataclass(frozen=True)
class Look:
    """How lines are drawn.

    Attributes:
        width: Cells of the terminal.
        ascii_only: Draw with ASCII characters.
        columns: What there is room for and what is not empty everywhere.
        machines: As in `ultramon.cli.views.agent_table.Look`.
    """

    width: int
    ascii_only: bool
    columns: tuple[Column, ...] = OF_THE_APPLICATION
    machines: Mapping[str, str] | None = None

    @property
    def name_cells(self) -> int:
        """The room for names, the mark of the cursor included."""
        used = sum(column.cells + 1 for column in self.columns)
        return max(self.width - used, min(_MIN_NAME_CELLS, self.width))

    def of_cells(
        self, now: float, trend: str = "", cost: str = "", plan: str = ""
    ) -> agent_table.Look:
        """Return how the cells of one line are drawn."""
        return agent_table.Look(
            is_wide=False,
            ascii_only=self.ascii_only,
            trend_of=lambda _: trend,
            now=now,
            is_brief=True,
            cost_of=lambda _: cost,
            plan_of=lambda _: plan,
            machines=self.machines,
        )

    def fitted(
        self,
        lines: Sequence[Line],
        now: float,
        *,
        with_trends: bool,
        with_costs: bool = False,
        with_plans: bool = False,
    ) -> Look:
        """Return the look with the columns that fit and that some line fills.

        Those that say what headings and Space say too leave their room to names that would be cut.
        """
        rows = [line.row for line in lines if line.row is not None]
        widest_id = max((len(row.name.tag) for row in rows), default=0)
        columns, look = [], self.of_cells(now)
        for column in OF_THE_APPLICATION:
            if self.width < column.from_width:
                continue
            cells = min(column.cells, max(widest_id, 2)) if column is ID else column.cells
            fills = any(column.cell(row.seen, look)[0].strip() for row in rows)
            if column is TREND:
                fills = with_trends
            elif column is COST:
                fills = with_costs
            elif column is PLAN:
                fills = with_plans
            elif column is MACHINE:
                fills = are_several(self.machines, (row.seen for row in rows))
            elif column is HOST:
                fills = len({row.seen.record.host for row in rows}) > 1
            if fills or (not rows and column not in (COST, PLAN, MACHINE)):
                columns.append(column._replace(cells=cells))
        fitted = replace(self, columns=tuple(columns))
        for spare in (DOING, HOST):
            if fitted.name_cells < _ENOUGH_NAME_CELLS:
                kept = tuple(one for one in fitted.columns if one.header != spare.header)
                fitted = replace(self, columns=kept)
        return fitted


def list_lines(groups: Iterable[RowGroup], *, wanted: str = "", sort: str = SORTS[0]) -> list[Line]:
    """Return the lines of the list.

    Args:
        groups: The agents.
        wanted: Only agents in whose texts all these words occur, and what they stand below.
        sort: One of `SORTS`.
    """
    words = wanted.casefold().split()
    found = []
    for group in groups:
        rows = [row for row in map(lambda row: _kept(row, words, group), group.rows) if row]
        if rows:
            found.append((group, sorted(rows, key=lambda row: _key(row, sort))))
    found.sort(key=lambda one: _key(one[1][0], sort))
    lines: list[Line] = []
    for group, rows in found:
        if len(found) > 1 or group.project:
            lines.append(Line(None, _heading(group), 0, False))
        lines += _below(rows, 0, sort)
    return lines


def _below(rows: Sequence[AgentRow], depth: int, sort: str) -> Iterator[Line]:
    for row in rows:
        yield Line(row, "", depth, row is rows[-1])
        yield from _below(sorted(row.children, key=lambda one: _key(one, sort)), depth + 1, sort)


def _heading(group: RowGroup) -> str:
    parts = [group.project, f"run {group.run}" if group.run else ""]
    return "  ".join(field(part) for part in parts if part) or "no run"


def _kept(row: AgentRow, words: list[str], group: RowGroup) -> AgentRow | None:
    if not words:
        return row
    record = row.seen.record
    texts = (*row.name, record.agent_id, group.run, record.model, record.current_task, row.need)
    text = " ".join((*(text for text in texts if text), brief_state(row.seen))).casefold()
    if all(word in text for word in words):
        return row
    # A session that does not fit is kept above a subagent that does.
    children = [child for one in row.children if (child := _kept(one, words, group))]
    return row._replace(children=tuple(children)) if children else None


def _key(row: AgentRow, sort: str) -> tuple[object, ...]:
    record = row.seen.record
    if sort == "usage":
        return -(record.usage_ratio or 0.0), *row.urgency
    if sort == "name":
        return str(row.name).casefold(), record.agent_id
    if sort == "activity":
        return -record.last_activity, record.agent_id
    return row.urgency


def name_text(line: Line, look: Look, *, has_heading: bool) -> str:
    """Return the first cell of a row: its place in the tree, and its name."""
    row = line.row
    assert row is not None
    title = row.name.title if has_heading and row.name.title else str(row.name)
    branch = ""
    if line.depth:
        joint = ("`- " if line.is_last else "|- ") if look.ascii_only else (
            "└ " if line.is_last else "├ "
        )  # fmt: skip
        branch = "  " * (line.depth - 1) + joint
    chain = f" ({len(row.earlier) + 1} contexts)" if row.earlier else ""
    return f"{branch}{field(title)}{chain}"


def draw_line(
    line: Line,
    look: Look,
    now: float,
    *,
    is_chosen: bool = False,
    trend: str = "",
    cost: str = "",
    plan: str = "",
) -> list[tuple[str, str]]:
    """Return the parts of a line, each with its style; together as wide as the terminal.

    Args:
        line: The line.
        look: How it is drawn.
        now: Epoch seconds.
        is_chosen: Whether the cursor stands on it; the mark is seen without colours too.
        trend: Its sparkline.
        cost: What the agent cost; of a heading what all below it did.
        plan: What is used of its account's plan.
    """
    if line.row is None:
        heading = f"{line.heading}  {cost}" if cost else line.heading
        return [(_cut(heading, look.width, look), "bold")]
    row, mark = line.row, "> " if is_chosen else "  "
    base = "dim" if row.seen.liveness.verdict == ENDED else ""
    chosen = "bold" if is_chosen else base
    name = name_text(line, look, has_heading=bool(row.name.project))
    parts = [(mark + _cut(name, look.name_cells - len(mark), look), chosen)]
    drawn = look.of_cells(now, trend, cost, plan)
    for column in look.columns:
        text, style = column.cell(row.seen, drawn)
        text = _cut(field(text), column.cells, look, right="justify" in column.options)
        parts.append((f" {text}", base or style))
    return parts


def draw_head(look: Look) -> str:
    """Return the line of column names."""
    text = set_cell_size("  agent", look.name_cells)
    for column in look.columns:
        text += " " + _cut(column.header, column.cells, look, right="justify" in column.options)
    return set_cell_size(text, look.width)


def _cut(text: str, cells: int, look: Look, *, right: bool = False) -> str:
    """Return a text in exactly so many cells."""
    length = cell_len(text)
    if length > cells:
        end = "." if look.ascii_only else "…"
        return set_cell_size(text, max(cells - 1, 0)) + (end if cells else "")
    return " " * (cells - length) + text if right else set_cell_size(text, cells)
