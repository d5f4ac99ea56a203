"""Sends what the looks have found to the database, in order, and again until it is there."""

from __future__ import annotations

import time
from collections import deque
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.store.mirror import MirroredState, Reading
from ultramon.errors import StateWriteError
from ultramon.share.fetched import fetch
from ultramon.share.looks import BEAT_SECONDS
from ultramon.state.record import encode_state

if TYPE_CHECKING:
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.share.choices import Choices
    from ultramon.share.kept import Batch, Kept
    from ultramon.share.looks import Looks
    from ultramon.share.status import Status
    from ultramon.state.record import StateRecord

STATES_AT_ONCE = 200
READINGS_AT_ONCE = 1_000
EVENTS_AT_ONCE = 500
REMOVED_AT_ONCE = 500
NOTICES_SECONDS = 5.0
"""How often notices are asked for, at least."""
PRUNE_SECONDS = 3_600.0
SAFE_SECONDS = 5.0
"""How old a batch is that no crash of the database undoes; until then it stays on disk here. So the
database need not wait for its disk, once a second for each machine."""
_BEGINNING = "0"
"""The cursor behind no event."""
BUSY_SECONDS = 1.0
"""How long one call sends of what has waited for days; then files are looked at, and a stop."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 15.0


class Sending:
    """One database, and what it does not have yet.

    Args:
        local: The state directory.
        looks: What it holds, as it may leave.
        kept: Where readings wait.
        choices: Where to, and what.
        status: Where it is said.
    """

    def __init__(
        self, local: LocalBackend, looks: Looks, kept: Kept, choices: Choices, status: Status
    ) -> None:
        self._local = local
        self._looks = looks
        self._kept = kept
        self._choices = choices
        self._status = status
        url = choices.read_url()
        self._backend = PostgresBackend(url, max_connections=1)
        self._mirror = self._backend.mirror(status.machine_id)
        status.database = self._backend.url
        self._states: dict[str, StateRecord] = {}
        self._removed: list[str] = []
        self._unkept: list[Reading] = []
        self._unseen: dict[str, bytes] = {}
        self._is_connected = False
        self._retry_at = 0.0
        self._pause = _FIRST_PAUSE_SECONDS
        self._journal_mark: object = None
        self.position = 0
        """Of the last batch that the database has."""
        self._cursor = kept.cursor()
        self._unsafe: deque[tuple[float, int, str | None]] = deque()
        self._beat_at = self._asked_at = self._pruned_at = float("-inf")

    def collect(self, now: float) -> None:
        """Look at the files, and keep new readings on disk.

        Raises:
            StateError: The directory cannot be listed, or the disk refused; it is tried again.
        """
        found = self._looks.look(now)
        for agent_id in found.removed:
            self._states.pop(agent_id, None)
        self._removed += found.removed
        self._states |= found.states
        self._unkept += found.readings
        self._unseen |= found.seen
        self._status.agents = len(self._looks.agents)
        self._status.alive = len(self._looks.alive)
        if self._unkept:
            rows = [list(reading) for reading in self._unkept]
            self._kept.append(rows, self._unseen, now)
            self._unkept, self._unseen = [], {}

    def send(self, now: float) -> bool:
        """Send what the database does not have, as long as it takes it, for a second or so.

        Returns:
            Whether there may be more to send now.

        Raises:
            StateError: It does not; what it has not taken stays.
        """
        if not self._is_connected:
            if self._retry_at - _LONGEST_PAUSE_SECONDS <= now < self._retry_at:
                return False
            self._retry_at, self._pause = (
                now + self._pause,
                min(2 * self._pause, _LONGEST_PAUSE_SECONDS),
            )
            self._connect(now)
            self._is_connected, self._pause = True, _FIRST_PAUSE_SECONDS
        try:
            self._remove()
            ends_at = time.monotonic() + BUSY_SECONDS
            while (has_more := self._send_some(now)) and time.monotonic() < ends_at:
                pass
            self._forget(now)
            if now - self._asked_at >= NOTICES_SECONDS or now < self._asked_at:
                self._asked_at = now
                own_ids = {shared.id: own for own, shared in self._looks.agents.items()}
                self._status.sent["notices"] += fetch(self._mirror, self._local, own_ids, now)
            if now - self._pruned_at >= PRUNE_SECONDS or now < self._pruned_at:
                self._pruned_at = now
                self._mirror.prune(now)
            self._status.came(now)
        except BaseException:
            self._is_connected = False
            raise
        return has_more

    def _connect(self, now: float) -> None:
        """Enter this machine, and find out what the database has of it."""
        choices = self._choices
        position = self._mirror.announce(
            name=choices.machine_name,
            sent_fields=choices.names,
            retention_seconds=choices.retention_seconds,
        )
        if position < self._kept.sent_position():
            # A backup was restored there: what it lacks is sent again, and stored once.
            self._kept.read_anew()
            self._cursor = None
        elif position < self.position:
            self._cursor = self._kept.cursor()  # what a crash has undone comes again
        self._kept.begin_behind(position)
        self.position = position
        self._unsafe.clear()
        self._unsafe.append((now, position, self._cursor))
        self._journal_mark, self._beat_at = None, float("-inf")
        self._kept.forget_agents(self._looks.forget_gone())
        known = self._mirror.known()
        for agent_id, record in list(self._states.items()):
            stored = known.get(agent_id)
            if stored is not None and stored.digest == _digest(record):
                del self._states[agent_id]
        here = set()
        for own, shared in list(self._looks.agents.items()):
            here.add(shared.id)
            stored, wanted = known.get(shared.id), (shared.generation, shared.seq)
            if stored is not None and stored[:2] > wanted:
                self._removed.append(shared.id)
            if shared.id not in self._states and (stored is None or stored[:2] != wanted):
                again = self._looks.again(own, now)
                if again is not None:
                    self._states[shared.id] = again
        self._removed += [agent_id for agent_id in known if agent_id not in here]

    def _remove(self) -> None:
        while some := self._removed[:REMOVED_AT_ONCE]:
            self._mirror.remove(some)
            del self._removed[: len(some)]

    def _send_some(self, now: float) -> bool:
        """Send one batch; return whether there may be more."""
        waiting = self._kept.oldest(READINGS_AT_ONCE, self.position)
        ids = list(self._states)[:STATES_AT_ONCE]
        events: list[dict[str, Any]] = []
        behind, mark = self._cursor, self._local.change_mark()
        if mark != self._journal_mark:
            events, behind = self._looks.events(self._cursor, EVENTS_AT_ONCE, now)
        has_read = behind not in (self._cursor, _BEGINNING)
        is_due = now - self._beat_at >= BEAT_SECONDS or now < self._beat_at
        is_beat = is_due and len(self._states) == len(ids)  # behind the last states of many
        if waiting or ids or events or is_beat:
            alive = self._looks.alive if is_beat else {}
            readings = _readings_of(waiting)
            states = [MirroredState(self._states[one]) for one in ids]
            beats = [(*one, now) for one in alive.items()]
            position = waiting[-1].position if waiting else self._kept.append([], {}, now)
            stored = self._mirror.store(
                position, states, events, readings, beats, after=self.position, durable=False
            )
            if stored != position:
                # It was away unseen, between two looks.
                raise StateWriteError(self._backend.url, "has lost batches in a crash")
            self.position = position
            for one, state in zip(ids, states, strict=True):
                if self._states.get(one) is state.record:
                    del self._states[one]
            if is_beat:
                self._beat_at = now
            for name, count in (("states", ids), ("events", events), ("readings", readings)):
                self._status.sent[name] += len(count)
        elif not has_read:
            self._journal_mark = mark
            return False
        self._cursor = behind
        self._unsafe.append((now, self.position, behind))
        if not has_read:
            self._journal_mark = mark
        return True

    def _forget(self, now: float) -> None:
        """Forget what the database cannot lose any more."""
        while self._unsafe and not 0 <= now - self._unsafe[0][0] < SAFE_SECONDS:
            _, position, cursor = self._unsafe.popleft()
            self._kept.forget(position, cursor)

    def close(self) -> None:
        """Close the connection."""
        self._backend.close()


def _readings_of(batches: list[Batch]) -> list[Reading]:
    """Return the readings of batches; a row that is none, in a damaged file, is passed over."""
    rows = (row for batch in batches for row in batch.rows)
    return [Reading(*row) for row in rows if len(row) == len(Reading._fields)]


def _digest(record: StateRecord) -> bytes:
    return sha256(encode_state(record, record.agent_id)).digest()
