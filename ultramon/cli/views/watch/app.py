"""The application of `ultramon watch`: who needs a person, and why, at one look.

Textual draws it; what is listed and said comes from `lines`, `why` and `actions`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.handover import ask_to_hand_over
from ultramon.cli.output import ascii_words, field, summary_line
from ultramon.cli.views.agent_table import COST, PLAN, TREND
from ultramon.cli.views.watch.actions import (
    Way,
    hand_over_question,
    pane_processes,
    run_way,
    way_to,
    way_to_continue,
)
from ultramon.cli.views.watch.agent_view import AgentView
from ultramon.cli.views.watch.dialogs import QuestionScreen, TextScreen
from ultramon.cli.views.watch.lines import SORTS, draw_head, list_lines
from ultramon.cli.views.watch.table import ring_text
from ultramon.errors import UltramonError
from ultramon.state.plan_words import brief_limit_words, limit_words
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.cli.views.watch.lines import Line
    from ultramon.cli.views.watch.source import Found, Source
    from ultramon.state.agent_rows import AgentRow

    Answer = TypeVar("Answer")

BUSY_RATIO = 0.04
"""The share of one processor that looking may take: after a look that took long the next one
waits, as long as `_MOST_SECONDS` at most."""
_MOST_SECONDS = 10.0
_KEYS = "Enter go there  Space why  h hand over  / filter  s sort  a finished  ? help  q quit"
_SHORT_KEYS = "Enter go  Space why  h hand over  / filter  ? help  q quit"
_HELP = """\
Enter    go there: the tmux pane of a session; the command that resumes one that was cut off
Space    why: last text, what filled the window, subagents, plan, events, explanation
h        ask the agent to hand over its work; asks you first
c        continue a session in a fresh one here; the earlier one stays as it is

Up Down Page Up Page Down Home End, j k    move
/        filter by name, run, model, task or state; Enter keeps it, Escape clears it
s        sort by urgency, usage, name, last activity
a        show finished agents too
r        look again now
q        quit

