"""The print boundary: sanitising, JSON, consoles, and how numbers are written."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from contextlib import nullcontext, suppress
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, cast

import click

from ultramon.system.counts import short_tokens as short_tokens
from ultramon.system.terminal_text import ascii_words as ascii_words
from ultramon.system.terminal_text import first_of, sanitize
from ultramon.system.wording import MAX_FIELD_CHARS as MAX_FIELD_CHARS
from ultramon.system.wording import age as age
from ultramon.system.wording import field as field
from ultramon.system.wording import moment as moment
from ultramon.system.wording import percent as percent
from ultramon.system.wording import plural as plural
from ultramon.system.wording import tokens as tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from typing import TextIO

    from rich.console import Console
    from rich.table import Table

    from ultramon.state.agent_rows import Summary
    from ultramon.state.record import StateRecord

_PIPE_WIDTH = 160
_CHECK_SECONDS = 0.1
_ITEMS_AT_ONCE = 50
_LEVEL_STYLES = {"warning": "yellow", "critical": "bold red"}
_ACTION_LEVELS = {"prepare_handoff": "warning", "force_return": "critical"}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
TASK_MARKS = {"done": "x", "in_progress": ">", "interrupted": "!"}
"""What stands before a task of a list, by its status; nothing before others."""


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
    """Return one JSON document in printable ASCII, harmless to a terminal."""
    # JSON leaves DEL as it is, a control character to a terminal.
    return json.dumps(value, indent=2, allow_nan=False).replace("\x7f", "\\u007f")


def json_line(value: Any) -> str:
    """Return one JSON document on one line, in printable ASCII."""
    line = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return line.replace("\x7f", "\\u007f")


def print_json_list(
    name: str, lines: Iterable[bytes], others: Callable[[], dict[str, Any]]
) -> None:
    """Print a JSON object whose first member is a list, an item a line.

    Args:
        name: The name of that member.
        lines: The items, each as by `json_line`; some are printed at once and none is kept.
        others: Called after the last item; returns the other members, at least one.
    """
    # Nothing is printed before the first item is there: until then a command can fail. Bytes,
    # because in a text terminal codes would be looked for.
    before, after = f'{{\n  "{name}": ['.encode("ascii"), b"],"
    lines = iter(lines)
    # One write for each item would be a call of the system for each.
    while some := list(islice(lines, _ITEMS_AT_ONCE)):
        click.echo(before + b"\n    " + b",\n    ".join(some), nl=False)
        before, after = b",", b"\n  ],"
    end = json_text(others())[1:].encode("ascii")
    click.echo((b"" if after[:1] == b"\n" else before) + after + end)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json_text(value))


def print_result(facts: Any, *lines: str, as_json: bool) -> None:
    """Print what a command did or found: as JSON, or in lines for people."""
    if as_json:
        print_json(facts)
        return
    for line in lines:
        click.echo(sanitize(line))


def wait_while_read(seconds: float) -> None:
    """Wait, unless the reader of stdout is gone.

    Raises:
        BrokenPipeError: The reader is gone; a command with nothing to print would outlive it.
    """
    import select

    # Without `poll`, as on Windows, the next write finds that the reader is gone.
    if not hasattr(select, "poll"):
        time.sleep(seconds)
        return
    poll = select.poll()
    # For no event: a poll reports the end of a pipe's reader all the same.
    poll.register(sys.stdout, 0)
    if poll.poll(seconds * 1000):
        raise BrokenPipeError


def wait_for_change(mark: Callable[[], object], before: object, seconds: float) -> None:
    """Wait until a mark differs from what it was before; asks ten times a second.

    Args:
        mark: Returns the mark; cheap.
        before: What it was.
        seconds: The longest time to wait.

    Raises:
        BrokenPipeError: As `wait_while_read`.
    """
    for _ in range(round(seconds / _CHECK_SECONDS)):
        wait_while_read(_CHECK_SECONDS)
        if mark() != before:
            return


def until_interrupted(*, follow: bool) -> AbstractContextManager[None]:
    """Return a context that Ctrl-C ends well, where a command follows what comes."""
    return suppress(KeyboardInterrupt) if follow else nullcontext()


def say(text: str) -> None:
    """Write one line of words to stderr."""
    click.echo(sanitize(text), err=True)


def print_line(text: str) -> None:
    """Print a line to stdout in its own encoding: click writes UTF-8 where that is ASCII."""
    stream = sys.stdout
    text = text.encode(stream.encoding, stream.errors or "strict").decode(stream.encoding)
    click.echo(text)


def has_person() -> bool:
    """Return whether there is a terminal to ask a question at."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str) -> bool:
    """Ask a person who can answer; without one the answer is no."""
    if not has_person():
        return False
    return click.confirm(sanitize(question), default=False, err=True)


