"""The lines of the application: what is listed in which order, and how one line is drawn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from ultramon.cli.output import action_style, field, turns, usage_bar
from ultramon.state.agent_rows import phase_of
from ultramon.state.liveness import ENDED, LOST, STALE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ultramon.state.agent_rows import AgentRow, RowGroup

SORTS = ("urgency", "usage", "name", "activity")
"""The orders of rows; groups follow their first row."""
_MIN_NAME_CELLS = 20


class Line(NamedTuple):
    """One line of the list."""

    row: AgentRow | None
    """None = a heading."""
    heading: str
    depth: int
    """How many sessions stand above it; 0 for one that nothing stands above."""
    is_last: bool
    """Whether no other agent follows below the same one."""


class Column(NamedTuple):
    """A column behind the names."""

    name: str
    cells: int
    from_width: int
    """Narrower terminals leave it out."""


TREND = Column("trend", 12, 104)
"""The only one that needs more than the state: the last readings of an agent."""
HOST = Column("host", 11, 116)
"""Where all have the same one it says nothing."""
COLUMNS = (
    HOST,
    Column("usage", 5, 0),
    Column("bar", 8, 76),
    TREND,
    Column("runway", 9, 60),
    Column("tasks", 7, 92),
    Column("task", 28, 140),
    Column("state", 10, 44),
    Column("age", 4, 52),
    Column("id", 13, 68),
)
_RIGHT = {"usage", "runway", "tasks", "age"}


@dataclass(frozen=True)
class Look:
    """How lines are drawn.

    Attributes:
        width: Cells of the terminal.
        ascii_only: Draw with ASCII characters.
        columns: What there is room for and what is not empty everywhere.
    """

    width: int
    ascii_only: bool
    columns: tuple[Column, ...] = COLUMNS

    @property
    def name_cells(self) -> int:
        """The room for names, the mark of the cursor included."""
        used = sum(column.cells + 1 for column in self.columns)
        return max(self.width - used, min(_MIN_NAME_CELLS, self.width))

    def fitted(self, lines: Sequence[Line], now: float, *, with_trends: bool) -> Look:
        """Return the look with the columns that fit and that some line fills."""
        rows = [line.row for line in lines if line.row is not None]
        widest_id = max((len(row.name.tag) for row in rows), default=0)
        columns = []
        for column in COLUMNS:
            if self.width < column.from_width:
                continue
            cells = min(column.cells, max(widest_id, 2)) if column.name == "id" else column.cells
            fills = any(cell(row, column.name, self, now)[0].strip() for row in rows)
            if column is TREND:
                fills = with_trends
            elif column is HOST:
                fills = len({row.seen.record.host for row in rows}) > 1
            if fills or not rows:
                columns.append(column._replace(cells=cells))
        return replace(self, columns=tuple(columns))


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
    text = " ".join((*(text for text in texts if text), state_text(row))).casefold()
    if all(word in text for word in words):
        return row
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


def state_text(row: AgentRow) -> str:
    """Return in one or two words what an agent does, needs, or ended with."""
    verdict = row.seen.liveness.verdict
    if verdict in (LOST, STALE):
        return verdict
    if verdict == ENDED:
        return field(row.seen.liveness.reason)
    return row.need or field(phase_of(row.seen.record))


def short_age(seconds: float) -> str:
    """Return an age in few cells; one under a minute changes too often to be worth drawing."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "now"


def cell(row: AgentRow, column: str, look: Look, now: float, trend: str = "") -> tuple[str, str]:
    """Return the text of one cell and its style."""
    record, is_over = row.seen.record, row.seen.liveness.verdict == ENDED
    level = action_style(record.action, record.threshold_status)
    if column == "usage":
        if record.usage_ratio is None:
            return "?", "dim"
        # Rounded down, as everywhere: 84.6 % shown as 85 % would deny what the level says.
        return f"{int(record.usage_ratio * 100 + 1e-9)} %", level
    if column == "bar":
        return usage_bar(record.usage_ratio, 8, ascii_only=look.ascii_only), level
    if column == "trend":
        return trend, ""
    if column == "host":
        return record.host, ""
    if column == "runway":
        return "" if is_over else turns(row.seen.runway_turns), ""
    if column == "tasks":
        done, total = record.tasks_completed, record.tasks_total
        return (str(done) if done else "") if total is None else f"{done}/{total}", ""
    if column == "task":
        task = record.current_task
        return "" if task is None or task == row.name.title else field(task), ""
    if column == "state":
        verdict = row.seen.liveness.verdict
        style = "bold red" if verdict == LOST else "yellow" if verdict == STALE else ""
        return state_text(row), "bold yellow" if row.need else style
    if column == "age":
        return short_age(now - record.last_activity), "dim"
    return row.name.tag, "dim"


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
    line: Line, look: Look, now: float, *, is_chosen: bool = False, trend: str = ""
) -> list[tuple[str, str]]:
    """Return the parts of a line, each with its style; together as wide as the terminal.

    Args:
        line: The line.
        look: How it is drawn.
        now: Epoch seconds.
        is_chosen: Whether the cursor stands on it; the mark is seen without colours too.
        trend: Its sparkline.
    """
    if line.row is None:
        return [(_cut(line.heading, look.width, look), "bold")]
    row, mark = line.row, "> " if is_chosen else "  "
    base = "dim" if row.seen.liveness.verdict == ENDED else ""
    chosen = "bold" if is_chosen else base
    name = name_text(line, look, has_heading=bool(row.name.project))
    parts = [(mark + _cut(name, look.name_cells - len(mark), look), chosen)]
    for column in look.columns:
        text, style = cell(row, column.name, look, now, trend)
        text = _cut(field(text), column.cells, look, right=column.name in _RIGHT)
        parts.append((f" {text}", base or style))
    return parts


def draw_head(look: Look) -> str:
    """Return the line of column names."""
    names = {"bar": "", "age": "age", "id": "id"}
    text = set_cell_size("  agent", look.name_cells)
    for column in look.columns:
        name = names.get(column.name, column.name)
        text += " " + _cut(name, column.cells, look, right=column.name in _RIGHT)
    return set_cell_size(text, look.width)


def _cut(text: str, cells: int, look: Look, *, right: bool = False) -> str:
    """Return a text in exactly so many cells."""
    length = cell_len(text)
    if length > cells:
        end = "." if look.ascii_only else "…"
        return set_cell_size(text, max(cells - 1, 0)) + (end if cells else "")
    return " " * (cells - length) + text if right else set_cell_size(text, cells)
