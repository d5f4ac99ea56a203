"""What `ultramon relay` shows: lines while it runs, below them on a terminal the context."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.cli.output import field, say, tokens
from ultramon.errors import StateError
from ultramon.state.usage_percent import usage_words
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.status import Status

    from ultramon.backends.base import Backend
    from ultramon.relay.runs.relay import Relay

_REDRAW_SECONDS = 1.0


@dataclass(slots=True)
class View:
    """What is shown of a relay while it runs.

    Attributes:
        tell: Shows a line.
        relay: The relay, once there is one.
    """

    tell: Callable[[str], None]
    relay: Relay | None = None


@contextmanager
def shown(backend: Backend, run: str) -> Iterator[View]:
    """Yield what shows lines; on a terminal one more line says how full the context is."""
    from rich.console import Console

    # On stderr, as stdout has the result alone.
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield View(say)
        return
    is_over = threading.Event()
    with console.status("") as status:
        view = View(lambda line: console.print(sanitize(line), soft_wrap=True))
        # The relay itself runs in this thread, which gets the signals.
        drawing = threading.Thread(
            target=_draw,
            args=(status, view, backend, run, is_over),
            daemon=True,
            name="ultramon-relay",
        )
        drawing.start()
        try:
            yield view
        finally:
            is_over.set()
            drawing.join()


def _draw(status: Status, view: View, backend: Backend, run: str, is_over: threading.Event) -> None:
    from rich.text import Text

    while not is_over.wait(_REDRAW_SECONDS):
        try:
            line = " · ".join((*_describe_work(view), *_describe_context(backend, run)))
            status.update(Text(line, no_wrap=True, overflow="ellipsis"))
        except StateError:
            continue  # the next look may find a store that answers


def _describe_work(view: View) -> list[str]:
    counts = None if view.relay is None else view.relay.counts
    if counts is None:
        return []
    return [f"{counts.verified + counts.claimed} of {counts.assigned} done"]


def _describe_context(backend: Backend, run: str) -> list[str]:
    """Return facts about the context that runs."""
    found = (agent.record for agent in backend.list_agents(run))
    # Subagents have one more part in their ids.
    active = [one for one in found if one is not None and one.active]
    if not active:
        return ["no context runs"]
    record = min(active, key=lambda one: len(one.agent_id))
    parts = [record.agent_id, f"{usage_words(record)} of {tokens(record.context_limit)}"]
    if record.current_task:
        parts.append(field(record.current_task))
    return parts
