"""The command line: one module per command, imported when the command is called.

Data goes to stdout, words go to stderr. A command returns its exit code; None is 0. No module of a
command imports pydantic, transitions or rich at module level, so that `--version`, `--help` and
completion answer at once.
"""

from __future__ import annotations

import codecs
import importlib
import os
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from ultramon.cli.exit_codes import CommandFailed, ExitCode, NotFound
from ultramon.cli.gone_variables import gone_variable_errors
from ultramon.errors import AgentNotFoundError, UltramonError
from ultramon.system.processes import working_directory
from ultramon.system.terminal_text import replace_characters, sanitize
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence


class Commands(NamedTuple):
    """A group of commands.

    Attributes:
        subject: What they are about, in the list of all commands.
        help: Of the group.
        places: Module and function of each, by name, in the order of `--help`.
    """

    subject: str
    help: str
    places: dict[str, tuple[str, str]]


SECTIONS = {
    "See": ("status", "watch", "web", "explain", "report", "replay", "events", "demo"),
    "Coding agents": (
        "install",
        "uninstall",
        "doctor",
        "trust",
        "resume",
        "continue",
        "stop",
        "host",
        "on",
    ),
    "Long jobs": ("relay", "task", "chaos"),
    "Services": ("serve", "share", "backend", "queue", "token"),
    "For scripts": ("check", "alert", "context", "completion"),
}
"""All commands and groups of commands, in the order of `--help`."""
GROUPS = {
    "backend": Commands(
        "The shared store",
        "Set up, check, measure or clear out the store that agents share.",
        {
            **{name: ("backend", name) for name in ("init", "migrate", "check", "repair", "stats")},
            "prune": ("prune", "command"),
        },
    ),
    "context": Commands(
        "One agent's window",
        "One agent's window: for scripts and for agents.\n\n"
        "`ultramon context AGENT` is short for `ultramon context show AGENT`.",
        {
            "show": ("context", "command"),
            "check": ("check", "command"),
            "alert": ("alert", "command"),
            "monitor": ("context_monitor", "command"),
            "forget": ("forget", "command"),
        },
    ),
    "queue": Commands(
        "Messages to agents",
        "Messages on their way to agents, ultramon's own notices among them.",
        {
            "messages": ("messages", "command"),
            "clear": ("clear", "command"),
            **{name: ("queue", name) for name in ("depth", "dead", "retry", "drop")},
        },
    ),
    "task": Commands(
        "Plan in a shell",
        "Plan, steps and handoff of an agent that works in a shell.",
        {
            **{name: ("task", name) for name in ("add", "start", "step", "done")},
            "list": ("task", "list_tasks"),
            "steps": ("task", "list_steps"),
            "handoff": ("handoff", "command"),
        },
    ),
    "token": Commands(
        "Tokens and secrets",
        "Tokens of agents, and the secrets of a server.",
        {
            name: ("token", name)
            for name in ("mint", "rotate", "revoke", "admin", "hook", "metrics")
        },
    ),
    "host": Commands(
        "Pins, and what hosts run",
        "Rules for a coding agent, and what an installed one runs.",
        {
            "pin": ("pin", "command"),
            "hook": ("hook", "command"),
            "statusline": ("statusline", "command"),
            "mcp": ("mcp", "command"),
        },
    ),
    "on": Commands(
        "Commands of yours at an event",
        "Commands of yours at an event, such as a level: the table [on] of ultramon.toml.",
        {"test": ("on", "run_test"), "list": ("on", "list_commands")},
    ),
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names if name not in GROUPS)
"""Commands without a group; each is the `command` of a module of its name."""
_DEFAULTS = {"context": "show"}
"""The command that a group runs when none is named."""
_FILES = {"continue": "continue_session"}
"""Of a command whose name is no name for a module."""
INSTALLED_NAMES = ("hook", "mcp", "statusline")
"""Commands of the group `host` that the settings of hosts may call without it: a refusal there
would stop the host."""
_HELP_MARGIN = 6  # what click leaves free around the two columns


def load_command(file: str, function: str = "command") -> click.Command:
    """Import one command."""
    # When it is called: help and completion must not wait for what one command needs.
    module = importlib.import_module(f"ultramon.cli.commands.{file}")
    command: click.Command = getattr(module, function)
    return command


def _meant(name: str) -> str:
    """Say which command is meant by a name that is none."""
    inner = {}
    for group, commands in GROUPS.items():
        for command in commands.places:
            whole = f"ultramon {group} {command}"
            inner[f"{group}-{command}"] = whole
            inner.setdefault(command, whole)
    if name in inner:
        return f"it is '{inner[name]}'."
    from difflib import get_close_matches

    if like := get_close_matches(name, [*COMMANDS, *GROUPS], n=1):
        return f"is it 'ultramon {like[0]}'?"
    if like := get_close_matches(name, inner, n=1):
        return f"is it '{inner[like[0]]}'?"
    return "'ultramon --help' lists all."


