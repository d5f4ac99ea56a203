"""The command line: one module per command below `commands`, imported when it is called.

Data goes to stdout, words go to stderr. Nothing here imports pydantic, transitions or rich at
module level, so that `--version`, `--help` and completion answer at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ultramon import __version__
from ultramon.cli.output import CommandFailed, ExitCode, NobodyFound
from ultramon.errors import AgentNotFoundError, UltramonError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = (
    "demo",
    "replay",
    "status",
    "watch",
    "events",
    "explain",
    "install",
    "uninstall",
    "doctor",
    "resume",
    "chaos",
    "prune",
    "serve",
    "backend",
)
"""In the order of `--help`; each is the function `command` of a module of its name."""
PLUMBING = (
    "alert",
    "check",
    "clear",
    "context",
    "context-monitor",
    "hook",
    "messages",
    "queue",
    "statusline",
    "token",
)
"""The same, for commands that programs call; listed apart."""
_ROOMS = ("demo", "chaos", "replay")
_HELP_MARGIN = 6  # what click leaves free around the two columns


class LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, and words its errors."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, most useful first."""
        return [*COMMANDS, *PLUMBING]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in (*COMMANDS, *PLUMBING):
            return None
        file = f"{cmd_name}.command" if cmd_name in _ROOMS else f"commands.{cmd_name}"
        module = importlib.import_module(f"ultramon.cli.{file.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List what people call, then what programs call."""
        for title, names in (("Commands", COMMANDS), ("For programs", PLUMBING)):
            commands = [(name, self.get_command(ctx, name)) for name in names]
            limit = formatter.width - max(map(len, names)) - _HELP_MARGIN
            rows = [(name, found.get_short_help_str(limit)) for name, found in commands if found]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and turn what ultramon raises into one line and an exit code."""
        try:
            return super().invoke(ctx)
        except AgentNotFoundError as error:
            raise NobodyFound(str(error)) from error
        except UltramonError as error:
            raise CommandFailed(str(error)) from error
        except BrokenPipeError:
            _forget_stdout()
            return ExitCode.OK
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise CommandFailed(f"{where}{error.strerror or error}") from error


@click.group(
    cls=LazyGroup,
    context_settings={"auto_envvar_prefix": "ULTRAMON", "help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Know how full the context window of every AI agent is.

    Every option can also be set by the environment variable that its help names.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code.

    Args:
        arguments: Without the program's name; None = those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        result = cli.main(arguments, prog_name="ultramon", standalone_mode=False)
        code = int(result) if isinstance(result, int) else ExitCode.OK
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
    """Let the interpreter's last flush go nowhere; whoever read the output is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
