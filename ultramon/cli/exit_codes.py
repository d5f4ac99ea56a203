"""The exit codes of the command line, and the errors that end a command with one of them."""

from __future__ import annotations

from enum import IntEnum

import click


class ExitCode(IntEnum):
    """How a command ended; 50-54 are the statuses of `ultramon check`."""

    OK = 0
    """Done; also when the reader of the output closed the pipe."""
    FAILURE = 1
    """The command ran and could not do its work; one line on stderr says why."""
    USAGE = 2
    """An unknown option, a missing argument, a value out of range."""
    NOT_FOUND = 3
    """No agent has that id, prefix or label."""
    AMBIGUOUS = 4
    """Several agents have that prefix or label."""
    BUDGET = 5
    """`relay`: its contexts, its money or its time are used up."""
    REFUSED = 6
    """`relay`: no progress, because permissions refuse what its agents ask for."""
    WARNING = 50
    """`check`: 70 % of the window or more. This and the next three are defaults of alerts."""
    CAUTION = 51
    """`check`: 85 % or more."""
    CRITICAL = 52
    """`check`: 90 % or more."""
    EMERGENCY = 53
    """`check`: 95 % or more."""
    STALE = 54
    """`check`: no data, or data that are too old."""
    INTERRUPTED = 130
    """Ctrl-C."""

    @classmethod
    def of(cls, word: str) -> ExitCode:
        """Return the code named by a status of alerts, or by the kind of a relay's stop.

        FAILURE where none bears that name.
        """
        return cls.__members__.get(word.upper(), cls.FAILURE)


class CommandFailed(click.ClickException):
    """Ends a command with one line on stderr."""

    exit_code = int(ExitCode.FAILURE)

    def __init__(self, message: str) -> None:
        # One line, also where the words of a library have several.
        super().__init__(" ".join(message.split()))


class NotFound(CommandFailed):
    """No agent has the given id, prefix or label."""

    exit_code = int(ExitCode.NOT_FOUND)


class SeveralFound(CommandFailed):
    """Several agents have the given prefix or label."""

    exit_code = int(ExitCode.AMBIGUOUS)


class NoCaller(CommandFailed):
    """A command needs an agent, and neither caller nor argument names one."""

    exit_code = int(ExitCode.USAGE)