First line: who needs you (a permission, an answer, a critical session), the one
nearest to its limit, then lost, blind (fullness unknown), working, waiting.
Runway is the number of turns before the next level, from low to high end; 4+ is
at least 4."""


class WatchApp(App[int]):
    """The application; `run` returns the signal that ended it, 0 without one.

    Args:
        source: The agents.
        interval_seconds: Seconds between two looks, at least.
        with_finished: Show finished agents from the start.
        notify: ``none``, ``bell`` or ``osc9``; see the command.
        ascii_only: Draw with ASCII characters.
    """

    CSS = """
    Screen, ModalScreen, AgentView, Static, Input, VerticalScroll {
        background: ansi_default; color: ansi_default; scrollbar-size: 0 0;
    }
    #summary, #head, #problems, #keys, #title { text-wrap: nowrap; text-overflow: clip; }
    #summary { height: 1; text-style: bold; }
    #head { height: 1; text-style: dim; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #keys, #problems, #title { height: 1; }
    #keys { text-style: dim; }
    #title { text-style: bold; }
    AgentView, VerticalScroll { height: 1fr; }
    QuestionScreen { align: center middle; }
    #question { width: 60; max-width: 90%; height: auto; border: ascii ansi_default; padding: 1 2; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "go", show=False),
        Binding("space", "why", show=False),
        Binding("h", "hand_over", show=False),
        Binding("c", "continue", show=False),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("a", "finished", show=False),
        Binding("r", "look", show=False),
        Binding("question_mark", "help", show=False),
        Binding("q,Q", "quit", show=False),
        # Before the field of the filter, which takes this key for copying.
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("escape", "clear_filter", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
    ]

    def __init__(
        self,
        source: Source,
        *,
        interval_seconds: float,
        with_finished: bool = False,
        notify: str = "none",
        ascii_only: bool = False,
    ) -> None:
        super().__init__(ansi_color=True)
        self._source = source
        self._interval_seconds = interval_seconds
        self._with_finished = with_finished
        self._notify = notify
        self._ascii_only = ascii_only
        self._sort = SORTS[0]
        self._found: Found | None = None
        self._problem = ""
        self._message = ""
        # SQLite connections and caches of the store belong to one thread.
        self._reader = ThreadPoolExecutor(1, "ultramon-watch")
        self._again = asyncio.Event()

    def compose(self) -> ComposeResult:
        """Return the widgets."""
        yield Static("", id="summary", markup=False)
        yield Input(placeholder="filter", id="filter")
        yield Static("", id="head", markup=False)
        yield AgentView(ascii_only=self._ascii_only)
        yield Static("", id="problems", markup=False)
        yield Static("", id="keys", markup=False)

    @property
    def view(self) -> AgentView:
        """The list."""
        return self.screen_stack[0].query_one(AgentView)

    def on_mount(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            # A signal that was ignored at the start, as under nohup, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self.exit, int(number))
        self.view.focus()
        self.run_worker(self._keep_looking(), exclusive=True)

    def on_unmount(self) -> None:
        """Let the reader end with what it is doing."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _read(self, function: Callable[..., Answer], *args: Any, **named: Any) -> Answer:
        call = partial(function, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._reader, call)

    async def _keep_looking(self) -> None:
        while True:
            began, busy = time.monotonic(), time.process_time()
            await self._look_once()
            self._again.clear()
            # What was drawn meanwhile counts too: the whole process shall stay below its share.
            spent = time.process_time() - busy
            pause = max(self._interval_seconds, spent / BUSY_RATIO - (time.monotonic() - began))
            try:
                limit = max(_MOST_SECONDS, self._interval_seconds)
                await asyncio.wait_for(self._again.wait(), min(pause, limit))
            except TimeoutError:
                continue

    async def _look_once(self) -> None:
        try:
            self._found = await self._read(self._source.look, with_finished=self._with_finished)
            self._problem = ""
        except UltramonError as error:
            self._problem = sanitize(f"cannot be read now: {error}", max_chars=500)
        if self._found is not None:
            self._ring(self._found.news)
        self._put()
        await self._put_trends()
        await self._put_costs()
        await self._put_plans()

    def _put(self) -> None:
        """Write what was found to the screen."""
        found, view = self._found, self.view
        wanted = self._filter.value
        if found is not None:
            view.is_all, view.machines = found.is_all, found.machines
            view.show(list_lines(found.groups, wanted=wanted, sort=self._sort), found.at)
        self._write("#summary", self._summary())
        self._write("#head", draw_head(view.look) if view.lines else self._nothing())
        self._write("#problems", self._problems())
        self._write("#keys", self._foot())

    async def _put_trends(self) -> None:
        view = self.view
        if self.size.width < TREND.from_width:
            return
        view.trends = await self._read(
            self._source.trends, view.rows_on_screen, TREND.cells, ascii_only=self._ascii_only
        )
        if not view.has_trends and any(map(str.strip, view.trends.values())):
            view.has_trends = True
            self._put()
        view.redraw()

    async def _put_costs(self) -> None:
        view = self.view
        if self.size.width < COST.from_width:
            return
        found = await self._read(self._source.costs, view.rows_on_screen)
        if found.items() <= view.costs.items():
            return
        is_first, view.costs = not view.costs, view.costs | found
        if is_first:
            self._put()
        view.redraw()

    async def _put_plans(self) -> None:
        view = self.view
        if self._found is None or self.size.width < PLAN.from_width:
            return
        accounts = self._found.plans
        found = await self._read(self._source.plans, view.rows_on_screen, accounts)
        # Rows out of sight keep theirs: the column would come and go with them.
        plans = view.plans | found if len(accounts) > 1 else {}
        if plans == view.plans:
            return
        view.plans = plans
        self._put()
        view.redraw()

    def _write(self, name: str, text: str) -> None:
        widget = self.screen_stack[0].query_one(name, Static)
        text = self._plain(text)
        if getattr(widget, "written", None) != text:
            widget.written = text  # type: ignore[attr-defined]
            widget.update(text)

    @property
    def _filter(self) -> Input:
        return self.screen_stack[0].query_one("#filter", Input)

    def _summary(self) -> str:
        if self._found is None:
            return "reading"
        plans, budgets, now = self._found.plans, self._found.budgets, self._found.at
        more = [] if self._found.groups else ["no agents"]
        more += [
            f"{one.brief_words(is_named=len(budgets) > 1)}{' (used up)' * one.is_used_up}"
            for one in budgets
        ]
        limits = [
            (f"{one.name} " if len(plans) > 1 else "", limit)
            for one in plans
            for limit in one.limits
        ]
        whole = [f"{account}{limit_words(limit, now)}" for account, limit in limits]
        line = summary_line(self._found.summary, self.size.width, [*more, *whole])
        if all(words in line for words in whole):
            return line
        # How much is used fits where the times of the resets leave no room.
        brief = [f"{account}{brief_limit_words(limit)}" for account, limit in limits]
        return summary_line(self._found.summary, self.size.width, [*more, *brief])

    def _nothing(self) -> str:
        from ultramon.cli.views.agent_table import NO_AGENTS

        found = self._found
        if found is None:
            return ""
        if self._filter.value:
            return "no agent fits the filter; Escape clears it"
        return f"{found.finished:,} finished, shown with a" if found.finished else NO_AGENTS

    def _problems(self) -> str:
        if self._problem or self._message:
            return self._problem or self._message
        unreadable = self._found.unreadable if self._found is not None else []
        if not unreadable:
            return ""
        first = unreadable[0]
        more = f" (and {len(unreadable) - 1:,} more)" if len(unreadable) > 1 else ""
        return sanitize(f"{first.agent_id} cannot be read: {first.reason}{more}", max_chars=500)

    def _foot(self) -> str:
        view, found = self.view, self._found
        facts = []
        if len(view.lines) > view.size.height > 0:
            top = view.scroll_offset.y
            facts.append(f"{top + 1}-{min(top + view.size.height, len(view.lines))}")
            facts[-1] += f" of {len(view.lines):,}"
        if self._sort != SORTS[0]:
            facts.append(f"by {self._sort}")
        if found is not None and found.finished and view.lines:
            facts.append(f"{found.finished:,} finished")
        right = "  ".join(facts)
        keys = _KEYS if len(_KEYS) + len(right) + 2 <= self.size.width else _SHORT_KEYS
        return f"{keys}  {right}" if right else keys

    def _ring(self, news: Sequence[Any]) -> None:
        """Ring once for each rung reached; see the command."""
        if (driver := self._driver) is not None:
            for one, rung in news:
                driver.write(ring_text(self._notify, one, rung))

    # --- keys

    def on_agent_view_moved(self) -> None:
        """Show where the list stands, and the trends of what has come into sight."""
        self._write("#keys", self._foot())
        self.run_worker(self._put_trends(), group="trends", exclusive=True)

    def on_resize(self) -> None:
        """Fit everything to the new size."""
        self.call_after_refresh(self._put)

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        self._message = ""
        self.view.move(lines)

    def action_page(self, pages: int) -> None:
        """Move the cursor by the height of the list."""
        self.view.move(pages * max(self.view.size.height - 1, 1))

    def action_look(self) -> None:
        """Look again at once."""
        self._again.set()

    def action_sort(self) -> None:
        """Sort by the next order."""
        self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
        self._put()

    def action_finished(self) -> None:
        """Show finished agents, or fold them away again."""
        self._with_finished = not self._with_finished
        self._again.set()

    def action_filter(self) -> None:
        """Type a filter."""
        self._filter.display = True
        self.screen.set_focus(self._filter)

    def action_clear_filter(self) -> None:
        """Show all agents again."""
        self._filter.value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self._filter.display = bool(self._filter.value)
        self.screen.set_focus(self.view)
        self._put()

    def on_input_changed(self) -> None:
        """Narrow the list as one types."""
        self._put()

    def on_input_submitted(self) -> None:
        """Keep the filter, and return to the list."""
        self._close_filter()

    def action_help(self) -> None:
        """Show what the keys do."""
        self.push_screen(TextScreen("ultramon watch", _HELP))

    async def action_why(self) -> None:
        """Show why an agent is as full as it is."""
        row = self.view.chosen
        if row is None:
            return
        screen = TextScreen(self._plain(field(str(row.name))), "reading")
        await self.push_screen(screen)
        lines = await self._read(self._source.why, row)
        if screen.is_attached:
            screen.put(self._plain("\n".join(lines)))

    def _plain(self, text: str) -> str:
        return ascii_words(text) if self._ascii_only else text

    def action_hand_over(self) -> None:
        """Ask an agent to hand over, after a confirmation."""
        row = self.view.chosen
        if row is None:
            return

        async def answered(is_yes: bool | None) -> None:
            if is_yes:
                try:
                    await self._read(ask_to_hand_over, self._source.backend, row.seen)
                except (UltramonError, CommandFailed) as error:
                    self._say(str(error))
                else:
                    name = field(str(row.name))
                    where = "Space shows the handoff among its events"
                    self._say(f"asked {name} to hand over; {where}")

        self.push_screen(QuestionScreen(self._plain(hand_over_question(row.seen))), answered)

    async def action_go(self) -> None:
        """Go to an agent: for a subagent, to its session."""
        top = self._session()
        if top is not None:
            await self._go(await asyncio.to_thread(way_to, top.seen, os.environ, pane_processes))

    async def action_continue(self) -> None:
        """Continue a session, for a subagent its own, in a fresh one on this terminal."""
        top = self._session()
        if top is not None:
            await self._go(await asyncio.to_thread(way_to_continue, self._source.backend, top.seen))

    def _session(self) -> AgentRow | None:
        """Return the session of the chosen row; None without a row."""
        view = self.view
        at = view.chosen
        if at is None:
            return None
        top = at
        for line in view.lines[: view.lines.index(self._line_of(at)) + 1]:
            if line.row is not None and not line.depth:
                top = line.row
        return top

    async def _go(self, way: Way) -> None:
        if not way.commands:
            self._say(way.words)
        elif way.takes_terminal:
            # The program needs the terminal: meanwhile the application neither draws nor reads
            # keys.
            with self.suspend():
                problem = run_way(way)
            self.refresh(layout=True)
            self._say(problem or way.words)
        else:
            self._say(await asyncio.to_thread(run_way, way) or way.words)

    def _line_of(self, row: AgentRow) -> Line:
        return next(line for line in self.view.lines if line.row is row)

    def _say(self, words: str) -> None:
        self._message = sanitize(words, max_chars=500)
        self._write("#problems", self._problems())


def watch_with_app(source: Source, **choices: Any) -> None:
    """Run the application until a person or a signal ends it.

    Args:
        source: The agents.
        choices: As `WatchApp` takes them.
    """
    app = WatchApp(source, **choices)
    ended_by = app.run()
    sys.stdout.flush()
    if ended_by and ended_by != signal.SIGINT:
        # The terminal is restored; now the signal does what it does to any program.
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
