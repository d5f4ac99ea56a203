"""Answers hook calls within the resident: by the code that every hook process runs.

Far from a rung the host is answered after a look at the transcript, and everything else is done
afterwards; near one, or with a reminder for the agent, it waits as for a process of its own. So the
agent reads the same, at the same calls.

Standard library only.
"""

from __future__ import annotations

import time
from contextlib import suppress

from ultramon.hosts import port
from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.payload import decode_payload
from ultramon.hosts.resident.exchange import Exchange, GoneError, Request
from ultramon.hosts.resident.forwarder import REFUSED
from ultramon.hosts.resident.store import OvertakenError, ResidentStore, mark_of
from ultramon.hosts.resident.turns import Knowledge, Turn, Turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.port import HookEvent, Host

_KINDS = (port.TOOL_STARTED, port.TOOL_ENDED, port.TOOLS_ENDED, port.PROMPT, port.WAITING)
"""What is answered here. To handle one of these twice changes nothing, so that a call may continue
in its own process at any moment; the others, which are rare, are left to that from the start."""

_AT_ONCE = (port.TOOL_STARTED, port.TOOL_ENDED)
"""What may be answered before it is stored; the end of all calls too, where it has a reading."""


class HookAnswers:
    """The hook calls of one host.

    Args:
        host: The host.
        directory: The state directory.
        turns: The agents.

    Attributes:
        at_once_count: How many calls were answered before their reading was stored.
    """

    def __init__(self, host: Host, directory: str, turns: Turns) -> None:
        self._host = host
        self._directory = directory
        self._turns = turns
        self.at_once_count = 0

    def answer(self, request: Request, exchange: Exchange) -> Callable[[], None] | None:
        """Handle one call.

        Returns:
            What is left to do of it after its answer; None = nothing.

        Raises:
            GoneError: The forwarder has gone, and handles the call itself.
        """
        try:
            event = self._host.dialect.read_event(decode_payload(request.payload), request.environ)
        except ValueError:
            exchange.end(REFUSED)  # its own process says what is wrong with it
            return None
        if not event.kind:
            exchange.end()
            return None
        others = event.launched or event.returned or event.tasks or event.candidates
        if event.kind not in _KINDS or others:
            exchange.end(REFUSED)
            return None
        late = self._answer_at_once(event, request, exchange)
        if late is None:
            with self._turns.taken(event, exchange) as turn:
                self._handle(turn, event, request, exchange)
        return late

    def _answer_at_once(
        self, event: HookEvent, request: Request, exchange: Exchange
    ) -> Callable[[], None] | None:
        """Answer a call that has time, and return what stores it; None = it has none."""
        if not (event.kind in _AT_ONCE or (event.kind == port.TOOLS_ENDED and event.reading)):
            return None
        turn, choices_mark = self._turns.find(event), mark_of(request.choices_path)
        late: list[ResidentStore] = []

        def has_time(knowledge: Knowledge) -> bool:
            store = self._store_of(event, request, exchange)
            if not knowledge.has_time(store, choices_mark, event):
                return False
            exchange.check_peer()
            late.append(store)
            return True

        def work() -> None:
            (store,) = late
            store.is_late, event.can_answer = True, False
            if not self._run(event, store, exchange):
                turn.knowledge = None
            elif store.stored:
                turn.knowledge = Knowledge(*store.stored, choices_mark)

        if not turn.put_late(has_time, work):
            return None
        # One that has gone since handles the call too: twice changes nothing.
        with suppress(GoneError):
            exchange.end()
        self.at_once_count += 1
        return turn.take_late

    def _store_of(self, event: HookEvent, request: Request, exchange: Exchange) -> ResidentStore:
        return ResidentStore(
            self._host, self._directory, request, exchange.process_id,
            event=event.name, now=time.time(),
        )  # fmt: skip

    def _handle(self, turn: Turn, event: HookEvent, request: Request, exchange: Exchange) -> None:
        knowledge = turn.begin()
        choices_mark = mark_of(request.choices_path)
        store = self._store_of(event, request, exchange)
        if self._may_end(event, store):
            exchange.end(REFUSED)
            return
        exchange.take()
        if self._run(event, store, exchange):
            # A call that stored nothing leaves what the one before it knew.
            turn.knowledge = Knowledge(*store.stored, choices_mark) if store.stored else knowledge

    def _may_end(self, event: HookEvent, store: ResidentStore) -> bool:
        """Return whether this call may end its agent: that takes longer than a forwarder waits."""
        if store.installed.enforce is None:
            return False
        record = store.find(HookCall(event, store).agent_id)
        return record is not None and record.threshold_status != store.installed.ladder.base

    def _run(self, event: HookEvent, store: ResidentStore, exchange: Exchange) -> bool:
        """Handle a call; return whether that came to its end, in full."""
        call = None
        try:
            call = HookCall(event, store)
            store.own_id = call.agent_id
            answer = call.answer()
        except Exception as error:  # noqa: BLE001 - as in a process of its own: the host continues
            if call is not None:
                call.put_back()
            if not store.is_late:
                exchange.end(REFUSED)
            elif not isinstance(error, OvertakenError):
                store.fail(event.session_id, f"{type(error).__name__}: {error}")
            return False
        # What follows is about this very answer, whatever else is stored meanwhile.
        store.own_id = None
        if answer and not exchange.answer(answer):
            call.put_back()
            return False
        if not answer and not store.is_late:
            try:
                exchange.end()
            except GoneError:
                call.put_back()
                return False
        call.acknowledge()
        if answer:
            exchange.confirm()
        return True
