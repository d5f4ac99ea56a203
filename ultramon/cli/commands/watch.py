"""`ultramon watch`: an application on a terminal, else the table of `ultramon status`."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from ultramon.cli.agent_list import open_agent_list
from ultramon.cli.commands.status import print_agents, print_left_out, status_table
from ultramon.cli.output import (
    CommandFailed,
    json_line,
    make_console,
    moment,
    percent,
    wait_while_read,
)
from ultramon.cli.selection import limit_option, open_store, store_options
from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE
from ultramon.state.observed import agents_json
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from ultramon.cli.agent_list import AgentList
    from ultramon.state.observed import ObservedAgent

_MAX_UNREADABLE_LINES = 3
_INSTALL = "pip install 'ultramon[tui]'"
_AGES = ("heartbeatAgeSeconds", "livenessReason", "lastHeartbeat", "seq")


@click.command("watch")
@click.option("--run", help="Only agents of this run.  [default: all runs]")
@click.option("--all", "show_all", is_flag=True, help="Show ended agents too.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3_600),
    metavar="SECONDS",
    default=1.0,
    help="Seconds between two readings.",
)
@click.option(
    "--notify",
    type=click.Choice(("none", "bell", "osc9")),
    default="none",
    help="Ring the bell, or ask the terminal for a notification, when an agent reaches a rung.",
)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("app", "table", "tmux", "json")),
    help="The application, a table, one line for a status bar (printed once), or JSON lines."
    "  [default: app on a terminal, where the extra tui is installed, else table]",
)
@click.option("--color", is_flag=True, help="Use colour codes of tmux in its line.")
@click.option("--once", is_flag=True, help="Print once and end.")
@limit_option("what fits on a terminal, else all")
@store_options
def command(
    *,
    run: str | None,
    show_all: bool,
    interval: float,
    notify: str,
    output_format: str | None,
    color: bool,
    once: bool,
    limit: int | None,
    state_dir: str | None,
    json: bool,
) -> None:
    """Watch how full every agent's window is, the most urgent first.

    On a terminal it is an application: Enter goes to an agent, Space says why it is so full, h asks
    it to hand over, ? lists the other keys. It needs the extra tui; without it there is a table.

    q and Ctrl-C end it. Where stdout is no terminal, the table is printed again when something
    other than an age changes. --json is short for --format json: each change is one line, with the
    content of `ultramon status --json`.

    Watching stores nothing: no verdict, no heartbeat.
    """
    if json:
        output_format = "json"
    if output_format == "tmux":
        from ultramon.cli.tmux_line import tmux_line

        click.echo(tmux_line(state_dir, run, color=color))
        return
    if output_format in (None, "app") and not once and _can_run_app(is_asked=bool(output_format)):
        _run_app(state_dir, run, limit, interval, notify, show_all=show_all)
        return
    is_drawn = output_format != "json" and not once and _can_draw()
    agent_list = open_agent_list(
        open_store(state_dir),
        run,
        show_all=show_all,
        is_cut=is_drawn or once or limit is not None,
        with_news=notify != "none",
    )
    pause = None if once else interval
    with suppress(KeyboardInterrupt):
        if is_drawn:
            _watch_live(agent_list, notify, make_console(), limit, interval)
        else:
            _print_changes(agent_list, notify, limit, pause, as_json=output_format == "json")


def _can_run_app(*, is_asked: bool) -> bool:
    """Return whether the application can run; say what is missing where a person could have it.

    Raises:
        CommandFailed: It was asked for and cannot run.
    """
    if not (_can_draw() and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        if is_asked:
            raise CommandFailed("--format app needs a terminal for stdin, stdout and stderr")
        return False
    if find_spec("textual") is not None:
        return True
    if is_asked:
        raise CommandFailed(f"--format app needs Textual: {_INSTALL}")
    return False


def _run_app(
    state_dir: str | None,
    run: str | None,
    limit: int | None,
    interval: float,
    notify: str,
    *,
    show_all: bool,
) -> None:
    from ultramon.cli.watch.app import watch_with_app
    from ultramon.cli.watch.source import Source

    backend = open_store(state_dir)
    agent_list = open_agent_list(
        backend, run, show_all=True, is_cut=True, with_news=notify != "none"
    )
    watch_with_app(
        Source(backend, agent_list, limit),
        interval_seconds=interval,
        with_finished=show_all,
        notify=notify,
        ascii_only=not (sys.stderr.encoding or "").lower().startswith("utf"),
    )


def _ring(kind: str, crossings: list[tuple[ObservedAgent, str]]) -> None:
    """Ring the bell of the terminal, or ask it for a notification, once for each rung reached."""
    terminal = next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)
    if terminal is None or not crossings:
        return
    for one, rung in crossings:
        share = percent(one.record.usage_ratio)
        words = sanitize(f"ultramon: {one.record.agent_id} {rung} {share}", max_chars=200)
        terminal.write("\a" if kind == "bell" else f"\x1b]9;{words}\x1b\\")
    terminal.flush()


def _print_changes(
    agent_list: AgentList, notify: str, limit: int | None, interval: float | None, *, as_json: bool
) -> None:
    """Print the agents again whenever their content changes; once without an interval."""
    content = _facts if as_json else _gist
    last: object = None
    while True:
        _ring(notify, agent_list.refresh(limit))
        seen, unreadable = agent_list.seen, agent_list.unreadable
        now = [content(one) for one in seen], unreadable
        if now != last:
            last = now
            if as_json:
                click.echo(json_line(agents_json(seen, unreadable)))
            else:
                if interval is not None:
                    click.echo(f"--- {moment(time.time())}")
                print_agents(seen, unreadable, agent_list.hidden, with_heartbeats=True)
                print_left_out(agent_list)
        if interval is None:
            return
        wait_while_read(interval)


def _facts(one: ObservedAgent) -> object:
    """Return the state without the members that change by themselves."""
    return {name: value for name, value in one.to_json().items() if name not in _AGES}


def _gist(one: ObservedAgent) -> object:
    """Return what a row shows, without ages."""
    record = one.record
    return (
        (record.agent_id, record.label, record.threshold_status, record.phase, record.outcome),
        (record.estimated_tokens, record.context_limit, record.usage_ratio, one.runway_turns),
        (record.tasks_completed, record.tasks_total, record.current_task, one.liveness.verdict),
    )


def _can_draw() -> bool:
    # Only POSIX can wait for keys and signals together.
    return os.name == "posix" and sys.stdout.isatty() and not make_console().is_dumb_terminal


def _watch_live(
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
            _ring(notify, agent_list.refresh(min(limit or console.height, console.height)))
            # The alternate screen is painted over, not erased first, and survives any resize.
            lines = console.render_lines(
                _frame(agent_list, console), console.options.update_height(console.height)
            )
            if (console.size, lines) != drawn:
                console.update_screen_lines(lines)
                drawn = console.size, lines
            if (ended_by := wait(interval)) is not None:
                return ended_by


def _frame(agent_list: AgentList, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    problems = [
        Text(sanitize(f"{one.agent_id} cannot be read: {one.reason}"), "yellow", no_wrap=True)
        for one in agent_list.unreadable[:_MAX_UNREADABLE_LINES]
    ]
    # The table's head, an empty line and the summary take three lines.
    room = max(console.height - len(problems) - 3, 1)
    table = status_table(agent_list.seen[:room], console, with_heartbeats=True)
    beyond = agent_list.left_out + max(len(agent_list.seen) - room, 0)
    summary = Text(_summary(agent_list, beyond), "dim", no_wrap=True)
    rows: list[RenderableType] = [table, Text("")] if agent_list.seen else []
    return Group(*rows, *problems, summary)


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
    more = [] if find_spec("textual") else [f"more with {_INSTALL}"]
    return ", ".join([*(facts or ["no agents"]), "q ends", *more])


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
        os.set_blocking(waker, False)
        undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(waker))
        for number in caught:
            if signal.getsignal(number) is not signal.SIG_IGN:
                undo.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        if keyboard is not None:
            before = termios.tcgetattr(keyboard)
            undo.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, before)
            tty.setcbreak(keyboard, termios.TCSADRAIN)
        yield wait
