"""The text of an alert: a box on a terminal, two plain lines everywhere else."""

from __future__ import annotations

import os

from ultramon.alerts.config import OK, STALE
from ultramon.context.ladder import CAUTION, CRITICAL, EMERGENCY, WARNING
from ultramon.state.level_share import share_sentence
from ultramon.state.usage_percent import whole_percent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

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

    The whole percentage is the one of every other face, see `whole_percent`.
    """
    if outcome.percentage is None:
        return "unknown"
    text = f"{whole_percent(outcome.percentage / 100, rounds=outcome.rounds)}%"
    if outcome.tokens is not None and outcome.limit is not None:
        text += f" ({outcome.tokens}/{outcome.limit} tokens)"
    return text


def level_sentence(outcome: AlertOutcome) -> str:
    """Return where the status begins, such as ``caution is 85 % of 200k and more``; often empty."""
    return share_sentence(outcome.status or "", outcome.share, outcome.limit)


def write_alert(outcome: AlertOutcome, stream: TextIO) -> None:
    """Write an alert to a stream, in one piece.

    Args:
        outcome: With a status.
        stream: Its encoding decides the characters, and a terminal gets the box.
    """
    status, facts = outcome.status or STALE, numbers(outcome)
    if status == STALE:
        facts = f"context data is stale, {outcome.reason}; last {facts}"
    elif said := level_sentence(outcome):
        facts += f"; {said}"
    name, action = status.upper(), f"Action: {outcome.action}"
    # Agents read pipes: two plain lines say the same as the box.
    if stream.isatty() or os.environ.get("FORCE_COLOR"):
        text = _drawn(name, facts, action, _COLOURS[status], stream)
    else:
        text = _plain(name, facts, action)
    # A stream of another encoding gets escapes: an alert must not become an error.
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _drawn(name: str, facts: str, action: str, colour: str, stream: TextIO) -> str:
    from rich import box
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    # Advice and reasons are free text: their brackets and colons are no markup.
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        if stream.isatty():
            words = Text.assemble((f"CONTEXT [{name}]: {facts}", colour), f"\n\n{action}")
            width = min(console.width, _MAX_WIDTH)
            console.print(Panel(words, box=box.DOUBLE, border_style=colour, width=width))
        else:
            console.print(Text(_plain(name, facts, action), colour), soft_wrap=True, end="")
    return captured.get()


def _plain(name: str, facts: str, action: str) -> str:
    return f"[CONTEXT ALERT] {name}: {facts}\n{action}\n"
