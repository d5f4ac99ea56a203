"""Monitors for an orchestrator with many conversations in one process."""

from __future__ import annotations

import threading
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from ultramon.errors import ConfigurationError
from ultramon.monitor.monitor import create_context_monitor
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.ids import is_agent_id

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.monitor.monitor import ContextMonitor
    from ultramon.system.clock import Clock

SWEEP_SECONDS = 60.0
"""Time between two sweeps for idle conversations by `MonitorPool.get`."""
_MAX_LABEL_CHARS = 200


class _Conversation:
    """One conversation in the pool; its lock is held while its monitor starts or stops."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.monitor: ContextMonitor | None = None
        self.used_at = 0.0
        self.is_resting = False
        self.is_left = False
        """True once the pool has dropped it: a thread that waited for the lock takes another."""


class MonitorPool:
    """One monitor per conversation: made on first use, ended when idle.

    Every method is thread-safe. Leaving the pool's ``with`` block ends all its conversations, each
    with the outcome that its own block would have had; the pool can be used again afterwards.

    Args:
        config: Of every monitor; None = from environment, file and defaults.
        run: The orchestration they belong to; None = ``ULTRAMON_RUN``, else ``default``.
        parent_id: The agent they work for; None = ``ULTRAMON_PARENT_ID``.
        idle_seconds: A conversation that was not used for so long is ended; > 0.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Raises:
        ConfigurationError: ``idle_seconds`` is not above 0.
    """

    def __init__(
        self,
        config: ContextConfig | None = None,
        *,
        run: str | None = None,
        parent_id: str | None = None,
        idle_seconds: float = 600.0,
        backend: Backend | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not idle_seconds > 0:
            raise ConfigurationError("idle_seconds", idle_seconds, "> 0")
        self._idle_seconds = idle_seconds
        self._clock = clock or SYSTEM_CLOCK
        self._make = partial(
            create_context_monitor,
            config=config,
            run=run,
            parent_id=parent_id,
            backend=backend,
            clock=self._clock,
        )
        self._lock = threading.Lock()
        self._conversations: dict[str, _Conversation] = {}
        self._swept_at = self._clock.monotonic()

    def get(self, conversation_id: str) -> ContextMonitor:
        """Return the monitor of a conversation, working; a new one where none is active.

        The first use and the sweep for idle ones write to the store, some milliseconds each: in an
        event loop call it as ``await asyncio.to_thread(pool.get, conversation_id)``.

        Args:
            conversation_id: Any text. It is the agent id where it can be one, else that is
                ``conv-`` and 32 hexadecimal digits of its hash; the label begins with the text.

        Raises:
            AgentAlreadyRunningError: The agent of that id lives outside this pool.
            ConfigurationError: A configured value is out of range.
        """
        if self._clock.monotonic() - self._swept_at >= SWEEP_SECONDS:
            self.close_idle()
        while True:
            with self._lock:
                conversation = self._conversations.setdefault(conversation_id, _Conversation())
            with conversation.lock:
                if conversation.is_left:
                    continue
                conversation.used_at = self._clock.monotonic()
                monitor = conversation.monitor
                if monitor is None or not monitor.is_active:
                    label = conversation_id[:_MAX_LABEL_CHARS] or None
                    monitor = self._make(_agent_id_of(conversation_id), label=label).start()
                    conversation.monitor = monitor
                elif conversation.is_resting:
                    monitor.working()
                conversation.is_resting = False
                return monitor

    def rest(self, conversation_id: str) -> None:
        """Note that a conversation waits for its user: it is not stale until it is used again.

        Nothing happens when the pool does not hold it.
        """
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            return
        with conversation.lock:
            if conversation.monitor is not None and conversation.monitor.is_active:
                conversation.monitor.waiting()
                conversation.is_resting = True

    def close(self, conversation_id: str, outcome: str = "completed") -> None:
        """End a conversation; nothing happens when the pool does not hold it.

        Args:
            conversation_id: As it was given to `get`.
            outcome: As for `ContextMonitor.stop`.

        Raises:
            ValueError: There is no such outcome; the conversation continues.
        """
        conversation = self._conversations.get(conversation_id)
        if conversation is None:
            return
        with conversation.lock:
            if conversation.monitor is not None:
                conversation.monitor.stop(outcome)
            self._leave(conversation_id, conversation)

    def close_idle(self) -> list[str]:
        """End the conversations that are idle, and return their ids.

        A conversation is idle after ``idle_seconds`` without a `get` and without activity of its
        monitor, unless it is in the middle of a task.
        """
        with self._lock:
            self._swept_at = self._clock.monotonic()
            conversations = list(self._conversations.items())
        closed = []
        for conversation_id, conversation in conversations:
            # A conversation whose lock is held is in use.
            if not conversation.lock.acquire(blocking=False):
                continue
            try:
                if self._is_idle(conversation):
                    self._end(conversation_id, conversation, None)
                    closed.append(conversation_id)
            finally:
                conversation.lock.release()
        return closed

    def __len__(self) -> int:
        """Return the number of conversations held."""
        return len(self._conversations)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_details: object) -> None:
        with self._lock:
            conversations = list(self._conversations.items())
        for conversation_id, conversation in conversations:
            with conversation.lock:
                self._end(conversation_id, conversation, kind)

    def _is_idle(self, conversation: _Conversation) -> bool:
        if (
            conversation.is_left
            or self._clock.monotonic() - conversation.used_at < self._idle_seconds
        ):
            return False
        if conversation.monitor is None:
            return True
        state = conversation.monitor.get_state()
        quiet_seconds = self._clock.now() - state.last_activity.timestamp()
        return quiet_seconds >= self._idle_seconds and state.current_task is None

    def _end(
        self, conversation_id: str, conversation: _Conversation, kind: type[BaseException] | None
    ) -> None:
        if conversation.monitor is not None:
            conversation.monitor.__exit__(kind)
        self._leave(conversation_id, conversation)

    def _leave(self, conversation_id: str, conversation: _Conversation) -> None:
        conversation.is_left = True
        with self._lock:
            if self._conversations.get(conversation_id) is conversation:
                del self._conversations[conversation_id]


def _agent_id_of(conversation_id: str) -> str:
    if is_agent_id(conversation_id):
        return conversation_id
    # Text from elsewhere may hold half a character, which strict UTF-8 refuses.
    digest = sha256(conversation_id.encode("utf-8", "surrogatepass"))
    return f"conv-{digest.hexdigest()[:32]}"