def say_by_reason(verb: str, found: Iterable[tuple[str, str]]) -> None:
    """Write a line to stderr for each reason, with the first of the names that it holds for.

    Args:
        verb: What became of them, as ``skipped``.
        found: Names with their reasons.
    """
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, reason in found:
        by_reason[reason].append(name)
    for reason, names in by_reason.items():
        say(f"{verb} {first_of(names)}: {reason}")


def takes_unicode(stream: TextIO) -> bool:
    """Return whether a stream takes more than ASCII."""
    return (stream.encoding or "").lower().startswith("utf")


def make_console() -> Console:
    """Return a console that prints text unchanged: no markup, emoji codes or highlighting.

    Lines in a pipe may be 160 cells long, and have no blanks at their ends.
    """
    from rich.console import Console

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    if sys.stdout.isatty():
        return Console(**plain)
    # Rich would take 80 columns for a pipe.
    if not os.environ.get("COLUMNS", "").isdigit():
        plain["width"] = _PIPE_WIDTH
    return Console(file=cast("IO[str]", _LineEnds(sys.stdout)), **plain)


class _LineEnds:
    """A stream whose lines end with their last word: a table pads its last column."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write lines without the blanks at their ends."""
        return self._stream.write("\n".join(line.rstrip(" ") for line in text.split("\n")))


def summary_line(summary: Summary, width: int, more: Sequence[str] = ()) -> str:
    """Return all agents in one line of so many cells; what needs no person is cut first.

    Args:
        summary: The agents.
        width: The cells.
        more: What else is worth a place, after the agents; each where it fits.
    """
    parts = [field(part) for part in summary.parts()]
    while len(parts) > 1 and len(" · ".join(parts)) > width:
        parts.pop()
    for part in map(field, more):
        if len(" · ".join((*parts, part))) <= width:
            parts.append(part)
    return " · ".join(parts)


def make_table() -> Table:
    """Return a table without lines, the look of all tables here."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))


def held_tokens(record: StateRecord, write: Callable[[int | None], str] = tokens) -> str:
    """Write the tokens in a window; ``?`` when unknown, and ``≥`` before a lower bound."""
    from ultramon.context.gauge import is_lower_bound, known_tokens

    count = known_tokens(record)
    return ("≥ " if count and is_lower_bound(record) else "") + write(count)


def usage_bar(ratio: float | None, width: int, *, ascii_only: bool) -> str:
    """Draw a usage ratio as a bar, exact to an eighth of a cell; full from 1.0 on."""
    share = min(max(ratio or 0.0, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, ".")
    full, eighth = divmod(round(share * width * 8), 8)
    return ("█" * full + (_EIGHTHS[eighth] if full < width else "")).ljust(width)


def action_style(action: str, level: str | None = "") -> str:
    """Return the colour of a level by its action."""
    if level is None:
        return "dim"
    return level_style(_ACTION_LEVELS.get(action), "green")


def level_style(level: str | None, usual: str = "") -> str:
    """Return the colour of a level, of an agent's or of a budget's; `usual` below the first."""
    return _LEVEL_STYLES.get(level or "", usual)
