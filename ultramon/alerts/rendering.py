"""The text of an alert: a box on a terminal, two plain lines everywhere else."""

from __future__ import annotations

import math
import os

from ultramon.alerts.config import OK, STALE
from ultramon.context.ladder import CAUTION, CRITICAL, EMERGENCY, WARNING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

    from rich.console import Console

    from ultramon.alerts.outcome import AlertOutcome

_COLOURS = {
    OK: "green",
    WARNING: "yellow",
    CAUTION: "bright_yellow",
    CRITICAL: "red",
    EMERGENCY: "bright_red",
    STALE: "dim",
}
_MAX_WIDTH = 76


def numbers(outcome: AlertOutcome) -> str:
    """Return how full the window is: ``87% (174000/200000 tokens)``.

    The percentage is rounded down: it never shows a threshold that is not reached.
    """
    if outcome.percentage is None:
        return "unknown"
    text = f"{math.floor(outcome.percentage)}%"
    if outcome.tokens is not None and outcome.limit is not None:
        text += f" ({outcome.tokens}/{outcome.limit} tokens)"
    return text


def write_alert(outcome: AlertOutcome, stream: TextIO) -> None:
    """Write an alert to a stream, in one piece.

    Args:
        outcome: With a status.
        stream: Its encoding decides the characters, and a terminal gets the box.
    """
    status, facts = outcome.status or STALE, numbers(outcome)
    if status == STALE:
        facts = f"context data is stale, {outcome.reason}; last {facts}"
    name, action = status.upper(), f"Action: {outcome.action}"
    plain = f"[CONTEXT ALERT] {name}: {facts}\n{action}\n"
    if stream.isatty():
        text = _boxed(f"CONTEXT [{name}]: {facts}", action, _COLOURS[status], stream)
    elif os.environ.get("FORCE_COLOR"):
        text = _coloured(plain, _COLOURS[status], stream)
    else:
        text = plain
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _boxed(head: str, action: str, colour: str, stream: TextIO) -> str:
    from rich import box
    from rich.panel import Panel
    from rich.text import Text

    console = _console(stream)
    words = Text.assemble((head, colour), f"\n\n{action}")
    width = min(console.width, _MAX_WIDTH)
    with console.capture() as captured:
        console.print(Panel(words, box=box.DOUBLE, border_style=colour, width=width))
    return captured.get()


def _coloured(text: str, colour: str, stream: TextIO) -> str:
    from rich.text import Text

    console = _console(stream)
    with console.capture() as captured:
        console.print(Text(text, colour), soft_wrap=True, end="")
    return captured.get()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, markup=False, emoji=False, highlight=False)
