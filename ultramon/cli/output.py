"""The print boundary: exit codes, sanitising, JSON, consoles, and how numbers are written."""

from __future__ import annotations

import json
import os
import sys
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import click

from ultramon.system.terminal_text import sanitize
from ultramon.system.timestamps import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console
    from rich.table import Table

MAX_FIELD_CHARS = 200
"""A label or task name is cut here before anything measures its width."""
_PIPE_WIDTH = 160
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class ExitCode(IntEnum):
    """How a command ended; 50-54 are what `ultramon check` found."""

    OK = 0
    FAILURE = 1
    """The command ran and could not do its work; one line on stderr says why."""
    USAGE = 2
    """An unknown option, a missing argument, a value out of range."""
    NOT_FOUND = 3
    """No agent has that id, prefix or label."""
    AMBIGUOUS = 4
    """Several agents begin with that prefix, or bear that label."""
    WARNING = 50
    """The window is at 70 % or more, or what is configured instead; so with the next three."""
    CAUTION = 51
    """85 % or more."""
    CRITICAL = 52
    """90 % or more."""
    EMERGENCY = 53
    """95 % or more."""
    STALE = 54
    """There are no data, or they are too old."""
    INTERRUPTED = 130
    """Ctrl-C."""


class CommandFailed(click.ClickException):
    """Ends a command with one line on stderr."""

    exit_code = int(ExitCode.FAILURE)

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class NobodyFound(CommandFailed):
    """No agent is meant by what was given."""

    exit_code = int(ExitCode.NOT_FOUND)


class SeveralFound(CommandFailed):
    """More than one agent is meant."""

    exit_code = int(ExitCode.AMBIGUOUS)


def field(text: str | None) -> str:
    """Return one value of a state for a table or a line; empty for None."""
    return "" if text is None else sanitize(text, max_chars=MAX_FIELD_CHARS)


def sanitize_values(value: Any) -> Any:
    """Return decoded JSON with every text in it sanitised."""
    if isinstance(value, str):
        return field(value)
    if isinstance(value, list):
        return [sanitize_values(item) for item in value]
    if isinstance(value, dict):
        return {sanitize_values(name): sanitize_values(item) for name, item in value.items()}
    return value


def json_text(value: Any) -> str:
    """Return one JSON document in printable ASCII: it can do nothing to a terminal either."""
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def print_json_list(name: str, items: Iterable[Any], others: Callable[[], dict[str, Any]]) -> None:
    """Print a JSON object as `print_json` does, whose first member is a list too long to keep.

    Args:
        name: Of that member.
        items: Printed one by one, as they come.
        others: Asked for the other members when all are printed; at least one.
    """
    # Nothing is printed before the first item is there: until then a command can fail.
    before, after = f'{{\n  "{name}": [', "]"
    for item in items:
        text = json_text(item).replace("\n", "\n    ")
        click.echo(f"{before}\n    {text}", nl=False)
        before, after = ",", "\n  ]"
    head = before if after == "]" else ""
    click.echo(f"{head}{after},{json_text(others())[1:]}")


def json_line(value: Any) -> str:
    """Return one JSON document without a line end in it, as harmless as `json_text`."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return line.replace("\x7f", "\\u007f")


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json_text(value))


def wait_while_read(seconds: float, wake_fd: int | None = None) -> None:
    """Wait, as long as somebody reads stdout.

    Args:
        seconds: How long.
        wake_fd: A descriptor that ends the wait when it can be read; None = nothing does.

    Raises:
        BrokenPipeError: The reader is gone. Without this, a command that has nothing to print
            would outlive it.
    """
    import select

    if not hasattr(select, "poll"):
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(sys.stdout, 0)
    if wake_fd is not None:
        poll.register(wake_fd, select.POLLIN)
    if any(fd != wake_fd for fd, _ in poll.poll(seconds * 1000)):
        raise BrokenPipeError


def say(text: str) -> None:
    """Say one line to the person, on stderr."""
    click.echo(sanitize(text), err=True)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that takes text as it is: no markup, no emoji codes, no highlighting.

    Where nothing measures the width (a pipe), lines are as long as they need to be.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None
    if not stream.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        width = _PIPE_WIDTH
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def make_table() -> Table:
    """Return a table without lines, in the one look that all tables here have."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def tokens(count: int | None) -> str:
    """Write a token count; ``?`` when unknown."""
    return "?" if count is None else f"{count:,}"


def short_tokens(count: int | None) -> str:
    """Write a token count in few cells: ``950``, ``2.5k``, ``20k``, ``1.2M``."""
    if count is None or count < 1_000:
        return tokens(count)
    if count < 9_950:
        return f"{count / 1_000:.1f}k"
    if count < 999_500:
        return f"{count / 1_000:.0f}k"
    return f"{count / 1_000_000:.1f}M"


def percent(ratio: float | None) -> str:
    """Write a ratio as a percentage with one decimal; ``?`` when unknown."""
    return "?" if ratio is None else f"{ratio * 100:.1f} %"


def moment(epoch_seconds: float) -> str:
    """Write a time in UTC to the second, e.g. ``2026-11-21 20:28:51Z``."""
    return f"{format_time(epoch_seconds)[:-5]}Z".replace("T", " ")


def age(seconds: float | None) -> str:
    """Write how long ago something was, in its largest unit, e.g. ``3 min``; empty for None."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def plural(count: int, noun: str) -> str:
    """Write a number of things."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def turns(count: int | None) -> str:
    """Write how many turns still end below a rung; without any the next turn reaches it."""
    if count is None:
        return ""
    if not count:
        return "next turn"
    return plural(count, "turn")


def usage_bar(ratio: float | None, width: int, *, ascii_only: bool) -> str:
    """Draw how full a window is, exact to an eighth of a cell; beyond the limit it stays full."""
    share = min(max(ratio or 0.0, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, ".")
    full, eighth = divmod(round(share * width * 8), 8)
    return ("█" * full + (_EIGHTHS[eighth] if full < width else "")).ljust(width)


def action_style(action: str, level: str | None = "") -> str:
    """Return the colour of a level, by what it asks of the agent."""
    if level is None:
        return "dim"
    return {"force_return": "bold red", "prepare_handoff": "yellow"}.get(action, "green")
