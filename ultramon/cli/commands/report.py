"""`ultramon report`: what the transcripts that are already on the disk say."""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import click

from ultramon.cli.output import plural, print_json, say, say_by_reason
from ultramon.cli.selection import LOOK_SECONDS, json_option

if TYPE_CHECKING:
    from ultramon.backends.postgres.backend import PostgresBackend
    from ultramon.recordings.daily_sums import DailySums
    from ultramon.recordings.index import Summarized, TranscriptIndex, Unreadable
    from ultramon.recordings.survey_models import Survey
    from ultramon.state.budget_readings import BudgetReading
    from ultramon.state.plan_limits import AccountPlan

_DAYS = 30
_PERIODS = ("day", "week", "month")
_GROUPS = ("machine", "host", "model")
"""Of a database, beside its days."""
_HOUR_SECONDS = 3_600
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
@click.option(
    "--by",
    type=click.Choice([*_PERIODS, *_GROUPS]),
    help="List what each day, week or month cost, of transcripts that are gone too; of a database "
    "only each day, machine, host or model.",
)
@click.option("--machine", metavar="NAME", help="Of a database only what this machine sent.")
@click.option("--anonymous", is_flag=True, help="Number projects and files instead of naming them.")
@json_option
def command(
    *,
    paths: tuple[str, ...],
    days: int | None,
    html_file: str | None,
    prices_file: str | None,
    by: str | None,
    machine: str | None,
    anonymous: bool,
    json: bool,
) -> None:
    """Show what your agents cost, and what filled their windows.

    Reads what Claude Code, Codex, Copilot CLI, Crush, Gemini CLI, Goose, Kilo, Kimi, MiMo Code,
    opencode and Qwen Code have written here, before anything is installed: what the tokens cost,
    which sessions and subagents ran out of room, what compactions threw away, and what filled the
    windows. With PATHs, files or directories, it reads these instead.

    Costs are list prices times the tokens that the provider counted, not your bill. Nothing leaves
    the machine. What was read is kept in the user's cache directory, so that the next report is
    quick, and what each day cost in tokens in the state directory, for ever.

    Where ULTRAMON_BACKEND is a PostgreSQL database, the report without PATHs is about all agents
    whose readings are stored there, by machine, host, model and day.
    """
    is_local_only = html_file or prices_file or anonymous
    store = None if paths else _database()
    if store is not None:
        if is_local_only or by in ("week", "month"):
            raise click.UsageError(
                "the report about a database takes --days, --by, --machine and --json; name PATHs "
                "for one about transcripts"
            )
        from ultramon.cli.team_report import report_team

        days = _DAYS if days is None else days
        report_team(store, now=time.time(), days=days, by=by, machine=machine, as_json=json)
        return
    if machine is not None or by in _GROUPS:
        raise click.UsageError(
            "machines are distinguished in a database only: set ULTRAMON_BACKEND"
        )
    if by is not None:
        if html_file is not None:
            raise click.UsageError("--by writes no page: it goes with the screen and --json")
        _report_periods(paths, days, by, prices_file, is_anonymous=anonymous, as_json=json)
        return
    if days is None and not paths:
        days = _DAYS
    found = _survey(paths, days, prices_file)
    if anonymous:
        from ultramon.recordings.anonymous import anonymous as without_names

        found = without_names(found)
    # A budget is no part of what is shown to others, nor of the report about some files.
    is_own = not (paths or anonymous) and (json or html_file is None)
    budgets, plans = (_budgets(), _plans()) if is_own else ([], [])
    if html_file is not None:
        from ultramon.cli.views.report_page import report_page
        from ultramon.system.files import replace_file

        page = report_page(found).encode("utf-8")
        replace_file(html_file, page, shared=True)
        say(f"written: {html_file}")
    if json:
        from ultramon.state.budget_readings import budgets_json
        from ultramon.state.plan_words import plan_json

        facts = found.model_dump(mode="json", by_alias=True)
        print_json(facts | budgets_json(budgets) | plan_json(plans))
    elif html_file is None and found.sessions:
        from ultramon.cli.views.report_screen import print_report

        print_report(found, budgets, plans)
    _say_what_is_missing(found, paths)


