"""The table of `ultramon watch`: drawn on a whole terminal, or printed again at each change."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from ultramon.cli.output import json_line, level_style, moment, say, wait_while_read
from ultramon.cli.views.agent_table import (
    budget_line,
    print_agents,
    print_budgets,
    print_left_out,
    print_plans,
    status_table,
)
from ultramon.errors import StateError
from ultramon.state.budget_readings import budgets_json
from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE
from ultramon.state.observed import agents_json
from ultramon.state.plan_words import plan_json, plan_line
from ultramon.state.usage_percent import usage_words
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from ultramon.cli.agent_list import AgentList
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.plan_limits import AccountPlan

_MAX_UNREADABLE_LINES = 3
# They change without any news: with them the table would be printed at every look.
_AGES = ("heartbeatAgeSeconds", "livenessReason", "lastHeartbeat", "seq")


def ring_text(kind: str, one: ObservedAgent, rung: str) -> str:
    """Return what has a terminal ring for a rung reached: the bell, or a notification (OSC 9)."""
    words = f"ultramon: {one.record.agent_id} {rung} {usage_words(one.record)}"
    return "\a" if kind == "bell" else f"\x1b]9;{sanitize(words, max_chars=200)}\x1b\\"


def _ring(kind: str, crossings: list[tuple[ObservedAgent, str]]) -> None:
    """Ring once for each rung reached."""
    # The table may be piped: the bell is for the terminal that is left.
    terminal = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if terminal is not None and crossings:
        terminal.write("".join(ring_text(kind, one, rung) for one, rung in crossings))
        terminal.flush()


def print_changes(
    agent_list: AgentList, notify: str, limit: int | None, interval: float | None, *, as_json: bool
) -> None:
    """Print the agents again whenever their content changes; once without an interval."""
    content = _facts if as_json else _gist
    last: object = None
    problem = ""
    while True:
        news, former = [], problem
        try:
            news, problem = agent_list.refresh(limit), ""
        except StateError as error:
            # What never could be read is an error; what is away for a while comes back.
            if last is None or interval is None:
                raise
            problem = str(error)
            if not former:
                say(f"Warning: cannot be read now: {problem}")
            wait_while_read(interval)
            continue
        _ring(notify, news)
        seen, unreadable = agent_list.seen, agent_list.unreadable
        plans, budgets = agent_list.plans, agent_list.budgets
        shared = [_used(one) for one in plans], [_spent(one) for one in budgets]
        now = [content(one) for one in seen], unreadable, shared
        if now != last:
            last = now
            if as_json:
                shown = agents_json(seen, unreadable) | plan_json(plans) | budgets_json(budgets)
                click.echo(json_line(shown))
            else:
                if interval is not None:
                    click.echo(f"--- {moment(time.time())}")
                print_agents(
                    seen,
                    unreadable,
                    agent_list.hidden,
                    with_heartbeats=True,
                    machines=agent_list.machines.names(),
                )
                print_plans(plans)
                print_budgets(budgets)
                print_left_out(agent_list)
        if interval is None:
            return
        wait_while_read(interval)


def _used(account: AccountPlan) -> object:
    """Return the limits of an account without the age of the numbers."""
    limits = [(limit.name, limit.percent, limit.resets_at) for limit in account.limits]
    return account.account, limits


def _spent(budget: BudgetReading) -> object:
    """Return a budget without the forecast, which each look moves."""
    return budget.name, budget.period_key, budget.amounts, budget.level


def _facts(one: ObservedAgent) -> object:
    """Return the state without the members that change by themselves."""
    return {name: value for name, value in one.to_json().items() if name not in _AGES}


def _gist(one: ObservedAgent) -> object:
    """Return what a row shows, without ages."""
    record = one.record
    return (
        (record.agent_id, record.label, record.threshold_status, record.phase, record.outcome),
        (record.estimated_tokens, record.context_limit, record.usage_ratio, str(one.runway)),
        (record.tasks_completed, record.tasks_total, record.current_task, one.liveness.verdict),
    )


def draw_live(
    agent_list: AgentList, notify: str, console: Console, limit: int | None, interval: float
) -> None:
    """Draw the agents on the whole terminal until a signal ends it; q counts as Ctrl-C."""
    while (ended_by := _draw(agent_list, notify, console, limit, interval)) != signal.SIGINT:
        # The terminal is restored; now the signal does what it does to any program.
        os.kill(os.getpid(), ended_by)


def _draw(
    agent_list: AgentList, notify: str, console: Console, limit: int | None, interval: float
) -> int:
    drawn: object = None
    with _terminal() as wait, console.screen():
        while True:
            problem = ""
            try:
                _ring(notify, agent_list.refresh(min(limit or console.height, console.height)))
            except StateError as error:
                if drawn is None:
                    raise
                problem = f"cannot be read now: {error}"
            # The alternate screen is painted over, not erased first, and survives any resize.
            lines = console.render_lines(
                _frame(agent_list, console, problem), console.options.update_height(console.height)
            )
            if (console.size, lines) != drawn:
                console.update_screen_lines(lines)
                drawn = console.size, lines
            if (ended_by := wait(interval)) is not None:
                return ended_by


def _frame(agent_list: AgentList, console: Console, problem: str) -> RenderableType:
    """Return what is drawn: the agents as they were last read, and why they are not read now."""
    from rich.console import Group
    from rich.text import Text

    problems = [
        Text(sanitize(f"{one.agent_id} cannot be read: {one.reason}"), "yellow", no_wrap=True)
        for one in agent_list.unreadable[:_MAX_UNREADABLE_LINES]
    ]
    if problem:
        problems.insert(0, Text(sanitize(problem, max_chars=500), "yellow", no_wrap=True))
    now = SYSTEM_CLOCK.now()
    plans = [Text(plan_line(one, now), "dim", no_wrap=True) for one in agent_list.plans]
    plans += [
        Text(budget_line(one, now), level_style(one.level, "dim"), no_wrap=True)
        for one in agent_list.budgets
    ]
    # The table's head, an empty line and the summary take three lines.
    room = max(console.height - len(problems) - len(plans) - 3, 1)
    table = status_table(
        agent_list.seen[:room],
        console,
        with_heartbeats=True,
        machines=agent_list.machines.names(),
    )
    beyond = agent_list.left_out + max(len(agent_list.seen) - room, 0)
    summary = Text(_summary(agent_list, beyond), "dim", no_wrap=True)
    rows: list[RenderableType] = [table, Text("")] if agent_list.seen else []
    return Group(*rows, *problems, *plans, summary)


def _summary(agent_list: AgentList, beyond: int) -> str:
    verdicts = agent_list.verdicts
    counts = {
        "living": verdicts[ALIVE] + verdicts[STALE],
        "lost": verdicts[LOST],
        "ended": verdicts[ENDED],
        "ended, shown with --all": agent_list.hidden,
        "unreadable": len(agent_list.unreadable),
        "more than fit": beyond,
    }
    facts = [f"{count:,} {what}" for what, count in counts.items() if count]
    return ", ".join([*(facts or ["no agents"]), "q ends", *_more_words()])


@cache
def _more_words() -> tuple[str, ...]:
    if find_spec("textual"):
        return ()
    from ultramon.installed import install_command

    return (f"more with {install_command('tui')}",)


@contextmanager
def _terminal() -> Iterator[Callable[[float], int | None]]:
    """Take keys as they are typed and signals as they come, until left.

    Yields:
        A function that waits so many seconds, less after a key or a resize; returns the signal
        that ends the display, or None.
    """
    import select
    import termios
    import tty

    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    woken, waker = os.pipe()

    def wait(seconds: float) -> int | None:
        sources = [woken] if keyboard is None else [woken, keyboard]
        ready, _, _ = select.select(sources, (), (), seconds)
        if woken in ready:
            for number in os.read(woken, 64):
                # A resize only ends the wait, so that the next frame has the new size.
                if number != signal.SIGWINCH:
                    return number
        if keyboard in ready:
            typed = os.read(keyboard, 64)
            if not typed or b"q" in typed.lower():
                return signal.SIGINT
        return None

    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGWINCH)
    with ExitStack() as undo:
        undo.callback(os.close, woken)
        undo.callback(os.close, waker)
        # A full pipe must not block where a signal is taken.
        os.set_blocking(waker, False)
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waker))
        for number in caught:
            if signal.getsignal(number) is not signal.SIG_IGN:
                # Only of a signal with a handler the number is written; the handler has nothing to
                # do.
                undo.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        if keyboard is not None:
            before = termios.tcgetattr(keyboard)
            undo.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, before)
            # Keys come without Enter, and Ctrl-C and Ctrl-Z are still signals.
            tty.setcbreak(keyboard, termios.TCSADRAIN)
        yield wait
