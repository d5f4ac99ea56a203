"""The clock of a journal: its leases, retries and expiries go by it, whatever the wall clock shows.

For each boot of a machine the journal keeps how far the wall clock was ahead of the boot's own
clock when the first writer needed the time. Within that boot the journal's clock is the boot's
clock by so much ahead: to set the wall clock moves nothing.
"""

from __future__ import annotations

from ultramon.backends.store_time import skew
from ultramon.notices.message_rules import MAX_BACKOFF_SECONDS, MAX_HELD_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.backends.local.connection import JournalConnection

UNKNOWN_LEASE_SECONDS = 3_600.0
"""The longest lease of a message whose claimer stored no length: an earlier version's."""

# `ultramon.backends.store_time.bounded` in SQL, for many rows at once.
_HELD = f"max(0, min(available_at - queued_at, {MAX_HELD_SECONDS}))"
_BACKOFF = f"iif(attempts, min(1 << min(attempts, 16), {MAX_BACKOFF_SECONDS}), {_HELD})"
_LEASE = f"coalesce(lease_seconds, {UNKNOWN_LEASE_SECONDS})"
_CLAIMED = "state IN (1, 3) AND claimed_until > :at"
CLAIMED_AHEAD = f"{_CLAIMED} + {_LEASE}"
LONG_CLAIMED_AHEAD = f"{_CLAIMED} + {UNKNOWN_LEASE_SECONDS}"
"""`CLAIMED_AHEAD` for a journal that is older than its clock."""
WAITS_AHEAD = f"state = 0 AND available_at > :at + {_BACKOFF}"


def skew_in(connection: JournalConnection) -> float:
    """Return how many seconds the journal's clock is ahead of the wall clock.

    Within a transaction that may write: the first one of a boot notes the boot.
    """
    boot = connection.read_boot()
    if not boot.boot_id:
        return 0.0
    found = _offset(connection, boot.boot_id)
    if found is not None:
        return skew(found, boot.offset_seconds)
    connection.execute("INSERT OR REPLACE INTO boots VALUES (?, ?)", boot)
    return 0.0


def known_skew_in(connection: JournalConnection) -> float:
    """Return what `skew_in` does in a transaction that only reads; 0.0 without a clock."""
    from ultramon.backends.local.schema import CLOCK_VERSION

    (version,) = connection.execute("PRAGMA user_version").fetchone()
    boot = connection.read_boot()
    found = _offset(connection, boot.boot_id) if version >= CLOCK_VERSION else None
    return 0.0 if found is None else skew(found, boot.offset_seconds)


def _offset(connection: JournalConnection, boot_id: str) -> float | None:
    row = connection.execute(
        "SELECT offset_seconds FROM boots WHERE boot_id = ?", (boot_id,)
    ).fetchone()
    # In a damaged row it may be anything.
    return row[0] if row is not None and isinstance(row[0], float) else None


def bound_claimed(connection: JournalConnection, at: float) -> None:
    """End claims of messages at most their length after this look."""
    connection.execute(
        f"UPDATE messages SET claimed_until = :at + {_LEASE} WHERE {CLAIMED_AHEAD}", {"at": at}
    )


def bound_waiting(connection: JournalConnection, recipient: str, at: float) -> bool:
    """Make a recipient's messages due at most their backoff, or hold, after this look.

    One that was queued ahead of this time counts as queued now.

    Returns:
        Whether there was one.
    """
    done = connection.execute(
        f"UPDATE messages SET available_at = min(available_at, :at + {_BACKOFF}),"
        " queued_at = min(queued_at, :at),"
        " expires_at = min(expires_at, :at + expires_at - queued_at)"
        f" WHERE recipient = :recipient AND {WAITS_AHEAD}",
        {"at": at, "recipient": recipient},
    )
    return done.rowcount > 0