def _database() -> PostgresBackend | None:
    """Return the database of ``ULTRAMON_BACKEND``; None where that names none."""
    if not os.environ.get("ULTRAMON_BACKEND", "").startswith(("postgresql:", "postgres:")):
        return None
    from ultramon.backends.opening import open_backend
    from ultramon.backends.postgres.backend import PostgresBackend

    backend = open_backend()
    if not isinstance(backend, PostgresBackend):
        return None
    backend.limit_waits(LOOK_SECONDS)
    return backend


def _plans() -> list[AccountPlan]:
    """Return the limits of the user's plans, as hosts have told them here."""
    from ultramon.errors import ConfigurationError
    from ultramon.state.plan_limits import PlanLimits
    from ultramon.system.environment import state_directory

    try:
        return PlanLimits(state_directory()).accounts(time.time())
    except ConfigurationError:  # a user without a home; the report needs none
        return []


def _budgets() -> list[BudgetReading]:
    """Return what the user's budgets amount to; looks where no other process does."""
    from ultramon.cli.selection import directory_of, open_store
    from ultramon.errors import UltramonError
    from ultramon.notices.budgets import read_budgets
    from ultramon.state.budget_readings import BudgetReadings

    try:
        if not read_budgets():  # else a store that cannot be opened is no problem of the report
            return []
        from ultramon.recordings.budget_look import BudgetLook

        backend = open_store(None, delivers=False)
        directory, now = directory_of(backend), time.time()
        look, stored = BudgetLook(directory, backend), BudgetReadings(directory)
        if not stored.read(now):
            look(now)
        return stored.read(now)
    except UltramonError as error:
        say(f"Warning: what is spent of the budgets is not shown: {error}")
        return []


def _survey(paths: tuple[str, ...], days: int | None, prices_file: str | None) -> Survey:
    import json

    from ultramon.context.config import ContextConfig
    from ultramon.errors import ConfigurationError
    from ultramon.prices.price_list import open_prices
    from ultramon.recordings.index import TranscriptIndex, index_path
    from ultramon.recordings.memory_files import MemoryFiles
    from ultramon.recordings.survey import survey
    from ultramon.recordings.survey_models import Survey
    from ultramon.state.models import utc

    prices = open_prices(prices_file)
    config = ContextConfig().without_project  # the report is about all projects
    now = time.time()
    files = _find(paths, days, now)
    with _daily_sums(paths) as sums, TranscriptIndex(index_path()) as index:
        key = files.key((days, bool(paths), config, prices.identity, sums.identity))
        memory_files, found = MemoryFiles(os.environ), None
        if (result := index.result(key)) is not None:
            with suppress(ValueError, LookupError, TypeError, ConfigurationError):
                kept = json.loads(result)
                # They are of now, and the transcripts say nothing of them.
                if memory_files.stamps(kept["asked"]) == kept["stamps"]:
                    found = Survey.model_validate(kept["survey"])
        if found is None:
            found = survey(
                _read(paths, files, index, sums),
                config,
                now=files.now,
                days=days,
                older_transcripts=len(files.older),
                by_id=not paths,
                prices=prices,
                memory_files=memory_files,
            )
            if files.are_readable:
                # Not pydantic's own JSON: it takes no half characters, which paths may hold.
                facts = {
                    "survey": found.model_dump(mode="json", by_alias=True),
                    "asked": (asked := memory_files.asked),
                    "stamps": memory_files.stamps(asked),
                }
                index.keep_result(key, json.dumps(facts).encode())
        _say_what_is_not_kept(index, sums)
    return found.model_copy(update={"generated_at": utc(now)})


def _report_periods(
    paths: tuple[str, ...],
    days: int | None,
    by: str,
    prices_file: str | None,
    *,
    is_anonymous: bool,
    as_json: bool,
) -> None:
    from ultramon.prices.price_list import open_prices
    from ultramon.recordings.daily_sums import anonymous
    from ultramon.recordings.index import TranscriptIndex, Unreadable, index_path

    prices = open_prices(prices_file)
    now = time.time()
    files = _find(paths, days, now)
    with _daily_sums(paths) as sums, TranscriptIndex(index_path()) as index:
        read = _read(paths, files, index, sums)
        found = sums.report(by, prices, now=now, days=days)
        _say_what_is_not_kept(index, sums)
    if is_anonymous:
        found = anonymous(found)
    if as_json:
        print_json(found.model_dump(mode="json", by_alias=True))
    elif found.periods:
        from ultramon.cli.views.period_table import print_periods

        print_periods(found)
    unreadable = [one for one in read if isinstance(one, Unreadable)]
    hidden = [("a file", "cannot be read")] * len(unreadable)
    named = [(one.path, one.reason) for one in unreadable]
    say_by_reason("left out", hidden if is_anonymous else named)
    if not found.periods:
        within = "" if days is None else f" in the last {plural(days, 'day')}"
        say(f"no day with a reply{within}")
    elif files.older:
        say(f"{plural(len(files.older), 'older transcript')} not read anew")


