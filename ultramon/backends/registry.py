"""The ports of registrations: who is told about whom, and what the rules of it are kept in.

`ultramon.testing.RegistryContract` checks each sentence here against an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ultramon.backends.queue import Cancelled
from ultramon.errors import ConfigurationError

if TYPE_CHECKING:
    from ultramon.core.registration import Registration
    from ultramon.state.record import StateRecord


class Registry(Protocol):
    """Registrations, kept with the queue. A backend that has them shows them as ``registry``.

    Such a backend queues notices by `ultramon.core.routes.route` in the same step in which
    `Backend.record` and `Backend.start_agent` store a state, whether events come with it or not,
    and by `ultramon.core.routes.route_noted` in that of `Backend.append_events`. Rights are not
    checked here. A registration outlives its agent: it holds for the next owner of the id, until
    it is ended or the agent is pruned.
    """

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
        """Register an agent, or replace its registration; every rung can then be told anew.

        Args:
            agent_id: The agent that it is about.
            notify_id: Who is told.
            source: ``explicit``, or ``parent``: it follows when the agent's parent is another.
            ladder: The rungs, as in a state file; None = the agent's own.
            registered_by: Who asked.
            now: Epoch seconds.

        Returns:
            What became of the notices about the agent that nobody had received yet.

        Raises:
            StateWriteError: The store refused; nothing changed.
        """

    def unregister(self, agent_id: str) -> Cancelled | None:
        """End a registration; None when there was none."""

    def registrations(self, agent_id: str | None = None) -> list[Registration]:
        """Return the registration of one agent, or all by agent id. Nothing changes."""

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """Return epoch and level that a recipient was told last about an agent."""

    def clear(self, record: StateRecord, *, requester: str | None, now: float) -> Cancelled:
        """Note that an agent was cleared from outside: what it said before is stale.

        As one step its undelivered notices are cancelled, and a recipient other than the agent is
        told, unless it is the requester. From then on readings made up to now lead to no notice.
        """


class RouteRows(Protocol):
    """What the rules in `ultramon.core.routes` read and write, all of it in one transaction.

    A store that implements this gets every rule from there.
    """

    def registration(self, agent_id: str) -> Registration | None:
        """Return an agent's registration; None when nobody registered it."""

    def put_registration(
        self,
        agent_id: str,
        notify_id: str,
        *,
        source: str,
        ladder: str | None,
        registered_by: str,
        registered_at: float,
    ) -> None:
        """Store a registration in place of the agent's older one.

        Args:
            agent_id: The agent that it is about.
            notify_id: Who is told.
            source: ``explicit`` or ``parent``.
            ladder: JSON text, to be kept as it is; None = the agent's own.
            registered_by: Who asked.
            registered_at: Epoch seconds.
        """

    def delete_registration(self, agent_id: str) -> bool:
        """Delete an agent's registration; False when there was none."""

    def set_target(self, agent_id: str, notify_id: str) -> None:
        """Change who is told about a registered agent, and nothing else of its registration."""

    def sender(self, agent_id: str) -> tuple[float, int, int, float] | None:
        """Return how far an agent has come as a sender of notices, None before it moved.

        Returns:
            Start of its life (epoch seconds), generation and epoch, in which older ones are
            stale; and when it was last cleared from outside (epoch seconds), 0.0 for never.
        """

    def move_sender(self, agent_id: str, started_at: float, generation: int, epoch: int) -> None:
        """Store how far an agent has come; when it was cleared stays as it is."""

    def note_clear(
        self, agent_id: str, started_at: float, generation: int, epoch: int, cleared_at: float
    ) -> None:
        """Store when an agent was cleared; the rest only of one that has no such row yet."""

    def announcement(self, agent_id: str, audience: str) -> tuple[int, str] | None:
        """Return epoch and level that a recipient was told last about an agent."""

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        """Store what `announcement` returns from now on."""

    def forget_announcements(self, agent_id: str) -> None:
        """Delete what anybody was told about an agent."""

    def cancel(self, sender: str, category: str) -> tuple[int, int]:
        """Cancel undelivered messages, as `Queue.cancel` does.

        Returns:
            How many were deleted, and how many are in flight.
        """

    def cancel_levels(self, sender: str) -> bool:
        """Cancel undelivered notices of the levels an agent reached; return whether there were any.

        A claimed one is repeated to nobody.
        """

    def hasten(self, recipient: str, sender: str, delivery: str) -> None:
        """Give undelivered notices about an agent at least this mode.

        An urgent notice would otherwise overtake the older ones about the same agent.
        """

    def send(
        self,
        recipient: str,
        text: str,
        now: float,
        *,
        sender: str,
        category: str,
        delivery: str,
        facts: dict[str, Any],
    ) -> None:
        """Queue a message; one too many of its category takes the place of the oldest."""


def registry_of(backend: object) -> Registry:
    """Return the registrations of a backend.

    Raises:
        ConfigurationError: It keeps none.
    """
    registry: Registry | None = getattr(backend, "registry", None)
    if registry is None:
        raise ConfigurationError("backend", type(backend).__name__, "one that keeps registrations")
    return registry
