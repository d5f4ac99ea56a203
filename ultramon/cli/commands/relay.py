"""`ultramon relay`: a long job of a coding agent, carried across fresh contexts."""

from __future__ import annotations

import os
import re
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ultramon.cli.output import CommandFailed, ExitCode, print_json, say
from ultramon.cli.selection import store_options
from ultramon.errors import ConfigurationError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.opening import OpenedRelay
    from ultramon.relay.result import RelayResult

_ARGUMENTS = "ultramon.relay.arguments"
_SPAN = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,6})s)?", re.ASCII)
_FIXED = ("agent", "in_place")
"""What a run keeps: its worktree and the names of its items follow from them."""


def span(text: str) -> float:
    """Return the seconds of a time span such as ``90m``, ``4h`` or ``1h30m``.

    Raises:
        click.BadParameter: It is none.
    """
    match = _SPAN.fullmatch(text)
    if match is None or not any(match.groups()):
        raise click.BadParameter(f"{text} is no time span such as 90m, 4h or 1h30m")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(3600 * hours + 60 * minutes + seconds)


class _Command(click.Command):
    """Takes everything behind ``--`` as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


@click.command("relay", cls=_Command)
@click.argument("goal", required=False)
@click.option(
    "--agent",
    default="claude",
    metavar="NAMES",
    help="`claude`, `codex`, `gemini`, `qwen`, several with commas, or `command`: any program "
    "that uses the SDK.",
)
@click.option(
    "--items",
    type=click.File("r", encoding="utf-8", errors="surrogateescape"),
    help="A file with one item a line; `-` reads stdin. Without it the agent plans by itself.",
)
@click.option("--rule", "rules", multiple=True, metavar="TEXT", help="A rule that always holds.")
@click.option(
    "--verify",
    metavar="COMMAND",
    help="Checks an item: exit code 0 confirms it. `{item}` stands for the item; no shell.",
)
@click.option(
    "--verify-timeout",
    type=span,
    metavar="TIME",
    default="10m",
    help="After this time a check has failed.",
)
@click.option("--run", help="Name of the run.  [default: from the goal]")
@click.option(
    "--hand-over-at",
    type=click.Choice(("warning", "critical")),
    default="warning",
    help="The rung at which a context hands over.",
)
@click.option(
    "--max-contexts", type=click.IntRange(min=1), default=20, help="Most contexts of the run."
)
@click.option(
    "--max-usd",
    type=click.FloatRange(min=0, min_open=True),
    help="Most dollars of the run, at list price, looked at between contexts.",
)
@click.option("--deadline", type=span, metavar="TIME", help="Stop after so long, e.g. 4h, 1h30m.")
@click.option(
    "--grace",
    type=span,
    metavar="TIME",
    default="3m",
    help="How long a context that must hand over has, before it is ended.",
)
@click.option("--in-place", is_flag=True, help="Work in this tree, which must be clean.")
@click.option("--resume", metavar="RUN", help="Go on with a run; options given again replace its.")
@click.option(
    "--compare",
    is_flag=True,
    help="Then run the same job in one session without relay, and print both: twice the cost.",
)
@click.option("--program", help="The client, where it is not on PATH.", metavar="PATH")
@store_options
def command(
    *,
    goal: str | None,
    run: str | None,
    resume: str | None,
    compare: bool,
    program: str | None,
    state_dir: str | None,
    json: bool,
    **given: Any,
) -> ExitCode:
    """Carry a long job across as many fresh contexts as it takes.

    One context after the other works on GOAL, by default in a git worktree and branch of the run's
    own. When its window fills, it hands over; the next one gets the goal, the rules, what is left
    and the notes of the one before. What is behind `--` goes to the agent, what is behind another
    `--` to the next one; where one meets its usage limit, the next one goes on.

    Nothing is installed, no permission is granted, nothing is pushed or merged. Ctrl-C asks the
    context to hand over; a second one ends it. The run goes on with --resume.

    Exit codes: 0 all is verified (claimed, where nothing checks; without items: the agent ended
    normally), 1 something is left, set aside or not confirmed, 2 wrong usage, 5 a budget is used
    up, 6 permissions refuse what is needed, 130 interrupted.
    """
    from ultramon.relay.opening import free_name, open_relay
    from ultramon.system.environment import disabled, state_directory

    if disabled():
        raise CommandFailed("ULTRAMON_DISABLED is set: a relay would see nothing of its agents")
    directory = os.path.abspath(state_dir or state_directory())
    if resume is not None:
        name, choices, notes = resume, *_stored(directory, resume, goal, given)
    else:
        choices, notes = _new(goal, given)
        name = run or free_name(directory, choices.goal)
    try:
        _ = choices.agents
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    if compare:
        _check_comparable(choices, resume)
        say("--compare runs the job twice, on your account: it costs about twice as much")
    opened = open_relay(name, choices, state_directory=directory, program=program)
    opened.notes += notes
    result = _run(opened)
    code = _exit_code(result)
    facts: dict[str, Any] = {**result.to_json(), "exitCode": int(code)}
    if not json:
        for line in result.lines(int(code)):
            click.echo(sanitize(line))
    if result.stop is not None:
        say(f"go on: ultramon relay --resume {name}")
    if compare and code != ExitCode.INTERRUPTED:
        alone = open_relay(
            f"{name}-alone",
            replace(choices, max_contexts=1),
            state_directory=directory,
            program=program,
            is_single=True,
        )
        single = _run(alone)
        facts["alone"] = single.to_json()
        if not json:
            _print_comparison(result, single)
    if json:
        print_json(facts)
    return code


def _run(opened: OpenedRelay) -> RelayResult:
    """Say what holds, and run a relay to its end."""
    from ultramon.backends.opening import open_backend
    from ultramon.cli.relay_view import shown

    for line in opened.head():
        say(line)
    backend = open_backend(opened.state_directory)
    with _ended_like_interrupted(), shown(backend, opened.run) as view:
        view.relay = opened.relay(view.tell)
        return view.relay.run()


def _check_comparable(choices: RelayChoices, resume: str | None) -> None:
    from ultramon.relay.choices import CLIENTS

    if resume is not None or choices.in_place or choices.agent not in CLIENTS:
        raise click.UsageError("--compare is for a new run of one client in worktrees")


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


def _new(goal: str | None, given: dict[str, Any]) -> tuple[RelayChoices, list[str]]:
    """Return the choices of a new run, and what there is to say about them."""
    from ultramon.relay.choices import RelayChoices

    if goal is None:
        raise click.UsageError("name a GOAL, or go on with --resume RUN")
    chosen, notes = _chosen(given)
    return RelayChoices(goal=goal, cwd=os.getcwd(), **chosen), notes


def _stored(
    directory: str, run: str, goal: str | None, given: dict[str, Any]
) -> tuple[RelayChoices, list[str]]:
    """Return the choices of a run that goes on: its own, but for those that are given again."""
    from ultramon.relay.choices import RelayChoices

    stored = RelayChoices.load(directory, run)
    chosen, notes = _chosen(given)
    context = click.get_current_context()
    names = {"verify_seconds": "verify_timeout", "max_usd": "max_usd", "arguments": ""}
    names |= {"deadline_seconds": "deadline", "grace_seconds": "grace"}
    changed = {}
    for name, value in chosen.items():
        source = context.get_parameter_source(names.get(name, name))
        is_given = source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        if (is_given or (name == "arguments" and value)) and value != getattr(stored, name):
            changed[name] = value
    for name in _FIXED:
        if name in changed:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot change while a run goes on")
    if goal is not None and goal != stored.goal:
        changed["goal"] = goal
    if changed.get("items") is not None:
        if stored.items is None:
            raise click.UsageError("this run was begun without --items")
        changed["items"] = tuple(dict.fromkeys((*stored.items, *changed["items"])))
    if changed:
        notes.append(f"changed: {', '.join(name.replace('_', ' ') for name in changed)}")
    return replace(stored, **changed), notes


def _chosen(given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options as choices, and what there is to say about them."""
    from ultramon.relay.choices import read_items
    from ultramon.relay.result import counted

    items: TextIO | None = given.pop("items")
    arguments = click.get_current_context().meta.get(_ARGUMENTS, ())
    chosen = {
        "rules": tuple(given.pop("rules")),
        "verify_seconds": given.pop("verify_timeout"),
        "deadline_seconds": given.pop("deadline"),
        "grace_seconds": given.pop("grace"),
        "arguments": arguments,
        "items": None,
        **given,
    }
    if items is None:
        return chosen, []
    try:
        chosen["items"], repeats = read_items(items)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    return chosen, [f"{counted(repeats, 'line')} of the items repeated"] if repeats else []


def _exit_code(result: RelayResult) -> ExitCode:
    from ultramon.relay.result import BUDGET, INTERRUPTED, REFUSED

    codes = {
        BUDGET: ExitCode.BUDGET,
        REFUSED: ExitCode.REFUSED,
        INTERRUPTED: ExitCode.INTERRUPTED,
    }
    if result.stop is not None:
        return codes.get(result.stop.kind, ExitCode.FAILURE)
    return ExitCode.OK if result.ok else ExitCode.FAILURE


@contextmanager
def _ended_like_interrupted() -> Iterator[None]:
    """Have a closed terminal and a `kill` ask the context to hand over, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = {one: signal.signal(one, interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