def _daily_sums(paths: tuple[str, ...]) -> DailySums:
    """Open the daily sums; of named files they hold nothing else, and nothing is kept."""
    from ultramon.errors import ConfigurationError
    from ultramon.recordings.daily_sums import FILE_NAME, DailySums
    from ultramon.system.environment import state_directory

    if paths:
        return DailySums(None)
    try:
        return DailySums(os.path.join(state_directory(), FILE_NAME))
    except ConfigurationError as error:  # a user without a home; the report needs none
        sums = DailySums(None)
        sums.problem = str(error)
        return sums


class _Files(NamedTuple):
    """The files of a report."""

    recent: list[str]
    older: list[str]
    """Left out by age."""
    unreadable: list[Unreadable]
    now: float
    """The hour in which the report is made, epoch seconds: its days begin with it."""

    def key(self, others: tuple[object, ...]) -> str:
        """Return what is another text where a report would say something else.

        Args:
            others: What else a report depends on; its text says all of it.
        """
        import hashlib
        from importlib.util import find_spec

        # What cannot be unpacked today may be after an installation.
        unpacks = find_spec("zstandard") is not None
        stamps = [(path, *_stamp(path)) for path in (*self.recent, *self.older)]
        zone = (time.tzname, time.timezone, os.environ.get("TZ"))
        text = repr((stamps, len(self.recent), self.now, zone, unpacks, others))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def are_readable(self) -> bool:
        """Whether everything could be listed; what could not may be there next time."""
        return not self.unreadable


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.lstat(path)
    except NotADirectoryError:  # one of many in a file, as in a database
        file = os.path.dirname(path)
        return *_stamp(file), *_stamp(f"{file}-wal")
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode


def _find(paths: tuple[str, ...], days: int | None, now: float) -> _Files:
    from ultramon.recordings.clients import client_files, split_by_age
    from ultramon.recordings.index import Unreadable
    from ultramon.recordings.recordings import files_of

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
    hour = now - now % _HOUR_SECONDS
    older: list[str] = []
    if days is not None:
        files, older = split_by_age(files, hour - days * 86_400)
    return _Files(files, older, unreadable, hour)


def _read(
    paths: tuple[str, ...], files: _Files, index: TranscriptIndex, sums: DailySums
) -> list[Summarized | Unreadable]:
    """Read transcripts, and let the sums hold what they say."""
    from ultramon.recordings.clients import sources_of
    from ultramon.recordings.daily_sums import key_of
    from ultramon.recordings.index import Summarized, Unreadable

    read = list(index.summarize(files.recent, _Patience(), names_others=not paths))
    summarized = [one for one in read if isinstance(one, Summarized)]
    unreadable = [one for one in read if isinstance(one, Unreadable)]
    beside = [*index.kept(files.older), *index.summarize(sources_of(summarized, files.older))]
    sources = [one for one in beside if isinstance(one, Summarized)]
    copied = sums.copied()
    found = list(
        index.count_copies_once(summarized, sources, lambda summary: copied.get(key_of(summary), 0))
    )
    sums.take(one for one in found if isinstance(one, Summarized))
    if not paths:
        index.forget_missing()
    return [*files.unreadable, *unreadable, *found]


def _say_what_is_not_kept(index: TranscriptIndex, sums: DailySums) -> None:
    if index.problem is not None:
        say(f"Warning: nothing is kept for the next report: {index.problem}")
    if sums.problem is not None:
        say(f"Warning: what the days cost is not kept: {sums.problem}")


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
        say(f"history copied into {copied} is counted once")
    if not found.sessions and not found.older_transcripts and not found.unreadable:
        if paths:
            say("no transcripts of a known host there")
        else:
            from ultramon.hosts.registry import host_names

            say(
                f"no transcripts of {' or '.join(host_names())} on this machine; `ultramon report "
                "PATH` reads others, `ultramon demo` shows agents at work"
            )
