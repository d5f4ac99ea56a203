"""The rows that the rules of routing read and write, as a port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ultramon.notices.message import Cancelled
    from ultramon.notices.registration import StoredRegistration


class RouteRows(Protocol):
    """What the rules in `ultramon.notices.router` read and write, all of it in one transaction.

    A store that implements this gets every rule from there.
    """

    def registration(self, agent_id: str) -> StoredRegistration | None:
        """Return an agent's registration; None when it has none."""

    def put_registration(self, registration: StoredRegistration) -> None:
        """Store a registration in place of the agent's older one, its ``ladder_json`` as it is."""

    def delete_registration(self, agent_id: str) -> bool:
        """Delete an agent's registration; False when there was none."""

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
        """Return epoch and level of a recipient's last notice about an agent's window."""

    def announce(self, agent_id: str, audience: str, epoch: int, level: str, now: float) -> None:
        """Store what `announcement` returns from now on."""

    def forget_announcements(self, agent_id: str) -> None:
        """Delete the announcements of an agent to all recipients."""

    def cancel(self, sender: str, category: str) -> Cancelled:
        """Cancel undelivered messages, as `Queue.cancel_messages_from` does."""

    def cancel_levels(self, sender: str) -> bool:
        """Cancel undelivered notices of the levels an agent reached; return whether there were any.

        A claimed one is not delivered again.
        """

    def send(
        self,
        recipient: str,
        text: str,
        facts: dict[str, Any],
        now: float,
        held_seconds: float = 0.0,
    ) -> None:
        """Queue a notice; one too many of its category takes the place of the oldest.

        It is delivered ``held_seconds`` after ``now`` at the earliest.

        Undelivered notices about the same agent get at least its mode: an urgent one would
        otherwise overtake the older ones.
        """
