"""Answers status lines within the resident, by the code that every status line process runs.

Standard library only.
"""

from __future__ import annotations

import time

from ultramon.hosts.calls.payload import decode_payload
from ultramon.hosts.resident.forwarder import REFUSED
from ultramon.hosts.resident.store import ResidentStore, mark_of
from ultramon.hosts.resident.turns import Knowledge
from ultramon.hosts.status_line.program import (
    STATUS_LINE,
    chained_line,
    read_tail,
    show,
    take,
    take_plan,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.resident.exchange import Exchange, Request
    from ultramon.hosts.resident.turns import Turns
    from ultramon.hosts.status_line.program import StatusLine


class StatusLineAnswers:
    """The status lines of all sessions of a host.

    Args:
        line: Whose they are.
        directory: The state directory.
        turns: The agents.
    """

    def __init__(self, line: StatusLine, directory: str, turns: Turns) -> None:
        self._line = line
        self._directory = directory
        self._turns = turns

    def answer(self, request: Request, exchange: Exchange) -> None:
        """Show one line.

        Raises:
            GoneError: The forwarder has gone, and shows the line itself.
        """
        try:
            fields = decode_payload(request.payload)
            event = self._line.read_event(fields, request.environ)
        except ValueError:
            exchange.end(REFUSED)  # its own process says what is wrong with it
            return
        with self._turns.taken(event, exchange) as turn:
            knowledge = turn.begin()
            choices_mark = mark_of(request.choices_path)
            store = ResidentStore(
                self._line.host, self._directory, request, exchange.process_id,
                event=STATUS_LINE, now=time.time(),
            )  # fmt: skip
            if chained_line(store) is not None:
                exchange.end(REFUSED)  # another tool's program needs the host's environment
                return
            exchange.take()
            store.own_id = event.session_id
            tail = read_tail(self._line.host, event.transcript_path)
            try:
                plan = take_plan(self._line, fields, tail, store)
                record = take(self._line, event, fields, tail, store)
            except Exception:  # noqa: BLE001 - its own process says what is wrong
                exchange.end(REFUSED)
                return
            turn.knowledge = Knowledge(*store.stored, choices_mark) if store.stored else knowledge
        if line := show(record, store, fields, plan):
            exchange.answer(line)
            exchange.confirm()
        else:
            exchange.end()
