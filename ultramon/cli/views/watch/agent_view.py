"""The list of agents in `ultramon watch`: lines, a cursor, and drawing only what is in sight."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ultramon.cli.output import ascii_words
from ultramon.cli.views.watch.lines import Look, draw_line
from ultramon.prices.cost import cost_of_agents, short_cost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.cli.views.watch.lines import Line
    from ultramon.prices.cost import Cost
    from ultramon.state.agent_rows import AgentRow


class AgentView(ScrollView, can_focus=True, inherit_bindings=False):
    """The list; draws only the lines that are on the screen."""

    class Moved(Message):
        """The cursor is on another line, or other lines are on the screen."""

    def __init__(self, *, ascii_only: bool) -> None:
        super().__init__()
        self.lines: list[Line] = []
        self.look = Look(80, ascii_only)
        self.trends: dict[str, str] = {}
        self.has_trends = False
        self.costs: dict[str, Cost] = {}
        self.is_all = True
        self.plans: dict[str, str] = {}
        self.machines: Mapping[str, str] | None = None
        self.now = 0.0
        self._at = 0
        self._is_at_top = True
        self._drawn: list[object] = []

    @property
    def chosen(self) -> AgentRow | None:
        """The agent under the cursor."""
        return self.lines[self._at].row if self._at < len(self.lines) else None

    @property
    def rows_on_screen(self) -> list[AgentRow]:
        """The agents on the screen."""
        top = self.scroll_offset.y
        lines = self.lines[top : top + self.size.height]
        return [line.row for line in lines if line.row is not None]

    def show(self, lines: list[Line], now: float) -> None:
        """Show other lines; a cursor that was moved stays on its agent, and on the screen."""
        chosen, at = self.chosen, 0 if self._is_at_top else self._at
        self.lines, self.now = lines, now
        look = Look(self.size.width or 80, self.look.ascii_only, machines=self.machines)
        self.look = look.fitted(
            lines,
            now,
            with_trends=self.has_trends,
            with_costs=bool(self.costs),
            with_plans=bool(self.plans),
        )
        self._at = min(at, max(len(lines) - 1, 0))
        if chosen is not None and not self._is_at_top:
            for number, line in enumerate(lines):
                if line.row is not None and line.row.agent_id == chosen.agent_id:
                    self._at = number
        self.virtual_size = Size(self.size.width, len(lines))
        self._leave_heading(1)
        if not self._is_at_top:
            self._follow()
        self.redraw()

    def redraw(self) -> None:
        """Draw again the lines that look different now."""
        top = self.scroll_offset.y
        drawn: list[object] = [self._parts(top + y) for y in range(self.size.height)]
        if len(drawn) != len(self._drawn):
            self.refresh()
        else:
            for y, (now, before) in enumerate(zip(drawn, self._drawn, strict=True)):
                if now != before:
                    self.refresh_line(top + y)
        self._drawn = drawn

    def on_resize(self) -> None:
        """Fit the columns to the new width, and keep the cursor in sight."""
        self._drawn = []
        self.show(self.lines, self.now)
        self.call_after_refresh(self._follow)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Report that other lines are on the screen."""
        super().watch_scroll_y(old_value, new_value)
        # After scrolling each line stands elsewhere.
        self._drawn = []
        self.post_message(self.Moved())

    def move(self, lines: int) -> None:
        """Move the cursor; headings are passed over."""
        if not self.lines:
            return
        self._at = min(max(self._at + lines, 0), len(self.lines) - 1)
        self._leave_heading(1 if lines > 0 else -1)
        # Where the cursor never left the top, the most urgent agent of the moment is chosen.
        self._is_at_top = all(line.row is None for line in self.lines[: self._at])
        self._follow()
        self.redraw()
        self.post_message(self.Moved())

    def _leave_heading(self, step: int) -> None:
        for way in (step, -step):
            at = self._at
            while 0 <= at < len(self.lines):
                if self.lines[at].row is not None:
                    self._at = at
                    return
                at += way

    def _follow(self) -> None:
        height, top = max(self.size.height, 1), self.scroll_offset.y
        # The heading above the first agent of a group is shown with it.
        first = self._at - (self._at > 0 and self.lines[self._at - 1].row is None)
        if first < top:
            self.scroll_to(y=first, animate=False, immediate=True)
        elif self._at >= top + height:
            self.scroll_to(y=self._at - height + 1, animate=False, immediate=True)

    def _parts(self, number: int) -> list[tuple[str, str]]:
        if number >= len(self.lines):
            return []
        line = self.lines[number]
        agent_id = "" if line.row is None else line.row.agent_id
        return draw_line(
            line,
            self.look,
            self.now,
            is_chosen=number == self._at,
            trend=self.trends.get(agent_id, ""),
            cost=self._cost_words(number),
            plan=self.plans.get(agent_id, ""),
        )

    def _cost_words(self, number: int) -> str:
        """Return what an agent cost, or the agents below a heading together."""
        if not self.costs:
            return ""
        row, is_all = self.lines[number].row, True
        rows = [] if row is None else [row]
        if row is None:
            below = takewhile(lambda line: line.row is not None, self.lines[number + 1 :])
            rows, is_all = [line.row for line in below if line.row is not None], self.is_all
        agents = (one for row in rows for one in row.contexts)
        cost = cost_of_agents(agents, self.costs, is_all=is_all)
        if cost is None or cost.known_usd is None:
            return ""
        words = short_cost(cost.known_usd, is_whole=not cost.unpriced)
        return ascii_words(words) if self.look.ascii_only else words

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen; see `ScrollView.render_line`."""
        parts = self._parts(self.scroll_offset.y + y)
        strip = Strip([Segment(text, Style.parse(style)) for text, style in parts])
        return strip.adjust_cell_length(self.size.width)
