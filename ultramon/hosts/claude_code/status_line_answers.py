"""Answers status lines within the resident, by the code that every status line process runs.

Standard library only.
"""

from __future__ import annotations

import time

from ultramon.hosts.calls.payload import decode_payload
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.status_line import (
    STATUS_LINE,
    chained_line,
    read_tail,
    show,
    take,
    take_plan,
)
from ultramon.hosts.resident.forwarder import REFUSED
from ultramon.hosts.resident.store import ResidentStore, mark_of
from ultramon.hosts.resident.turns import Knowledge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.resident.exchange import Exchange, Request
    from ultramon.hosts.resident.turns import Turns


class StatusLineAnswers:
    """The status lines of all sessions.

    Args:
        directory: The state directory.
        turns: The agents.
    """

    def __init__(self, directory: str, turns: Turns) -> None:
        self._directory = directory
        self._turns = turns

    def answer(self, request: Request, exchange: Exchange) -> None:
        """Show one line.

        Raises:
            GoneError: The forwarder has gone, and shows the line itself.
        """
        try:
            fields = decode_payload(request.payload)
            event = CLAUDE_CODE.dialect.read_event(fields, request.environ)
        except ValueError:
            exchange.end(REFUSED)  # its own process says what is wrong with it
            return
        with self._turns.taken(event, exchange) as turn:
            choices_mark = mark_of(request.choices_path)
            store = ResidentStore(
                CLAUDE_CODE, self._directory, request, exchange.process_id,
                event=STATUS_LINE, now=time.time(),
            )  # fmt: skip
            if chained_line(store) is not None:
                exchange.end(REFUSED)  # another tool's program needs the host's environment
                return
            exchange.take()
            store.own_id = event.session_id
            tail = read_tail(event.transcript_path)
            try:
                plan = take_plan(fields, tail, store)
                record = take(event, fields, tail, store)
            except Exception:  # noqa: BLE001 - its own process says what is wrong
                exchange.end(REFUSED)
                return
            if store.stored is not None:
                turn.knowledge = Knowledge(*store.stored, choices_mark)
        if line := show(record, store, fields, plan):
            exchange.answer(line)
            exchange.confirm()
        else:
            exchange.end()
