"""Registrations, messages, and the `Inbox` that receives them: the public verbs of routing.

The rules are in `ultramon.notices.permissions`.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ultramon import signals
from ultramon.backends.opening import as_backend
from ultramon.backends.queue import listening, queue_of
from ultramon.backends.registry import registry_of
from ultramon.backends.toolkit import find_agent, has_ended, load_permitted
from ultramon.context.levels import as_ladder
from ultramon.errors import ConfigurationError, StateError
from ultramon.notices.message import EXPIRY_SECONDS, Draft
from ultramon.notices.message_rules import DELIVERIES, LEASE_SECONDS
from ultramon.notices.permissions import check_recipient, resolve_target
from ultramon.notices.registration import StoredRegistration
from ultramon.system import compact_json
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.ids import check_agent_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.context.ladder import Ladder
    from ultramon.notices.message import Cancelled
    from ultramon.notices.models import Notice, Registration
    from ultramon.system.clock import Clock

    Handler = TypeVar("Handler", bound=Callable[[Notice], Any])

_log = logging.getLogger("ultramon.routing")

SELF = "self"
PARENT = "parent"
"""The recipients that an agent can be registered with at its start."""
NOTIFY_THRESHOLDS = "ULTRAMON_NOTIFY_THRESHOLDS"
"""The variable with the usage ratios of that registration."""
ADMIN = "admin"
"""In ``registered_by``: a person asked for the registration."""


def register(
    agent_id: str,
    requester: str | None,
    notify: str | None = None,
    thresholds: Ladder | Sequence[float] | None = None,
    *,
    as_admin: bool = False,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> Registration:
    """Subscribe a recipient to the notices about an agent: full window, compaction, handoff, end.

    Without a registration the only notice is that of a compaction, to the parent. Registering again
    re-arms every rung, and cancels the notices that are not received yet.

    Args:
        agent_id: The agent that the notices are about.
        requester: The agent that asks: the agent itself or its direct parent; None = a person, who
            may do everything and has to name a recipient.
        notify: The recipient: the requester, the agent, or an ancestor of it, at most 16
            generations up; None = the requester.
        thresholds: Usage ratios, each of which leads to one notice per epoch, or a ladder; None =
            the agent's own ladder.
        as_admin: Allow any agent as the recipient, as for a person.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        RegistrationError: The recipient is missing, unknown, or none of these; the ancestors form
            a cycle; or the agent has ended, or is never measured.
        ConfigurationError: The thresholds are no ladder.
        StateError: The store refused; nothing changed.
    """
    ladder = None if thresholds is None else as_ladder(thresholds)
    store, now = as_backend(backend), (clock or SYSTEM_CLOCK).now()
    found = find_agent(store, agent_id)
    record = None if found is None else found.record
    target, source = resolve_target(
        record,
        agent_id,
        None if requester is None else check_agent_id(requester),
        notify,
        parent_of=lambda name: _parent_of(store, name),
        is_over=found is not None and has_ended(found, now),
        as_admin=as_admin,
    )
    registration = StoredRegistration(
        agent_id,
        target,
        source,
        None if ladder is None else compact_json.dumps(ladder.to_json()),
        ADMIN if requester is None else requester,
        now,
    )
    registry_of(store).register(registration)
    return _as_models([registration])[0]


def unregister(
    agent_id: str, requester: str | None, *, backend: Backend | str | None = None
) -> Cancelled | None:
    """End the registration of an agent, and cancel the notices that are not received yet.

    Args:
        agent_id: The agent.
        requester: As for `register`.
        backend: A backend or its URL; None = see `open_backend`.

    Returns:
        How many notices were cancelled; None when the agent was not registered.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
    """
    store = as_backend(backend)
    load_permitted(store, agent_id, requester)
    return registry_of(store).unregister(agent_id)


def check_notify(
    agent_id: str, parent_id: str | None, notify: str, *, as_admin: bool = False, backend: Backend
) -> None:
    """Make sure that notices about an agent that is not stored yet may go to a recipient.

    Args:
        agent_id: The agent that the notices are about.
        parent_id: Its parent.
        notify: The recipient.
        as_admin: Allow any agent.
        backend: Where agents are stored.

    Raises:
        RegistrationError: As for `register`.
    """
    check_recipient(
        agent_id,
        parent_id,
        notify,
        parent_of=lambda name: _parent_of(backend, name),
        is_free=as_admin,
    )


def registrations(*, backend: Backend | str | None = None) -> list[Registration]:
    """Return all registrations, by agent id."""
    return _as_models(registry_of(as_backend(backend)).registrations())


def _as_models(stored: list[StoredRegistration]) -> list[Registration]:
    from ultramon.notices.models import Registration

    return [Registration.of(one) for one in stored]


def cancel_notices(
    agent_id: str,
    requester: str | None = None,
    *,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> Cancelled:
    """Cancel the notices about an agent whose window you have cleared: they are stale.

    Readings made up to now lead to no notice any more. The window itself is not touched: the
    agent's own monitor (`ContextMonitor.clear`) or hooks begin the new epoch.

    Args:
        agent_id: The agent that was cleared.
        requester: The agent that cleared it, which is not notified: this one or its direct parent;
            None = a person, who may do everything.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
    """
    store = as_backend(backend)
    record = load_permitted(store, agent_id, requester)
    now = (clock or SYSTEM_CLOCK).now()
    return registry_of(store).cancel_notices(record, requester=requester, now=now)


def queue_message(
    target: str,
    text: str,
    *,
    sender: str | None = None,
    category: str | None = None,
    delivery: str = "sequential",
    dedupe_key: str | None = None,
    expires_seconds: float = EXPIRY_SECONDS,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> int | None:
    """Send an agent a message of your own. See `Draft`, and for what comes back `Queue`.

    Both are in `ultramon.notices.message` and `ultramon.backends.queue`.
    """
    draft = Draft(
        target,
        text,
        sender,
        category=category,
        delivery=delivery,
        dedupe_key=dedupe_key,
        expires_seconds=expires_seconds,
    )
    return queue_of(as_backend(backend)).queue_message(draft, now=(clock or SYSTEM_CLOCK).now())


class Inbox:
    """Receives the notices and messages of an agent, each at least once.

    A notice ends when it is acknowledged. `poll` does that when all handlers have returned; a
    handler that raises is logged, and the notice comes again later, five times in all. Several
    inboxes of one recipient share its notices.

    Args:
        agent_id: The recipient; None = ``ULTRAMON_AGENT_ID``.
        deliveries: Only notices of these modes: ``urgent``, ``important``, ``sequential``.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Raises:
        ConfigurationError: No recipient is given, or the backend has no queue.
    """

    def __init__(
        self,
        agent_id: str | None = None,
        *,
        deliveries: Sequence[str] = DELIVERIES,
        backend: Backend | str | None = None,
        clock: Clock | None = None,
    ) -> None:
        agent_id = agent_id or os.environ.get("ULTRAMON_AGENT_ID")
        if not agent_id:
            raise ConfigurationError("agent_id", None, "an agent id, or ULTRAMON_AGENT_ID set")
        unknown = [delivery for delivery in deliveries if delivery not in DELIVERIES]
        if unknown or not deliveries:
            raise ConfigurationError("deliveries", deliveries, f"some of {', '.join(DELIVERIES)}")
        self.agent_id = check_agent_id(agent_id)
        self._deliveries = tuple(deliveries)
        self._backend = as_backend(backend)
        self._queue = queue_of(self._backend)
        self._clock = clock or SYSTEM_CLOCK
        self._handlers: list[Callable[[Notice], Any]] = []
        self._is_stopping = False
        self._woken = threading.Event()

    def on_notice(self, handler: Handler) -> Handler:
        """Call a handler with every `Notice`; for use as a decorator."""
        self._handlers.append(handler)
        return handler

    def peek(self, limit: int = 100, *, after: int = 0) -> list[Notice]:
        """Return notices after a message id, in the order of sending, without receiving them."""
        from ultramon.notices.models import Notice

        waiting = self._queue.peek(self.agent_id, now=self._clock.now(), after=after, limit=limit)
        return [Notice.of(message) for message in waiting]

    def receive(self, limit: int = 10, lease_seconds: float = LEASE_SECONDS) -> list[Notice]:
        """Receive notices, urgent ones first; each comes again unless you acknowledge it.

        Args:
            limit: At most so many, 50 at the most.
            lease_seconds: After so long they come again.
        """
        from ultramon.notices.models import Notice

        messages = self._queue.claim(
            self.agent_id,
            now=self._clock.now(),
            limit=limit,
            deliveries=self._deliveries,
            lease_seconds=lease_seconds,
        )
        return [Notice.of(message) for message in messages]

    def acknowledge(self, notice: Notice) -> bool:
        """End a notice; False when another inbox received it meanwhile."""
        return self._queue.acknowledge(notice.message_id, notice.claim_token)

    def reject(self, notice: Notice, error: str) -> bool:
        """Give a notice back, to come again in 2, 4, 8, 16 s; the fifth time it is dead."""
        return self._queue.reject(
            notice.message_id, notice.claim_token, error, now=self._clock.now()
        )

    def extend(self, notice: Notice, lease_seconds: float = LEASE_SECONDS) -> bool:
        """Keep a notice for longer; False when it was cancelled: stop handling it."""
        return self._queue.extend(
            notice.message_id,
            notice.claim_token,
            now=self._clock.now(),
            lease_seconds=lease_seconds,
        )

    def poll(self) -> list[Notice]:
        """Receive the waiting notices and call the handlers, and those of ``on("notice")``.

        Returns:
            The notices that all handlers returned from.

        Raises:
            StateError: The store refused; unacknowledged notices come again.

        Emits:
            notice_queued: For each notice; the sender is the recipient.
        """
        taken = []
        while notices := self.receive():
            received_at = self._clock.now()
            for notice in notices:
                # Its lease may have ended while handlers had the others; another inbox has it then.
                is_late = self._clock.now() - received_at > LEASE_SECONDS / 2
                if is_late and not self.extend(notice):
                    continue
                signals.emit(signals.notice_queued, self.agent_id, notice)
                error = self._call_handlers(notice)
                if error is not None:
                    self.reject(notice, error)
                elif self.acknowledge(notice):
                    taken.append(notice)
        return taken

    def _call_handlers(self, notice: Notice) -> str | None:
        """Call the handlers; return why one failed, None when none did."""
        for handler in self._handlers:
            try:
                handler(notice)
            except Exception as error:  # noqa: BLE001 - foreign code: the notice comes again
                _log.exception("agent %s: a notice handler raised", self.agent_id)
                return f"{type(error).__qualname__}: {error}"
        return None

    def run(self, poll_interval_seconds: float = 1.0) -> None:
        """Poll until `stop`, at once where the store signals a message; retries when it refuses."""
        with listening(self._queue, self.agent_id, self._woken.set):
            while not self._is_stopping:
                # Before the poll: a message that comes during it ends the wait behind it.
                self._woken.clear()
                try:
                    self.poll()
                except StateError as error:
                    _log.warning("agent %s receives nothing for now: %s", self.agent_id, error)
                if not self._is_stopping:
                    self._woken.wait(poll_interval_seconds)

    def stop(self) -> None:
        """End `run` after the present poll, for good. Handlers may call it."""
        self._is_stopping = True
        self._woken.set()


def _parent_of(backend: Backend, agent_id: str) -> str | None:
    """Return the stored parent of an agent; one that cannot be read has none.

    Raises:
        AgentNotFoundError: There is no such agent.
    """
    record = backend.load(check_agent_id(agent_id)).record
    return None if record is None else record.parent_id
