"""`ultramon watch`: an application on a terminal, else the table of `ultramon status`."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from ultramon.cli.agent_list import open_agent_list
from ultramon.cli.exit_codes import CommandFailed
from ultramon.cli.output import make_console, print_line, takes_unicode
from ultramon.cli.selection import (
    directory_of,
    limit_option,
    machine_option,
    open_screen_store,
    store_options,
)
from ultramon.cli.views.watch.table import draw_live, print_changes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ultramon.backends.base import Backend


@click.command("watch", epilog="Example: ultramon watch --run nightly")
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
    help="Ring the bell, or ask the terminal for a notification, when an agent reaches a level.",
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
@machine_option
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
    machine: str | None,
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

    Watching stores no verdict and no heartbeat; only that a limit of a plan has reached a level,
    unless that is stored already. It runs the commands of [on] in ultramon.toml, each event's once.
    """
    if json:
        output_format = "json"
    # A status bar calls this all the time: it loads only what its line needs.
    if output_format == "tmux":
        from ultramon.cli.views.tmux_line import tmux_line

        print_line(tmux_line(state_dir, run, color=color))
        return
    if output_format in (None, "app") and not once and _can_run_app(is_asked=bool(output_format)):
        from ultramon.cli.views.watch.app import watch_with_app
        from ultramon.cli.views.watch.source import Source

        backend = open_screen_store(state_dir)
        everyone = open_agent_list(
            # All of them: the application itself hides and counts the finished ones.
            backend,
            run,
            show_all=True,
            is_cut=True,
            with_news=notify != "none",
            machine=machine,
        )
        with _background_looks(backend):
            watch_with_app(
                Source(backend, everyone, limit),
                interval_seconds=interval,
                with_finished=show_all,
                notify=notify,
                ascii_only=not takes_unicode(sys.stderr),
            )
        return
    is_drawn = output_format != "json" and not once and _can_draw()
    backend = open_screen_store(state_dir)
    agent_list = open_agent_list(
        backend,
        run,
        show_all=show_all,
        is_cut=is_drawn or once or limit is not None,
        with_news=notify != "none",
        machine=machine,
    )
    pause = None if once else interval
    with suppress(KeyboardInterrupt), ExitStack() as watching:
        if not once:
            watching.enter_context(_background_looks(backend))
        if is_drawn:
            draw_live(agent_list, notify, make_console(), limit, interval)
        else:
            print_changes(agent_list, notify, limit, pause, as_json=output_format == "json")


def _background_looks(backend: Backend) -> AbstractContextManager[None]:
    from ultramon.fleet.background_looks import background_looks
    from ultramon.recordings.budgets import budget_looks

    directory = directory_of(backend)
    return background_looks(backend, directory, "watch", budget_looks(directory, backend))


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
        from ultramon.installed import install_command

        raise CommandFailed(f"--format app needs Textual: {install_command('tui')}")
    return False


def _can_draw() -> bool:
    # Only POSIX can wait for keys and signals together.
    return os.name == "posix" and sys.stdout.isatty() and not make_console().is_dumb_terminal
