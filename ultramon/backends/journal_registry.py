"""The registrations of every backend that keeps a `Journal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.queue import Cancelled
from ultramon.core.routes import Routes

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ultramon.core.journal import Journal
    from ultramon.core.record import StateRecord
    from ultramon.core.registration import Registration


class JournalRegistry:
    """See `ultramon.backends.registry.Registry`.

    Args:
        journal: Where the registrations are.
        guard: Gives the lock that keeps the threads of this process apart.
        prepare: Makes the place of the journal, before anything is written there.
    """

    def __init__(
        self,
        journal: Journal,
        guard: Callable[[], AbstractContextManager[object]],
        prepare: Callable[[], object],
    ) -> None:
        self._routes = Routes(journal)
        self._guard = guard
        self._prepare = prepare

    def register(
        self,
        agent_id: str,
        notify_id: str,
        *,
        source: str,
        ladder: dict[str, Any] | None,
        registered_by: str,
        now: float,
    ) -> Cancelled:
        """See `Registry.register`."""
        self._prepare()
        with self._guard():
            cancelled = self._routes.register(
                agent_id,
                notify_id,
                source=source,
                ladder=ladder,
                registered_by=registered_by,
                now=now,
            )
        return Cancelled(*cancelled)

    def unregister(self, agent_id: str) -> Cancelled | None:
        """See `Registry.unregister`."""
        with self._guard():
            cancelled = self._routes.unregister(agent_id)
        return None if cancelled is None else Cancelled(*cancelled)

    def registrations(self, agent_id: str | None = None) -> list[Registration]:
        """See `Registry.registrations`."""
        with self._guard():
            return self._routes.registrations(agent_id)

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """See `Registry.announcement`."""
        with self._guard():
            return self._routes.announcement(agent_id, audience)

    def clear(self, record: StateRecord, *, requester: str | None, now: float) -> Cancelled:
        """See `Registry.clear`."""
        self._prepare()
        with self._guard():
            return Cancelled(*self._routes.clear(record, requester, now))
