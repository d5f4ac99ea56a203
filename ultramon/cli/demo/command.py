"""`ultramon demo`: processes that fill small windows with real text and hand over their work."""

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
    "--agents",
    type=click.IntRange(1, 16),
    default=3,
    help="Number of agents that work at the same time.",
)
@click.option("--items", type=click.IntRange(1, 500), default=90, help="Number of files to read.")
@click.option(
    "--kill", is_flag=True, help="Kill (SIGKILL) as many workers as work at the same time."
)
@state_dir_option("a temporary one")
@json_option
def command(*, agents: int, items: int, kill: bool, state_dir: str | None, json: bool) -> ExitCode:
    """Watch agents fill their windows and hand over their work.

    Every agent is a process that reads files of Python's standard library into a window of 24,000
    tokens. Odd agents hand off at the warning (70 %), even ones at the critical rung (85 %), and an
    orchestrator starts a successor for each. With --kill some agents are killed before they can
    hand off; their handoff is rebuilt from their stored state.

    At the end the stored records are checked against notes of the workers: every file must have
    been read exactly once, else the command fails. A kill may make one file begin again.

    No model is called, and the demo ends within seconds. With --state-dir the records stay.
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
    """Yield a temporary directory and a backend: in there, unless --state-dir names another."""
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
    """Open the backend of a command that starts processes on it."""
    backend = open_store(state_dir)
    if backend.url == "memory:":
        raise CommandFailed("ULTRAMON_BACKEND is memory:, which processes cannot share")
    return backend
