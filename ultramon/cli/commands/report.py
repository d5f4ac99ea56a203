"""`ultramon report`: what the transcripts that are already on the disk say."""

from __future__ import annotations

import errno
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from ultramon.cli.output import plural, print_json, say, say_by_reason
from ultramon.cli.selection import json_option

if TYPE_CHECKING:
    from ultramon.recordings.survey import Survey

_DAYS = 30
_PATIENCE_FILES = 25
"""After so many files a line says why nothing happens."""


@click.command("report", epilog="Example: ultramon report --days 7 --html report.html")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True))
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    metavar="N",
    help=f"Only sessions of the last N days.  [default: {_DAYS}; all of a PATH]",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write one page for a browser, which loads nothing else.",
)
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="A TOML file of prices that you pay; else, and for other models, list prices.",
)
@click.option("--anonymous", is_flag=True, help="Number projects and files instead of naming them.")
@json_option
def command(
    *,
    paths: tuple[str, ...],
    days: int | None,
    html_file: str | None,
    prices_file: str | None,
    anonymous: bool,
    json: bool,
) -> None:
    """Show what your agents cost, and what they did to their context windows.

    Reads what Claude Code, Codex, Gemini CLI and Qwen Code have written on this machine, before
    anything is installed: what the tokens cost, which sessions and subagents ran out of room, what
    compactions threw away, and what filled the windows. With PATHs, files or directories, it reads
    these instead.

    Costs are list prices times the tokens that the provider counted, not your bill. Nothing leaves
    the machine. What was read is kept in the user's cache directory, so that the
    next report is quick.
    """
    if days is None and not paths:
        days = _DAYS
    found = _survey(paths, days, prices_file)
    if anonymous:
        from ultramon.recordings.anonymous import anonymous as without_names

        found = without_names(found)
    if html_file is not None:
        from ultramon.cli.views.report_page import report_page
        from ultramon.system.files import replace_file

        page = report_page(found).encode("utf-8")
        replace_file(html_file, page, shared=True)
        say(f"written: {html_file}")
    if json:
        print_json(found.model_dump(mode="json", by_alias=True))
    elif html_file is None and found.sessions:
        from ultramon.cli.views.report_screen import print_report

        print_report(found)
    _say_what_is_missing(found, paths)


def _survey(paths: tuple[str, ...], days: int | None, prices_file: str | None) -> Survey:
    from ultramon.context.config import ContextConfig
    from ultramon.prices.price_list import open_prices
    from ultramon.recordings.clients import client_files, sources_of, split_by_age
    from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable, index_path
    from ultramon.recordings.recordings import files_of
    from ultramon.recordings.survey import survey

    prices = open_prices(prices_file)
    now = time.time()
    unreadable: list[Unreadable] = []

    def refuse(error: OSError) -> None:
        # Its folder was just listed, so the name is there: a link that leads nowhere.
        is_link = error.errno == errno.ENOENT
        reason = str(error.strerror) if is_link else f"cannot be listed: {error.strerror}"
        unreadable.append(Unreadable(os.fsdecode(error.filename), reason))

    if paths:
        # A file may be named twice, or lie in a directory that is named too.
        named = [file for path in paths for file in files_of(path, refuse)]
        files = list({os.path.realpath(file): file for file in named}.values())
    else:
        files = list(client_files(os.environ, refuse))
    older: list[str] = []
    if days is not None:
        files, older = split_by_age(files, now - days * 86_400)
    with TranscriptIndex(index_path()) as index:
        read = list(index.summarize(files, _Patience(), names_others=not paths))
        summarized = [one for one in read if isinstance(one, Summarized)]
        unreadable += [one for one in read if isinstance(one, Unreadable)]
        beside = [*index.kept(older), *index.summarize(sources_of(summarized, older))]
        sources = [one for one in beside if isinstance(one, Summarized)]
        found = list(index.count_copies_once(summarized, sources))
        if not paths:
            index.forget_missing()
    if index.problem is not None:
        say(f"Warning: nothing is kept for the next report: {index.problem}")
    return survey(
        [*unreadable, *found],
        ContextConfig().without_project,  # the report is about all projects
        now=now,
        days=days,
        older_transcripts=len(older),
        by_id=not paths,
        prices=prices,
    )


class _Patience:
    """Says on a terminal once why a first report takes its time."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, path: str) -> None:
        self._count += 1
        if self._count == _PATIENCE_FILES and sys.stderr.isatty():
            say("reading the transcripts; the next report reads only what is new")


def _say_what_is_missing(found: Survey, paths: tuple[str, ...]) -> None:
    say_by_reason("left out", ((one.path or "a file", one.reason) for one in found.unreadable))
    if found.broken_lines:
        say(f"{plural(found.broken_lines, 'line')} could not be read")
    if found.older_transcripts:
        say(f"{plural(found.older_transcripts, 'older transcript')} left out, shown with --days N")
    if found.copied_transcripts:
        copied = plural(found.copied_transcripts, "transcript")
        say(f"{copied} with the history of another one, which is counted once")
    if not found.sessions and not found.older_transcripts and not found.unreadable:
        if paths:
            say("no transcripts of a known host there")
        else:
            from ultramon.hosts.registry import host_names

            say(
                f"no transcripts of {' or '.join(host_names())} on this machine; `ultramon report "
                "PATH` reads others, `ultramon demo` shows agents at work"
            )
