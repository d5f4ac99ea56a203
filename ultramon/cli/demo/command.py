"""`ultramon demo`: processes that fill small windows with real text and hand their work over."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ultramon.cli.output import CommandFailed, ExitCode, plural, print_json, say
from ultramon.cli.selection import json_option, open_store, state_dir_option
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.backends.base import Backend


@click.command("demo")
@click.option(
    "--agents", type=click.IntRange(1, 16), default=3, help="Agents that work at the same time."
)
@click.option("--items", type=click.IntRange(1, 500), default=90, help="Files to read.")
@click.option("--kill", is_flag=True, help="SIGKILL workers on the way, as many as work at a time.")
@state_dir_option("a temporary one")
@json_option
def command(*, agents: int, items: int, kill: bool, state_dir: str | None, json: bool) -> ExitCode:
    """Watch agents fill their windows and hand over their work.

    Every agent is a process that reads files of this Python's standard library into a window of
    24,000 tokens. The odd ones hand off at the warning, the even ones return when it is critical;
    an orchestrator hears of it and starts a successor that carries on. With --kill some get no
    chance to hand off: their handoff is rebuilt from what they had stored.

    In the end the stored records are checked, against what the workers noted themselves: every
    file must be done exactly once, else the command fails. A kill may cost one file that is begun
    again, and no more.

    No model is called, and it ends by itself within seconds. Records in a state directory of yours
    stay there.
    """
    from ultramon.cli.demo.crew import Crew, standard_library_files
    from ultramon.cli.demo.proof import Evidence
    from ultramon.cli.demo.view import print_summary, watch
    from ultramon.system.environment import disabled
    from ultramon.system.ids import random_hex

    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: agents would leave no records to show")
    names = standard_library_files(items)
    if len(names) < items:
        say(f"installed: only {plural(len(names), 'file')}")
    if not names:
        raise CommandFailed("the sources of the standard library are not installed")
    with _folder_and_store(state_dir) as (folder, backend):
        run = f"demo-{random_hex(2)}"
        crew = Crew(backend, run, folder, kills=agents if kill else 0)
        try:
            crew.start(names, min(agents, len(names)))
            watch(crew, quiet=json)
        finally:
            crew.finish()
        if kill and not crew.killed:
            say("no worker was met in the middle of its work: none was killed")
        evidence = Evidence.gather(backend, run, folder)
        problems = [*crew.problems, *evidence.problems(names, crew.killed)]
        summary = {"run": run, **evidence.summary(names, crew.killed, problems)}
        if json:
            print_json(summary)
        else:
            print_summary(summary, evidence)
            if state_dir is not None:
                where = sanitize(backend.url)
                say(f"the records stay: ultramon status --all --run {run} ({where})")
    return ExitCode.FAILURE if problems else ExitCode.OK


@contextmanager
def _folder_and_store(state_dir: str | None) -> Iterator[tuple[str, Backend]]:
    """Make a private directory, and open the backend: in there, unless a person has named one."""
    with tempfile.TemporaryDirectory(prefix="ultramon-demo-") as folder:
        if state_dir is not None:
            yield folder, open_shared_store(state_dir)
            return
        from ultramon.backends.local.backend import LocalBackend

        backend = LocalBackend(f"{folder}/state")
        try:
            yield folder, backend
        finally:
            backend.close()


def open_shared_store(state_dir: str | None) -> Backend:
    """Open the backend that a command works on, for commands that start processes on it."""
    backend = open_store(state_dir)
    if backend.url == "memory:":
        raise CommandFailed("ULTRAMON_BACKEND is memory:, which processes cannot share")
    return backend
