"""The port of registrations: which recipient is sent the notices about which agent.

`ultramon.testing.RegistryContract` checks each sentence here against an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ultramon.backends.base import require_part

if TYPE_CHECKING:
    from ultramon.notices.message import Cancelled
    from ultramon.notices.registration import StoredRegistration
    from ultramon.state.record import StateRecord


class Registry(Protocol):
    """Registrations, kept with the queue. A backend that has them shows them as ``registry``.

    Such a backend queues notices by `ultramon.notices.router.route` in the same step in which
    `Backend.record` and `Backend.start_agent` store a state, whether events come with it or not,
    and by `ultramon.notices.router.route_noted` in that of `Backend.append_events`. Rights are not
    checked here. A registration outlives its agent: it holds for the next owner of the id, until
    it is ended or the agent is pruned.
    """

    def register(self, registration: StoredRegistration) -> Cancelled:
        """Store a registration in place of the agent's older one; every rung is armed again.

        Returns:
            The cancelled notices about the agent, which no recipient had received yet.

        Raises:
            StateWriteError: The store refused; nothing changed.
        """

    def unregister(self, agent_id: str) -> Cancelled | None:
        """End a registration; None when there was none."""

    def registrations(self, agent_id: str | None = None) -> list[StoredRegistration]:
        """Return the registration of one agent, or all by agent id. Nothing changes."""

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """Return epoch and level of a recipient's last notice about an agent's window."""

    def cancel_notices(
        self, record: StateRecord, *, requester: str | None, now: float
    ) -> Cancelled:
        """Cancel the notices about an agent that was cleared from outside: they are stale.

        In the same step the registered recipient is notified of the clear, unless it is the agent
        or the requester. From then on readings made up to ``now`` lead to no notice.
        """


def registry_of(backend: object) -> Registry:
    """Return the registrations of a backend.

    Raises:
        ConfigurationError: It keeps none.
    """
    registry: Registry = require_part(backend, "registry", "registrations")
    return registry
