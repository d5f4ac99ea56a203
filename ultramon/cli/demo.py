"""`ultramon demo`: agents that fill small windows with real text and hand their work over."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from ultramon.cli.agents import json_option, look_at, open_store, state_dir_option
from ultramon.cli.output import (
    CommandFailed,
    ExitCode,
    make_console,
    make_table,
    percent,
    print_json,
    sanitize,
    say,
)
from ultramon.core.liveness import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from rich.console import Console, RenderableType

    from ultramon.backends.base import Backend
    from ultramon.config import ContextConfig
    from ultramon.core.record import StateRecord
    from ultramon.handoff import HandoffRecord
    from ultramon.levels import ThresholdAction

_LIMIT_TOKENS = 24_000
_MAX_CHARS = 6_000
"""An agent reads the beginning of a file, as tools that read files do."""
_MIN_BYTES = 2_000
_PACE_SECONDS = 0.2
_TARGET_SECONDS = 6.0
_FRAME_SECONDS = 0.1
_SHOWN_LINES = 6
_SKIPPED_FOLDERS = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib"}


@click.command("demo")
@click.option(
    "--agents",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    show_envvar=True,
    help="Agents that work at the same time.",
)
@click.option(
    "--items",
    type=click.IntRange(1, 2_000),
    default=90,
    show_default=True,
    show_envvar=True,
    help="Files to read.",
)
@state_dir_option("a temporary one")
@json_option
def command(*, agents: int, items: int, state_dir: str | None, json: bool) -> ExitCode:
    """Watch agents fill their windows and hand over their work.

    Every agent reads files of this Python's standard library into a window of 24,000 tokens. The
    odd ones hand off at the warning, the even ones return when it is critical; a successor carries
    on. In the end the stored records are checked: every file must have been read exactly once,
    else the command fails.

    No model is called, and it ends by itself within seconds. Records in a state directory of yours
    stay there.
    """
    from ultramon.config import disabled
    from ultramon.core.ids import random_hex

    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: agents would leave no records to show")
    names = standard_library_files(items)
    if len(names) < items:
        say(f"only {len(names)} files are installed")
    if not names:
        raise CommandFailed("the sources of the standard library are not installed")
    with _store(state_dir) as backend:
        crew = _Crew(backend, f"demo-{random_hex(2)}", names, min(agents, len(names)))
        crew.start()
        try:
            _watch(crew, quiet=json)
        finally:
            crew.finish()
        records = [agent.record for agent in backend.list_agents(crew.run)]
        readable = [record for record in records if record is not None]
        problems = check_records(names, readable)
        if len(readable) < len(records):
            problems.append(f"{len(records) - len(readable)} states cannot be read")
        summary = _summary(crew.run, names, readable, problems)
        if json:
            print_json(summary)
        else:
            _print_summary(summary, readable)
            if state_dir is not None:
                where = sanitize(backend.url)
                say(f"the records stay: ultramon status --all --run {crew.run} ({where})")
    return ExitCode.FAILURE if problems else ExitCode.OK


@contextmanager
def _store(state_dir: str | None) -> Iterator[Backend]:
    if state_dir is not None:
        yield open_store(state_dir)
        return
    from ultramon.backends.local import LocalBackend

    with tempfile.TemporaryDirectory(prefix="ultramon-demo-") as directory:
        backend = LocalBackend(directory)
        try:
            yield backend
        finally:
            backend.close()


def standard_library_files(count: int) -> list[str]:
    """Return up to so many source files, as paths relative to the standard library."""
    root = sysconfig.get_path("stdlib")
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.endswith(".py") and os.path.getsize(path) >= _MIN_BYTES:
                found.append(os.path.relpath(path, root))
    return found[:count]


class _Crew:
    """Agents in threads, one at a time in each; what they tell waits in a queue."""

    def __init__(self, backend: Backend, run: str, names: list[str], agents: int) -> None:
        self.backend = backend
        self.run = run
        self.told: SimpleQueue[str] = SimpleQueue()
        self._cancelled = threading.Event()
        self._root = sysconfig.get_path("stdlib")
        self._pace_seconds = min(_PACE_SECONDS, _TARGET_SECONDS * agents / len(names))
        self._shares = [names[number::agents] for number in range(agents)]
        self._executor = ThreadPoolExecutor(agents)
        self._work_done: list[Future[None]] = []

    def start(self) -> None:
        for number, names in enumerate(self._shares, 1):
            self._work_done.append(self._executor.submit(self._work, number, names))

    def is_working(self) -> bool:
        return not all(future.done() for future in self._work_done)

    def finish(self) -> None:
        """Stop who still works, and raise the first error that one of them met."""
        self._cancelled.set()
        self._executor.shutdown()
        for future in self._work_done:
            future.result()

    def _work(self, number: int, names: list[str]) -> None:
        """Read the files, with as many agents after one another as it takes."""
        from ultramon.monitor import create_context_monitor

        handoff: HandoffRecord | None = None
        generation = 1
        while generation == 1 or handoff is not None:
            suffix = "" if handoff is None else f".{generation}"
            with create_context_monitor(
                f"{self.run}-{number}{suffix}",
                _config(),
                run=self.run,
                goal="Read the standard library",
                continues=handoff,
                backend=self.backend,
            ) as monitor:
                handoff = None
                monitor.plan(names if generation == 1 else ())
                for name in monitor.pending():
                    with monitor.task(name):
                        action = monitor.track_content(self._read(name), source="tool:read")
                        self._cancelled.wait(self._pace_seconds)
                    self._tell(monitor.agent_id, action)
                    if self._cancelled.is_set():
                        monitor.stop("cancelled")
                        return
                    leaves = action.should_prepare if number % 2 else action.should_return
                    if leaves and monitor.pending():
                        handoff = self._hand_off(monitor)
                        break
            generation += 1

    def _read(self, name: str) -> str:
        with open(os.path.join(self._root, name), encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_CHARS)

    def _tell(self, agent_id: str, action: ThresholdAction) -> None:
        if action.changed:
            self.told.put(f"{agent_id}  {action.message}")

    def _hand_off(self, monitor: Any) -> HandoffRecord:
        from ultramon.handoff import Workspace

        handoff: HandoffRecord = monitor.hand_off(workspace=Workspace(cwd=self._root))
        done, left = len(handoff.completed), len(handoff.remaining)
        self.told.put(f"{monitor.agent_id}  handed off: {done} files read, {left} left")
        return handoff


def _config() -> ContextConfig:
    from ultramon.config import ContextConfig

    return ContextConfig(
        context_limit_tokens=_LIMIT_TOKENS,
        context_window_tokens=None,
        reserved_output_tokens=0,
        model=None,
        warning_threshold=0.70,
        critical_threshold=0.85,
        warning_tokens_left=None,
        critical_tokens_left=None,
        ladder=None,
        # The check at the end reads what is stored, so every save is waited for.
        on_error="raise",
    )


def _watch(crew: _Crew, *, quiet: bool) -> None:
    """Show the crew until it is done: a live table on a terminal, lines elsewhere."""
    console = make_console()
    if quiet or not sys.stdout.isatty() or console.is_dumb_terminal:
        _watch_lines(crew, quiet=quiet)
    else:
        _watch_live(crew, console)


def _watch_lines(crew: _Crew, *, quiet: bool) -> None:
    working = True
    while working:
        working = crew.is_working()
        for line in _news(crew):
            if not quiet:
                click.echo(sanitize(line))


def _watch_live(crew: _Crew, console: Console) -> None:
    from rich.live import Live

    lines: list[str] = []
    with Live(console=console, auto_refresh=False, transient=True) as live:
        working = True
        while working:
            working = crew.is_working()
            lines = [*lines, *_news(crew)][-_SHOWN_LINES:]
            live.update(_frame(crew, console, lines), refresh=True)


def _news(crew: _Crew) -> list[str]:
    """Wait for one frame at most, and return what was told meanwhile."""
    news = []
    try:
        news.append(crew.told.get(timeout=_FRAME_SECONDS))
        while True:
            news.append(crew.told.get_nowait())
    except Empty:
        return news


def _frame(crew: _Crew, console: Console, lines: list[str]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from ultramon.cli.status import status_table

    seen, _ = look_at(crew.backend.list_agents(crew.run))
    working = sorted(
        (one for one in seen if one.liveness.verdict != ENDED), key=lambda one: one.record.agent_id
    )
    table = status_table(working, console.width, ascii_only=console.options.ascii_only)
    done = sum(one.record.tasks_completed for one in seen)
    parts: list[RenderableType] = [table, Text(""), Text(f"{done} files read", "bold")]
    return Group(*parts, *(Text(sanitize(line), "dim") for line in lines))


def check_records(names: list[str], records: list[StateRecord]) -> list[str]:
    """Compare stored states with the work that was to be done; return what is wrong.

    Args:
        names: Every item, once.
        records: The states of all agents of the run.
    """
    problems = []
    done = Counter(
        task["name"]
        for record in records
        for task in record.tasks or ()
        if task["status"] == "done"
    )
    problems += [f"{name} was never done" for name in names if not done[name]]
    problems += [f"{name} was done {count} times" for name, count in done.items() if count > 1]
    problems += [f"{name} was not asked for" for name in done.keys() - set(names)]
    successors = Counter(record.predecessor_id for record in records)
    for record in records:
        if record.active:
            problems.append(f"agent {record.agent_id} did not end")
        if record.handoff is not None and successors[record.agent_id] != 1:
            count = successors[record.agent_id]
            problems.append(f"agent {record.agent_id} handed off to {count} successors")
    return problems


def _summary(
    run: str, names: list[str], records: list[StateRecord], problems: list[str]
) -> dict[str, Any]:
    handoffs = [record.handoff for record in records if record.handoff is not None]
    reasons = Counter(handoff["reason"] for handoff in handoffs)
    return {
        "run": run,
        "items": len(names),
        "itemsDone": sum(record.tasks_completed for record in records),
        "agents": len(records),
        "handoffs": len(handoffs),
        "handoffReasons": dict(reasons),
        "tokens": sum(record.estimated_tokens for record in records),
        "everyItemDoneOnce": not problems,
        "problems": problems,
    }


def _print_summary(summary: dict[str, Any], records: list[StateRecord]) -> None:
    from rich.text import Text

    console = make_console()
    table = make_table()
    for name in ("agent", "ended"):
        table.add_column(name, no_wrap=True)
    for name in ("files", "tokens", "usage"):
        table.add_column(name, justify="right", no_wrap=True)
    for record in sorted(records, key=_lane_and_generation):
        table.add_row(
            Text(record.agent_id),
            Text(_ending(record)),
            str(record.tasks_completed),
            f"{record.estimated_tokens:,}",
            percent(record.usage_ratio),
        )
    console.print(table)
    console.print()
    reasons = ", ".join(
        f"{count} at {reason.removeprefix('threshold_')}"
        for reason, count in sorted(summary["handoffReasons"].items())
    )
    click.echo(
        f"{summary['agents']} agents read {summary['tokens']:,} tokens; "
        f"{summary['handoffs']} handoffs" + (f" ({reasons})" if reasons else "")
    )
    if summary["everyItemDoneOnce"]:
        click.echo(
            f"checked against the stored records: all {summary['items']} files were read, "
            "each exactly once, and every handoff has one successor"
        )
    for problem in summary["problems"]:
        say(f"Error: {problem}")


def _lane_and_generation(record: StateRecord) -> list[int]:
    return [int(part) for part in record.agent_id.rpartition("-")[2].split(".")]


def _ending(record: StateRecord) -> str:
    if record.handoff is None:
        return record.outcome or "?"
    return f"{record.outcome}, {record.handoff['reason'].replace('_', ' ')}"
