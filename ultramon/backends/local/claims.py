"""The claims of handoffs in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.base import Claim
from ultramon.backends.local.event_rows import has_kinds, insert_event, read_event
from ultramon.backends.local.journal import TOOL_TIMEOUT_SECONDS
from ultramon.backends.local.journal_clock import known_skew_in, skew_in
from ultramon.backends.local.route_rows import JournalRows
from ultramon.backends.local.schema import CLAIMS_VERSION
from ultramon.errors import HandoffTakenError
from ultramon.notices.router import route_noted
from ultramon.system.timestamps import format_time, parse_time

if TYPE_CHECKING:
    from ultramon.backends.local.connection import JournalConnection
    from ultramon.backends.local.journal import Journal
    from ultramon.backends.sql_rows import SqlConnection
    from ultramon.state.record import StateRecord

_CLAIM = (
    "INSERT INTO main.handoff_claims AS c"
    " (handoff_id, agent_id, successor_id, claimed_at, claimant, number, status)"
    " VALUES (?, ?, ?, ?, ?, 1, 'pending') ON CONFLICT (handoff_id) DO UPDATE SET"
    " successor_id = excluded.successor_id, claimed_at = excluded.claimed_at,"
    " claimant = excluded.claimant, number = c.number + 1, status = 'pending'"
    " WHERE c.status = 'released'"
    " OR (c.status = 'pending' AND c.successor_id = excluded.successor_id)"
)
_PENDING = (
    "SELECT handoff_id, agent_id, successor_id, claimed_at, claimant, number"
    " FROM handoff_claims WHERE status = 'pending'"
)
_KINDS = (str, str, str, str, (str, type(None)), int)
_EVENTS = (
    "SELECT payload FROM events WHERE agent_id = ? AND type = 'handoff_ready' ORDER BY id DESC"
)


class JournalClaims:
    """The claims of handoffs in the journal; the three verbs are those of `Backend`.

    Args:
        journal: Where they are.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def claim_handoff(
        self,
        handoff_id: str,
        agent_id: str,
        successor_id: str,
        *,
        now: float,
        claimant: str | None = None,
    ) -> str:
        self._journal.make_directory()
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            at = format_time(now + skew_in(connection))
            return claim(connection, (handoff_id, agent_id, successor_id, at, claimant))

    def _check_claim(self, record: StateRecord) -> bool:
        """Make sure that a first state may be stored; return whether a claim is to be confirmed.

        A claim that is not there, because its journal was set aside, is made anew.

        Raises:
            HandoffTakenError: Another agent holds the handoff, or the claim was released.
        """
        handoff_id = record.continues_handoff_id
        if handoff_id is None:
            return False
        agent_id = record.predecessor_id or ""
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            query = "SELECT agent_id, successor_id, status FROM handoff_claims WHERE handoff_id = ?"
            row = connection.execute(query, (handoff_id,)).fetchone()
            if row is None:
                at = format_time(record.last_heartbeat + skew_in(connection))
                connection.execute(_CLAIM, (handoff_id, agent_id, record.agent_id, at, None))
                return True
        raise_if_taken(record, *row)
        return bool(row[2] == "pending")

    def _confirm_claim(self, record: StateRecord) -> None:
        """Note that the state of a successor is stored."""
        self._journal.execute(
            "UPDATE handoff_claims SET status = 'confirmed'"
            " WHERE handoff_id = ? AND successor_id = ? AND status = 'pending'",
            record.continues_handoff_id,
            record.agent_id,
        )

    def pending_claims(self) -> list[Claim]:
        def pending(connection: JournalConnection) -> list[Claim]:
            rows, skew_seconds = connection.execute(_PENDING).fetchall(), known_skew_in(connection)
            whole = [row for row in rows if has_kinds(row, _KINDS)]
            return [_read_claim(connection, row, skew_seconds) for row in whole]

        return self._journal.read(CLAIMS_VERSION, pending) or []

    def settle_claim(self, claim: Claim, handoff_ready: dict[str, Any] | None) -> bool:
        with self._journal.transaction(TOOL_TIMEOUT_SECONDS) as connection:
            is_settled = settle(connection, claim, is_released=handoff_ready is not None)
            if is_settled and handoff_ready is not None:
                insert_event(connection, handoff_ready)
                route_noted(JournalRows(connection), [handoff_ready], ())
        return is_settled


def claim(connection: SqlConnection, values: tuple[object, ...]) -> str:
    """Claim a handoff that is free, or that the same successor holds; return who has it then.

    Args:
        connection: Within a transaction.
        values: Handoff, its agent, the successor, the time by the store's clock, the claimant.
    """
    connection.execute(_CLAIM, values)
    query = "SELECT successor_id FROM main.handoff_claims WHERE handoff_id = ?"
    return str(connection.execute(query, values[:1]).fetchone()[0])


def settle(connection: SqlConnection, claim: Claim, *, is_released: bool) -> bool:
    """Release or confirm a claim within a transaction; False when it is not pending any more."""
    done = connection.execute(
        "UPDATE main.handoff_claims SET status = ?"
        " WHERE handoff_id = ? AND number = ? AND status = 'pending'",
        ("released" if is_released else "confirmed", claim.handoff_id, claim.number),
    )
    return bool(done.rowcount == 1)


def raise_if_taken(record: StateRecord, agent_id: str, successor_id: str, status: str) -> None:
    """Raise `HandoffTakenError` where a state continues a handoff that is not its agent's."""
    # The row of a released claim stays for this: a slow claimant must not win silently.
    if status == "released":
        raise HandoffTakenError(agent_id, None)
    if successor_id != record.agent_id:
        raise HandoffTakenError(agent_id, successor_id)


def _read_claim(connection: JournalConnection, row: tuple[Any, ...], skew_seconds: float) -> Claim:
    handoff_id, agent_id, successor_id, claimed_at, claimant, number = row
    payloads = [payload for (payload,) in connection.execute(_EVENTS, (agent_id,))]
    offer, at = find_offer(payloads, handoff_id), (parse_time(claimed_at) or 0.0) - skew_seconds
    return Claim(handoff_id, agent_id, successor_id, at, claimant, number, offer)


def find_offer(payloads: list[str], handoff_id: str) -> dict[str, Any] | None:
    """Return the first of some ``handoff_ready`` events that offers a handoff."""
    for payload in payloads:
        event = read_event(payload)
        handoff = None if event is None else event.get("handoff")  # None = a damaged row
        if isinstance(handoff, dict) and handoff.get("handoffId") == handoff_id:
            return event
    return None