def _refuse_gone_variables(ctx: click.Context, file: str) -> None:
    for error in gone_variable_errors(file):
        ctx.fail(str(error))


class CommandGroup(click.Group):
    """Commands below one name, each imported when it is called."""

    def __init__(self, name: str, commands: Commands) -> None:
        super().__init__(
            name,
            help=commands.help,
            short_help=f"{commands.subject}: {', '.join(commands.places)}.",
        )
        self._places = commands.places
        self._default = _DEFAULTS.get(name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `--help`."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        place = self._places.get(cmd_name)
        return None if place is None else load_command(*place)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; refuse variables that its options no longer have."""
        found = super().resolve_command(ctx, args)
        # Completion parses with this flag, and must not end with an error.
        if found[0] is not None and not ctx.resilient_parsing:
            _refuse_gone_variables(ctx, self._places[found[0]][0])
        return found

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the command among the arguments; options may stand in front of it."""
        if self._default is not None and not ctx.resilient_parsing:
            if not args or args[0] not in (*self._places, *ctx.help_option_names):
                args = [self._default, *args]
        # A group has no options of its own, so those in front of the command are the command's.
        elif args and args[0].startswith("-"):
            at = self._end_of_options(ctx, args)
            args = [*args[at : at + 1], *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def _end_of_options(self, ctx: click.Context, args: list[str]) -> int:
        # In `--agent scout list` the command is `list`: a value must not be taken for it.
        with_value = {
            flag
            for name in self._places
            for option in getattr(self.get_command(ctx, name), "params", ())
            if isinstance(option, click.Option) and not option.is_flag
            for flag in option.opts
        }
        at = 0
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] in with_value else 1
        return at


class Program(click.Group):
    """The program itself: finds commands, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `--help`."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name in GROUPS:
            return CommandGroup(cmd_name, GROUPS[cmd_name])
        if cmd_name in (*COMMANDS, *INSTALLED_NAMES):
            return load_command(_FILES.get(cmd_name, cmd_name))
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one that is called without its group is refused with its whole name.

        So are variables that the command's options no longer have.
        """
        name = args[0]
        if ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if name in (*COMMANDS, *INSTALLED_NAMES):
            _refuse_gone_variables(ctx, name)
        elif name not in GROUPS:
            ctx.fail(f"No such command '{name}'; {_meant(name)}")
        return super().resolve_command(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say what the program is, in the line below its usage: the whole help is one screen."""
        with formatter.indentation():
            formatter.write_text(self.help or "")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands; the usage line names the two options of the program itself."""
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every command below its section, a group with the names of its commands."""
        width = max(map(len, self.list_commands(ctx)))
        limit = formatter.width - width - _HELP_MARGIN
        for title, names in SECTIONS.items():
            found = ((name, self.get_command(ctx, name)) for name in names)
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name, command in found
                if command is not None
            ]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; turn an error into one line and an exit code."""
        try:
            return super().invoke(ctx)
        except AgentNotFoundError as error:
            raise NotFound(str(error)) from error
        except UltramonError as error:
            raise CommandFailed(str(error)) from error
        except BrokenPipeError:  # its reader has seen enough, as `head` does: no failure
            _forget_stdout()
            return ExitCode.OK
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except OSError as error:
            # `os.getcwd` names no file in its error: what is missing is the directory itself.
            if error.filename is None and working_directory() is None:
                from ultramon.cli.selection import DELETED_DIRECTORY

                raise CommandFailed(DELETED_DIRECTORY) from error
            where = f"{error.filename}: " if error.filename else ""
            raise CommandFailed(f"{where}{error.strerror or error}") from error


@click.group(
    cls=Program,
    options_metavar="[--version] [-h]",
    subcommand_metavar="COMMAND [-h] [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Know how full the context window of every AI agent is."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line, and end the process with its exit code.

    Args:
        arguments: Without the program's name; None = the arguments of the process.
    """
    # A name may hold what the terminal's encoding lacks: it is shown escaped, and is no error.
    codecs.register_error("ultramon", replace_characters)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="ultramon")
    try:
        # Not in click's own mode, which prints errors as they are and ends with 1 for Ctrl-C.
        result = cli.main(arguments, prog_name="ultramon", standalone_mode=False)
        code = int(result) if isinstance(result, int) else ExitCode.OK
        # At the end of the interpreter a closed pipe would be printed as an exception, and end with
        # 120.
        sys.stdout.flush()
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        click.echo(sanitize(shown.getvalue(), keep_lines=True), err=True, nl=False)
        code = error.exit_code
    except click.Abort:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        code = ExitCode.OK
    except OSError as error:
        click.echo(f"Error: {error.strerror or error}", err=True)
        _forget_stdout()
        code = ExitCode.FAILURE
    sys.exit(int(code))


def _forget_stdout() -> None:
    """Send the interpreter's last flush nowhere: the reader of stdout is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
