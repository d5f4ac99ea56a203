"""The signals of ultramon: facts in the past tense, for receivers in the same process.

The sender is the agent id as text; the fact is the keyword ``event``. Receivers run in the thread
that noticed the fact, outside all locks and in no particular order, after the state was saved or,
where ``event.stored`` is false, after the longest wait for that. A receiver that raises is logged
by name and stops no other. `blinker` keeps weak references and silently drops a lambda or a bound
method of a temporary; `on` keeps strong ones.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from blinker import ANY, Namespace

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from blinker import NamedSignal, Signal

    Handler = TypeVar("Handler", bound=Callable[..., Any])

_log = logging.getLogger("ultramon.monitor")
_namespace = Namespace()

FRIENDLY_NAMES: dict[str, NamedSignal] = {}
"""The signals by the names that `on` takes."""


def _define(friendly_name: str, name: str, doc: str) -> NamedSignal:
    FRIENDLY_NAMES[friendly_name] = signal = _namespace.signal(name, doc)
    return signal


context_threshold_reached = _define(
    "threshold",
    "context_threshold_reached",
    "An agent reached a higher level. event: ThresholdEvent",
)
context_relaxed = _define(
    "relaxed", "context_relaxed", "An agent fell to a lower level. event: ThresholdEvent"
)
context_epoch_started = _define(
    "epoch_started", "context_epoch_started", "A window was compacted or cleared. event: EpochEvent"
)
checkpoint_stored = _define(
    "checkpoint",
    "checkpoint_stored",
    "An agent stored its work and continues. event: CheckpointEvent",
)
agent_started = _define("started", "agent_started", "An agent became active. event: AgentEvent")
agent_stopped = _define("stopped", "agent_stopped", "An agent ended. event: AgentEvent")
agent_stale = _define("stale", "agent_stale", "A heartbeat is overdue. event: AgentEvent")
agent_recovered = _define(
    "recovered", "agent_recovered", "A stale agent beat again. event: AgentEvent"
)
agent_lost = _define("lost", "agent_lost", "An agent vanished. event: AgentEvent")
handoff_ready = _define(
    "handoff_ready", "handoff_ready", "An agent left a handoff record. event: HandoffEvent"
)
notice_queued = _define(
    "notice",
    "notice_queued",
    "An inbox received a notice; the sender is its recipient. event: Notice",
)

_connected: list[tuple[Callable[..., Any], Signal, Callable[..., Any]]] = []
# A loop itself keeps only weak references to its tasks.
_running: set[asyncio.Task[Any]] = set()


def on(name: str, agent_id: str | None = None) -> Callable[[Handler], Handler]:
    """Return a decorator that calls a handler with each event of a name.

    The event is the only argument. The handler may be a lambda, a method or a coroutine function; a
    coroutine becomes a task of the running loop, or runs to its end without one. It stays connected
    until `off`.

    Args:
        name: One of `FRIENDLY_NAMES`, e.g. ``threshold``.
        agent_id: Only events of this agent; None = of all.

    Raises:
        ValueError: There is no such name.
    """
    signal = FRIENDLY_NAMES.get(name)
    if signal is None:
        raise ValueError(f"no event {name!r}: choose one of {', '.join(FRIENDLY_NAMES)}")

    def connect(handler: Handler) -> Handler:
        def receive(_sender: str, event: object) -> Any:
            return handler(event)

        # The names are for the log of a handler that raises.
        receive.__qualname__ = getattr(handler, "__qualname__", repr(handler))
        receive.__module__ = getattr(handler, "__module__", __name__)
        signal.connect(receive, sender=ANY if agent_id is None else agent_id, weak=False)
        _connected.append((handler, signal, receive))
        return handler

    return connect


def off(handler: Callable[..., Any]) -> None:
    """Disconnect a handler from everything `on` connected it to."""
    for entry in [entry for entry in _connected if entry[0] == handler]:
        _connected.remove(entry)
        entry[1].disconnect(entry[2])


def emit(signal: Signal, agent_id: str, event: object) -> None:
    """Call every receiver of a signal; one that raises stops no other."""
    for receiver in signal.receivers_for(agent_id):
        with _guarded(receiver):
            result = receiver(agent_id, event=event)
            if isinstance(result, CoroutineType):
                _run(result, receiver)


@contextmanager
def _guarded(receiver: object) -> Iterator[None]:
    try:
        yield
    except Exception:  # noqa: BLE001 - foreign code must not reach the agent's turn
        name = getattr(receiver, "__qualname__", repr(receiver))
        module = getattr(receiver, "__module__", "?")
        _log.exception("signal receiver %s.%s raised", module, name)


def _run(coroutine: CoroutineType[Any, Any, Any], receiver: object) -> None:
    import asyncio

    async def guarded() -> None:
        with _guarded(receiver):
            await coroutine

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(guarded())
        return
    task = loop.create_task(guarded())
    _running.add(task)
    task.add_done_callback(_running.discard)
