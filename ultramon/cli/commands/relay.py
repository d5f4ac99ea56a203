"""`ultramon relay`: a long job of a coding agent, carried across fresh contexts."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ultramon.cli.exit_codes import CommandFailed, ExitCode
from ultramon.cli.output import confirmed, has_person, print_json, print_result, say
from ultramon.cli.selection import store_options, time_span, token_count
from ultramon.errors import ConfigurationError
from ultramon.relay.option_values import (
    CLAUDE,
    COMMAND,
    CRITICAL,
    DEFAULT_GRACE_MINUTES,
    DEFAULT_IDLE_REQUESTS,
    DEFAULT_MAX_CONTEXTS,
    DEFAULT_SETUP_MINUTES,
    DEFAULT_VERIFY_MINUTES,
    HOSTS,
    WARNING,
)
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.opening import OpenedRelay
    from ultramon.relay.rewinding import Point
    from ultramon.relay.runs.result import RelayResult

_ARGUMENTS = "ultramon.relay.arguments"


def _share(text: str) -> float:
    """Return the ratio of a percentage such as ``20%``."""
    digits = text.strip().removesuffix("%").strip()
    if not digits.isascii() or not digits.isdigit() or int(digits) >= 100:
        raise click.BadParameter(f"{text} is no whole percentage from 0% to 99%")
    return int(digits) / 100


def _names(text: str) -> tuple[str, ...]:
    """Return the names of a list with commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


