"""What `ultramon relay` shows while it runs: lines, and below them on a terminal the context."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.cli.output import field, percent, say, tokens
from ultramon.errors import StateError
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.status import Status

    from ultramon.backends.base import Backend

_REDRAW_SECONDS = 1.0


@contextmanager
def shown(backend: Backend, run: str) -> Iterator[Callable[[str], None]]:
    """Yield what shows a line; on a terminal one more line says how full the context is."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield say
        return
    is_over = threading.Event()
    with console.status("") as status:
        drawing = threading.Thread(
            target=_draw, args=(status, backend, run, is_over), daemon=True, name="ultramon-relay"
        )
        drawing.start()
        try:
            yield lambda line: console.print(sanitize(line), soft_wrap=True)
        finally:
            is_over.set()
            drawing.join()


def _draw(status: Status, backend: Backend, run: str, is_over: threading.Event) -> None:
    from rich.text import Text

    while not is_over.wait(_REDRAW_SECONDS):
        try:
            status.update(Text(_describe(backend, run), no_wrap=True, overflow="ellipsis"))
        except StateError:
            continue  # the next look may find a store that answers


def _describe(backend: Backend, run: str) -> str:
    """Return one line about the context that runs."""
    found = (agent.record for agent in backend.list_agents(run))
    # Subagents have one more part in their ids.
    active = [one for one in found if one is not None and one.active]
    if not active:
        return "no context runs"
    record = min(active, key=lambda one: len(one.agent_id))
    parts = [record.agent_id, f"{percent(record.usage_ratio)} of {tokens(record.context_limit)}"]
    if record.current_task:
        parts.append(field(record.current_task))
    return " · ".join(parts)
