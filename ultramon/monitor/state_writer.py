"""What one agent has to store: numbered states, and the events that wait until they are stored."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Save
from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    FencedError,
    StateError,
    UltramonError,
)
from ultramon.monitor.handoff import end_of_replaced
from ultramon.state.record import StateRecord
from ultramon.system.ids import random_hex
from ultramon.system.processes import this_host

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.monitor.session import Session
    from ultramon.system.clock import Clock


class StateWriter:
    """Stores one agent's states and events in one backend, under the generation it owns.

    When to save, and what a refusal means for the agent, is decided by the session.

    Args:
        session: Its `snapshot` is what is stored; its lock guards everything here.
        identity: Fields of the state that never change: run, session, parent, label.
        backend: Where to store.
        clock: Gives the times of events.
        takeover: Take the agent even from an owner that provably lives.

    Attributes:
        generation: Under which the agent is stored, 0 until it is.
        start_id: Tells this owner from every other.
        seq: Number of the newest state.
        extra: Unknown fields of the stored state, to be kept.
        outbox: Events that are not stored yet.
        dirty: Whether something changed after the last snapshot.
    """

    def __init__(
        self,
        session: Session,
        identity: dict[str, Any],
        backend: Backend,
        clock: Clock,
        *,
        takeover: bool,
    ) -> None:
        self.generation = 0
        self.start_id = random_hex(16)
        self.seq = 0
        self.extra: dict[str, Any] = {}
        self.outbox: list[dict[str, Any]] = []
        self.dirty = False
        self._session = session
        self._identity = identity
        self._backend = backend
        self._clock = clock
        self._takeover = takeover
        self._counts: dict[tuple[int, str, str], int] = {}
        self._has_tried = False
        self._resumed_from: tuple[int, int] | None = None
        self.snapshots = 0
        self.stored = 0
        """The last snapshot that reached the store, counted as they were taken."""

    def event(self, kind: str, epoch: int, **details: Any) -> dict[str, Any]:
        """Return a new event of this agent, numbered within its kind and epoch."""
        count = (epoch, kind, str(details.get("level", "")))
        number = self._counts.get(count, 0)
        self._counts[count] = number + 1
        agent_id = self._session.agent_id
        head = StateRecord(agent_id, **self._identity, generation=self.generation, epoch=epoch)
        source, now = f"agent:{agent_id}", self._clock.now()
        return head.event(kind, source=source, at=now, n=number, **details)

    def discard_events(self) -> None:
        """Forget all events: what they belong to did not begin."""
        self.outbox.clear()
        self._counts.clear()

    def move_epochs(self, steps: int) -> None:
        """Let the events that wait belong to later epochs."""
        for event in self.outbox:
            event["epoch"] += steps
        self._counts = {
            (epoch + steps, kind, level): number
            for (epoch, kind, level), number in self._counts.items()
        }

    @property
    def is_stored(self) -> bool:
        """Whether the store has everything that there is to store, waiting events apart."""
        return self.stored == self.snapshots > 0 and not self.dirty

    def store(self, *, durable: bool) -> None:
        """Store the newest state, as a new owner where the agent is not stored yet.

        Raises:
            UltramonError: The store refused, or another owner has the agent.
        """
        if not self.generation:
            known = False
            # A store that cannot answer now refuses the next step, or accepts it.
            with suppress(StateError):
                known = self._recognise()
            if not known:
                self._register()
                return
        save = self.next_save(durable=durable)
        try:
            stored = self._backend.record(save.record, save.events, durable=save.durable)
        except UltramonError as error:
            self.note_refused(error)
        else:
            self.note_stored(save, events_stored=stored)

    def next_save(self, *, durable: bool) -> Save:
        """Take a snapshot and return it with the events that wait."""
        with self._session.lock:
            self.seq += 1
            events = list(self.outbox)
            return Save(self._snapshot(), events, durable or bool(events))

    def _snapshot(self, after: StateRecord | None = None) -> StateRecord:
        self.snapshots += 1
        self.dirty = False
        return self._session.snapshot(after)

    def note_stored(self, save: Save, *, events_stored: bool = True) -> None:
        """Note that a snapshot, and maybe its events, reached the store."""
        with self._session.lock:
            del self.outbox[: len(save.events) if events_stored else 0]
        # No other snapshot can have been taken meanwhile: `save_lock` is held.
        self.stored = self.snapshots

    def note_refused(self, refusal: UltramonError) -> None:
        """Start the agent again where its record was deleted, unless another owner did.

        Raises:
            UltramonError: The refusal, where it has another reason, or that of the new start.
        """
        if not isinstance(refusal, FencedError) or refusal.current_generation is not None:
            raise refusal
        self._takeover = False
        self._register()

    def _recognise(self) -> bool:
        """Go on as the owner where an earlier start was stored although it was refused.

        The agent would otherwise take its own state, with its own living process in it, for that
        of another owner.

        Raises:
            StateError: The store refused.
        """
        if not self._has_tried:
            return False
        try:
            stored = self._backend.load(self._session.agent_id).record
        except AgentNotFoundError:
            return False
        if stored is None or stored.start_id != self.start_id:
            return False
        with self._session.lock:
            self.generation = stored.generation
            self.seq = max(self.seq, stored.seq)
            own = {event["eventId"] for event in self.outbox}
            for event in self.outbox:
                event["generation"] = stored.generation
            waiting = [event for event in stored.pending or () if event["eventId"] not in own]
            self.outbox[:0] = waiting
        return True

    def _register(self) -> None:
        inherited: list[dict[str, Any]] = []
        own: list[dict[str, Any]] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            with self._session.lock:
                after = None
                if stored is not None:
                    self.extra = stored.extra
                    self.seq = stored.seq + 1
                    inherited[:] = stored.pending or []
                    inherited.extend(
                        end_of_replaced(stored, self._identity["run"], self._clock.now())
                    )
                    found = stored.generation, stored.seq
                    # A start that was refused has come after this state already.
                    after = stored if self._resumed_from != found else None
                    self._resumed_from = found
                self.generation = generation
                for event in self.outbox:
                    event["generation"] = generation
                own[:] = self.outbox
                return self._snapshot(after), inherited + own

        has_tried, self._has_tried = self._has_tried, True
        try:
            stored_events = self._backend.start_agent(
                self._session.agent_id,
                build,
                takeover=self._takeover,
                now=self._clock.now(),
                host=this_host(),
            )
        except AgentAlreadyRunningError:
            # The state that could not be read a moment ago may be its own after all.
            if not (has_tried and self._recognise()):
                raise
            self.store(durable=True)
            return
        except BaseException:
            self.generation = 0
            raise
        with self._session.lock:
            self.outbox[: len(own)] = [] if stored_events else inherited + own
        self.stored = self.snapshots