class _Command(click.Command):
    """Takes everything behind ``--`` as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
            # Before click sees them: it would take them for options of its own.
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


@click.command(
    "relay",
    epilog="Example: ultramon relay 'Port the tests' --items files.txt",
    cls=_Command,
)
@click.argument("goal", required=False)
@click.option(
    "--agent",
    default=CLAUDE,
    metavar="NAMES",
    help=f"{', '.join(f'`{name}`' for name in HOSTS)}, several with commas, or `{COMMAND}`: any "
    "program that uses the SDK.",
)
@click.option(
    "--may-pay",
    type=_names,
    metavar="NAMES",
    default="",
    help="Agents behind the first that may work although they have no subscription, with commas.",
)
@click.option(
    "--items",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    help="A file with one item a line; `-` reads stdin; .tsv and .jsonl also say which paths an "
    "item touches and which items it waits for. Without it the agent plans by itself.",
)
@click.option("--rule", "rules", multiple=True, metavar="TEXT", help="A rule that always holds.")
@click.option(
    "--verify",
    metavar="COMMAND",
    help="Checks an item: exit code 0 confirms it. `{item}` stands for the item; no shell.",
)
@click.option(
    "--verify-all",
    metavar="COMMAND",
    help="Checks the whole tree before items are merged, e.g. 'make test'; run by a shell.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    help="Contexts at the same time, each in a worktree of its own; what is verified is merged.",
)
@click.option(
    "--protect",
    multiple=True,
    metavar="PATHS",
    help="An item that changes these files is set aside, e.g. tests/ or '*.toml'.",
)
@click.option(
    "--verify-timeout",
    "verify_seconds",
    type=time_span,
    metavar="TIME",
    default=f"{DEFAULT_VERIFY_MINUTES}m",
    help="After this time a check has failed.",
)
@click.option(
    "--check-at-end/--no-check-at-end",
    default=True,
    help="When all items are done, check each once more: a later one may have undone it.  "
    "[default: yes]",
)
@click.option(
    "--setup",
    metavar="COMMAND",
    help="Prepares the worktree before its first context, e.g. 'uv sync'; run by a shell.",
)
@click.option(
    "--setup-timeout",
    "setup_seconds",
    type=time_span,
    metavar="TIME",
    default=f"{DEFAULT_SETUP_MINUTES}m",
    help="After this time it has failed, and the run does not start.",
)
@click.option("--run", help="Name of the run.  [default: from the goal]")
@click.option(
    "--hand-over-at",
    type=click.Choice((WARNING, CRITICAL)),
    default=WARNING,
    help="The level at which a context hands over.",
)
@click.option(
    "--max-contexts",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_CONTEXTS,
    envvar="ULTRAMON_RELAY_MAX_CONTEXTS",
    show_envvar=True,
    help="Most contexts of the run.",
)
@click.option(
    "--max-usd",
    type=click.FloatRange(min=0, min_open=True),
    envvar="ULTRAMON_RELAY_MAX_USD",
    show_envvar=True,
    help="Most dollars of the run, at list price.",
)
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="A file of your own prices.  [default: list prices]",
)
@click.option(
    "--max-tokens",
    type=token_count,
    metavar="TOKENS",
    help="Most tokens of the run, read and written, cached or not, e.g. 12M, 500k.",
)
@click.option(
    "--leave-plan",
    type=_share,
    metavar="PERCENT",
    default="0%",
    help="Begin no context while less than this of a limit of your plan is left, e.g. 20%.",
)
@click.option(
    "--wait-at-most",
    "wait_at_most_seconds",
    type=time_span,
    metavar="TIME",
    help="Stop where a limit of the plan resets later than so, e.g. 6h.  [default: wait]",
)
@click.option(
    "--deadline",
    "deadline_seconds",
    type=time_span,
    metavar="TIME",
    help="Stop after so long, e.g. 4h, 1h30m.",
)
@click.option(
    "--grace",
    "grace_seconds",
    type=time_span,
    metavar="TIME",
    default=f"{DEFAULT_GRACE_MINUTES}m",
    help="How long a context that must hand over has, before it is ended.",
)
@click.option(
    "--idle-requests",
    type=click.IntRange(min=0),
    default=DEFAULT_IDLE_REQUESTS,
    help="A context that makes so many requests and completes and changes nothing must hand over; "
    "0 = never.",
)
@click.option("--in-place", is_flag=True, help="Work in this tree, which must be clean.")
@click.option("--resume", metavar="RUN", help="Continue a run; options given again replace its.")
@click.option(
    "--clean",
    metavar="RUN",
    help="Remove the worktree and the files of a run, and its branch where that is merged.",
)
@click.option(
    "--rewind",
    nargs=2,
    metavar="RUN ITEM",
    help="Begin a new run where another one was before an item; that one stays.",
)
@click.option(
    "--recheck",
    is_flag=True,
    help="With --resume of a run that is done: check every item again, and do again what fails.",
)
@click.option(
    "--compare",
    is_flag=True,
    help="Then run the same job in one session without relay, and print both: twice the cost.",
)
@click.option("--yes", "-y", is_flag=True, help="Start without asking, at a terminal too.")
@click.option("--program", help="The host's program, where it is not on PATH.", metavar="PATH")
@store_options
def command(
    *,
    goal: str | None,
    run: str | None,
    resume: str | None,
    rewind: tuple[str, str] | None,
    clean: str | None,
    recheck: bool,
    yes: bool,
    state_dir: str | None,
    json: bool,
    **given: Any,
) -> ExitCode:
    """Carry a long job across as many fresh contexts as it takes.

    One context after the other works on GOAL, by default in a git worktree and branch of the run's
    own. When its window fills, it hands over; the next one gets the goal, the rules, what is left
    and the notes of the one before. What is behind `--` goes to the agent, what is behind another
    `--` to the next one; where one meets its usage limit, the next one takes over.

    Nothing is installed, no permission is granted, nothing is pushed. With --workers or
    --verify-all what is verified is merged into the branch of the run, which moves only to trees
    that pass. Ctrl-C asks the contexts to hand over; a second one ends them. --resume continues.

    Exit codes: 0 all is verified (claimed, where nothing checks; without items: the agent ended
    normally), 1 something is left, set aside or not confirmed, 2 wrong usage, 5 a budget is used
    up, 6 permissions refuse what is needed, 130 interrupted.
    """
    from ultramon.cli.relay_choices import new_choices, stored_choices
    from ultramon.relay.opening import free_name, open_relay
    from ultramon.relay.rewinding import begin_at
    from ultramon.relay.workspace_opening import StartPoint
    from ultramon.system.environment import disabled, state_directory

    if clean is not None:
        return _clean(clean, os.path.abspath(state_dir or state_directory()), as_json=json)
    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: a relay would see nothing of its agents")
    # The local directory whatever ULTRAMON_BACKEND says: the hooks of the contexts write there.
    directory = os.path.abspath(state_dir or state_directory())
    given["arguments"] = click.get_current_context().meta.get(_ARGUMENTS, ())
    if rewind is not None and resume is not None:
        raise click.UsageError("--rewind begins a new run, and --resume continues one")
    if rewind is not None:
        choices, notes = stored_choices(directory, rewind[0], goal, given)
        choices = replace(choices, compare=False, paid_by=None)
        name = run or free_name(directory, choices.goal)
    elif resume is not None:
        name, choices, notes = resume, *stored_choices(directory, resume, goal, given)
    else:
        choices, notes = new_choices(goal, given)
        name = run or free_name(directory, choices.goal)
    # Read for its error alone: a wrong name must end the command before anything is made.
    try:
        _ = choices.agents
        choices.check_merged()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    if recheck and (resume is None or choices.verify is None):
        raise click.UsageError("--recheck is for --resume of a run with --verify")
    if choices.compare:
        _check_comparable(choices)
        say("--compare runs the job twice, on your account: it costs about twice as much")
    point = None if rewind is None else _point(name, *rewind, directory)
    opened = open_relay(
        name,
        choices,
        state_directory=directory,
        confirm=confirmed,
        begins_at=None if point is None else StartPoint(point.commit, point.origin),
    )
    opened.notes += [*([] if point is None else [f"rewound: {point}"]), *notes]
    opened.recheck = recheck
    for line in opened.head():
        say(line)
    if resume is None and not yes:
        _ask(opened)
    if point is not None:
        begin_at(point, name, opened.choices, state_directory=directory)
    result = _run(opened)
    code = _exit_code(result)
    facts: dict[str, Any] = {**result.to_json(), "exitCode": int(code)}
    if not json:
        for line in result.lines(int(code)):
            click.echo(sanitize(line))
    if steps := _next_steps(opened, result):
        say(f"next: {' · '.join(steps)}")
    if choices.compare and code != ExitCode.INTERRUPTED:
        alone = open_relay(
            f"{name}-alone",
            replace(choices, max_contexts=1, compare=False),
            state_directory=directory,
            is_single=True,
            confirm=confirmed,
        )
        for line in alone.head():
            say(line)
        single = _run(alone)
        facts["alone"] = single.to_json()
        if not json:
            _print_comparison(result, single)
        say(f"next: ultramon relay --clean {alone.run}")
    if json:
        print_json(facts)
    return code


def _point(name: str, run: str, item: str, directory: str) -> Point:
    """Return where a run was before an item."""
    from ultramon.relay.choices import is_run
    from ultramon.relay.rewinding import find_point

    if is_run(directory, name):
        raise click.UsageError(f"--rewind begins a new run, and there is one named {name}")
    return find_point(run, item, state_directory=directory)


def _ask(opened: OpenedRelay) -> None:
    """Ask a person, where there is one, whether to start; remove what was made where not.

    Raises:
        CommandFailed: The answer is no.
    """
    from ultramon.relay.cleaning import discard_run

    is_agreed = False
    try:
        is_agreed = not has_person() or confirmed("Start?")
    finally:  # also where Ctrl-C is the answer
        if not is_agreed:
            discard_run(opened.run, state_directory=opened.state_directory)
    if not is_agreed:
        raise CommandFailed("not started: what was made for the run is removed")


def _run(opened: OpenedRelay) -> RelayResult:
    """Run a relay to its end."""
    from ultramon.backends.opening import open_backend
    from ultramon.cli.views.relay_progress import shown
    from ultramon.fleet.background_looks import background_looks
    from ultramon.recordings.budgets import budget_looks

    backend = open_backend(opened.state_directory)
    budgets = budget_looks(opened.state_directory, backend)
    looks = background_looks(backend, opened.state_directory, "relay", budgets)
    with _ended_like_interrupted(), looks, shown(backend, opened.run) as view:
        view.relay = opened.relay(view.tell, budgets=next(iter(budgets), None))
        return view.relay.run()


def _clean(run: str, directory: str, *, as_json: bool) -> ExitCode:
    """Remove what was made for a run; say what stays."""
    from ultramon.relay.cleaning import clean_run

    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if is_given and name not in ("clean", "state_dir", "json"):
            raise click.UsageError("--clean RUN stands alone, but for --state-dir and --json")
    cleaned = clean_run(run, state_directory=directory, tell=say)
    print_result(cleaned.to_json(), *cleaned.lines(), as_json=as_json)
    return ExitCode.OK


def _next_steps(opened: OpenedRelay, result: RelayResult) -> list[str]:
    """Return the commands that a person may want next."""
    place, steps = opened.workspace, list[str]()
    if not place.in_place and result.workspace.commit_count:
        steps.append(f"git diff {place.origin or (place.base or '')[:7]}...{place.branch}")
    if result.stop is not None or result.work.left:
        steps.append(f"ultramon relay --resume {opened.run}")
    if not place.in_place:
        steps.append(f"ultramon relay --clean {opened.run}")
    return steps


def _check_comparable(choices: RelayChoices) -> None:
    if choices.in_place or choices.agent not in HOSTS:
        raise click.UsageError("--compare is for a run of one host in worktrees")


def _print_comparison(relayed: RelayResult, single: RelayResult) -> None:
    """Print both results side by side."""
    from ultramon.cli.output import make_console, make_table

    table = make_table()
    for heading in ("", "relay", "one session alone"):
        table.add_column(heading)
    others = single.facts()
    for name, value in relayed.facts().items():
        table.add_row(name, sanitize(value), sanitize(others[name]))
    make_console().print("", table)


def _exit_code(result: RelayResult) -> ExitCode:
    if result.stop is not None:
        return ExitCode.of(result.stop.kind)
    return ExitCode.OK if result.ok else ExitCode.FAILURE


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Have a closed terminal and a `kill` ask the context to hand over, as Ctrl-C does."""

    # As a signal, which interrupts every wait as Ctrl-C does.
    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
