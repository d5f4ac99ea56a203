"""The claims of handoffs in PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Claim
from ultramon.backends.local.claims import claim, find_offer, raise_if_taken, settle
from ultramon.notices import router

if TYPE_CHECKING:
    from ultramon.backends.postgres.connection.database import Connection, Database
    from ultramon.backends.postgres.store.event_log import EventLog
    from ultramon.backends.postgres.store.registry import PostgresRegistry
    from ultramon.state.record import StateRecord

_PENDING = (
    "SELECT handoff_id, agent_id, successor_id, claimed_at, claimant, number, ARRAY("
    "  SELECT e.payload FROM ultramon.events e WHERE e.agent_id = c.agent_id"
    "  AND e.type = 'handoff_ready' ORDER BY e.id DESC)"
    " FROM ultramon.handoff_claims c WHERE status = 'pending'"
)


@dataclass(frozen=True, slots=True)
class Claims:
    """The rows of claims.

    Attributes:
        database: Where they are.
        log: Stores repeated offers.
        registry: The recipients of their notices.
    """

    database: Database
    log: EventLog
    registry: PostgresRegistry

    def claim_handoff(
        self,
        handoff_id: str,
        agent_id: str,
        successor_id: str,
        *,
        now: float,
        claimant: str | None = None,
    ) -> str:
        at = self.database.to_server(now)
        with self.database.transaction() as connection:
            return claim(connection, (handoff_id, agent_id, successor_id, at, claimant))

    def confirm(self, connection: Connection, record: StateRecord) -> None:
        """Confirm the claim of an agent within the transaction that stores its first state.

        A claim that is not there is made anew.

        Raises:
            HandoffTakenError: Another agent holds the handoff, or the claim was released.
        """
        handoff_id = record.continues_handoff_id
        if handoff_id is None:
            return
        at = self.database.to_server(record.last_heartbeat)
        connection.execute(
            "INSERT INTO ultramon.handoff_claims"
            " (handoff_id, agent_id, successor_id, claimed_at) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (handoff_id) DO NOTHING",
            (handoff_id, record.predecessor_id or "", record.agent_id, at),
        )
        [held] = connection.execute(
            "UPDATE ultramon.handoff_claims SET status ="
            " CASE WHEN status = 'pending' AND successor_id = %s THEN 'confirmed' ELSE status END"
            " WHERE handoff_id = %s RETURNING agent_id, successor_id, status",
            (record.agent_id, handoff_id),
        )
        raise_if_taken(record, *held)

    def pending_claims(self) -> list[Claim]:
        rows, from_server = self.database.select(_PENDING), self.database.from_server
        return [
            Claim(
                handoff_id,
                agent_id,
                successor_id,
                from_server(at),
                claimant,
                number,
                find_offer(payloads, handoff_id),
            )
            for handoff_id, agent_id, successor_id, at, claimant, number, payloads in rows
        ]

    def settle_claim(self, claim: Claim, handoff_ready: dict[str, Any] | None) -> bool:
        """See `Backend.settle_claim`; a state and its confirmation are stored as one step."""
        with self.database.transaction() as connection:
            is_settled = settle(connection, claim, is_released=handoff_ready is not None)
            if is_settled and handoff_ready is not None:
                new = self.log.insert(connection, [handoff_ready])
                router.route_noted(self.registry.rows(connection), new, ())
        return is_settled
