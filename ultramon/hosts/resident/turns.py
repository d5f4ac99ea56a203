"""The agents that a resident knows: one call of each at a time, which knows the one before.

Standard library only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon.backends.local.inbox_flags import is_raised
from ultramon.hosts.calls.readings import BYTES_PER_TOKEN
from ultramon.hosts.port import TOOL_STARTED
from ultramon.hosts.resident.exchange import GoneError
from ultramon.hosts.resident.store import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent, Host
    from ultramon.hosts.resident.exchange import Exchange
    from ultramon.hosts.resident.store import Mark

MAX_AGENTS = 256
"""Of so many agents the last state is remembered; of others the next call waits for its reading."""
TURN_SECONDS = 2.5
"""How long a call waits for those of the same agent before it, less than its forwarder does."""
MAX_LATE_CALLS = 8
"""Of one agent so many calls are answered while the storing of those before them is under way."""


class Knowledge:
    """What the last call of an agent has left: enough to see that the next one has time.

    It decides nothing but that; every change reads the stored state anew, under the agent's lock.

    Args:
        agent: As the last call has stored it.
        state_mark: Of its file then.
        choices_mark: Of the installed choices.
    """

    __slots__ = ("_agent", "_choices_mark", "_state_mark")

    def __init__(self, agent: HostedAgent, state_mark: Mark, choices_mark: Mark) -> None:
        self._agent = agent
        self._state_mark = state_mark
        self._choices_mark = choices_mark

    def has_time(self, store: HookStore, choices_mark: Mark, event: HookEvent) -> bool:
        """Return whether no reminder can be due to the agent at this call.

        Args:
            store: Of this call.
            choices_mark: As they are now.
            event: The call, one of a tool.
        """
        record, memory = self._agent.record, self._agent.memory
        is_known = (
            record.active
            and choices_mark == self._choices_mark
            and mark_of(store.directory.file(record.agent_id)) == self._state_mark
        )
        if event.kind == TOOL_STARTED:
            return is_known  # whatever the agent is to read, it does not read it there
        return (
            is_known
            and record.measured_at is not None
            and record.threshold_status == store.installed.ladder.base
            and not (memory.pending_ends or memory.is_cleared or memory.is_compacted)
            and not any(
                is_raised(store.directory.path, name)
                for name in (record.agent_id, *memory.predecessors)
            )
            and not self._is_near(store.host, event)
        )

    def _is_near(self, host: Host, event: HookEvent) -> bool:
        """Return whether the transcript says already what may be a reminder to the agent.

        The next rung may be reached, or the conversation was compacted, or has another window.
        """
        agent = self._agent
        path = host.transcripts.transcript_path(event, event.subagent_id, event.session_id)
        try:
            reading = event.reading or host.transcripts.read_last_reading(
                path or "", is_subagent=event.subagent_id is not None, call_id=event.awaited_id
            )
        except (OSError, ValueError):
            return True
        has_window = reading.window_tokens in (None, agent.record.context_window)
        if reading.report is None or agent.lacks_compaction(reading) or not has_window:
            return True
        tokens = max(reading.report.tokens, agent.record.estimated_tokens)
        return agent.gauge.is_near(tokens + reading.bytes_behind // BYTES_PER_TOKEN)


class Turn:
    """One agent's place: a call at a time, with what the one before has left.

    A call that has time is answered ahead of its turn, while those before it are still stored: none
    of them brings the agent nearer to a reminder than it is.

    Attributes:
        lock: Held by the call whose turn it is.
        knowledge: What the last call has left; None = nothing, and the next one waits.
    """

    __slots__ = ("_guard", "_late", "knowledge", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.knowledge: Knowledge | None = None
        self._late: deque[Callable[[], None]] = deque()
        self._guard = threading.Lock()

    def put_late(self, has_time: Callable[[Knowledge], bool], work: Callable[[], None]) -> bool:
        """Put off the work of a call that is answered before it; return whether there is time.

        Args:
            has_time: Asked of what is known.
            work: Done in the order of the calls, by whichever has its turn next.
        """
        with self._guard:
            if self.knowledge is None or len(self._late) >= MAX_LATE_CALLS:
                return False
            if not has_time(self.knowledge):
                return False
            self._late.append(work)
            return True

    def take_late(self) -> None:
        """Do what was put off, when its turn has come and no other call has done it."""
        with self.lock:
            self._work_late()

    def _work_late(self) -> None:
        while self._late:
            self._late.popleft()()

    def begin(self) -> Knowledge | None:
        """Begin a call whose turn it is: nothing is known until it is done.

        One that fails must not speed up the next one.

        Returns:
            What the call before has left.
        """
        while True:
            self._work_late()
            with self._guard:
                # What was put off meanwhile is older than this call.
                if not self._late:
                    knowledge, self.knowledge = self.knowledge, None
                    return knowledge


class Turns:
    """The places of all agents; those that have called last are kept."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, event: HookEvent, exchange: Exchange) -> Iterator[Turn]:
        """Wait until it is this call's turn, and hold it within the block.

        Raises:
            GoneError: The forwarder has gone meanwhile, or waits in vain.
        """
        turn = self.find(event)
        if not turn.lock.acquire(blocking=False):
            exchange.take()
            if not turn.lock.acquire(timeout=TURN_SECONDS):
                raise GoneError("calls of the same agent take too long")
        try:
            yield turn
        finally:
            turn.lock.release()

    def find(self, event: HookEvent) -> Turn:
        """Return the place of the agent that a call is about."""
        name = f"{event.session_id}.{event.subagent_id or ''}"
        with self._lock:
            turn = self._turns.pop(name, None) or Turn()
            self._turns[name] = turn
            if len(self._turns) > MAX_AGENTS:
                # One that is at work goes as well: the lock of its state file stays.
                self._turns.popitem(last=False)
            return turn
