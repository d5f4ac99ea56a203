"""The tables of the journal, one step per version: a journal is brought up to date in place.

Statements are separated by semicolons, so that none may stand inside one. A step that was released
is never changed; `tests/data/journals` keeps a journal of each version.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

# Event ids count on from the time the journal was made: a cursor into a journal that was set aside
# then lies before everything in the one that follows.
MIGRATIONS = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        run TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        generation INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        occurred_at TEXT NOT NULL,
        payload TEXT NOT NULL
    );
    CREATE INDEX events_by_agent ON events (agent_id, id);
    INSERT INTO sqlite_sequence
    VALUES ('events', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000);
    CREATE TABLE handoff_claims (
        handoff_id TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL,
        successor_id TEXT NOT NULL,
        claimed_at TEXT NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE consumers (
        name TEXT PRIMARY KEY,
        cursor TEXT,
        memory TEXT NOT NULL,
        holder TEXT,
        lease_until REAL NOT NULL
    );
    """,
    """
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        recipient TEXT NOT NULL,
        sender TEXT,
        category TEXT,
        priority INTEGER NOT NULL,
        text TEXT NOT NULL,
        facts TEXT NOT NULL,
        dedupe_key TEXT,
        state INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        claim_token TEXT,
        claimed_until REAL,
        available_at REAL NOT NULL,
        queued_at REAL NOT NULL,
        expires_at REAL NOT NULL,
        last_error TEXT
    );
    CREATE INDEX messages_ready ON messages (recipient, priority, id) WHERE state = 0;
    CREATE INDEX messages_by_category ON messages (recipient, category, id) WHERE state = 0;
    CREATE INDEX messages_claimed ON messages (claimed_until) WHERE state IN (1, 3);
    CREATE INDEX messages_by_sender ON messages (sender, category) WHERE state IN (0, 1);
    CREATE INDEX messages_by_expiry ON messages (expires_at) WHERE state IN (0, 4);
    CREATE UNIQUE INDEX messages_once ON messages (recipient, dedupe_key)
        WHERE dedupe_key IS NOT NULL AND state IN (0, 1, 4);
    CREATE TABLE message_losses (
        recipient TEXT NOT NULL,
        reason TEXT NOT NULL,
        count INTEGER NOT NULL,
        PRIMARY KEY (recipient, reason)
    ) WITHOUT ROWID;
    CREATE TABLE senders (
        agent_id TEXT PRIMARY KEY,
        started_at REAL NOT NULL,
        generation INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        cleared_at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE registrations (
        agent_id TEXT PRIMARY KEY,
        notify_id TEXT NOT NULL,
        source TEXT NOT NULL,
        ladder TEXT,
        registered_by TEXT NOT NULL,
        registered_at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE announcements (
        agent_id TEXT NOT NULL,
        audience TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        level TEXT NOT NULL,
        announced_at REAL NOT NULL,
        PRIMARY KEY (agent_id, audience)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE credentials (
        token_hash TEXT PRIMARY KEY,
        agent_id TEXT NOT NULL,
        generation INTEGER NOT NULL,
        minted_by TEXT,
        minted_at REAL NOT NULL,
        expires_at REAL NOT NULL
    ) WITHOUT ROWID;
    CREATE INDEX credentials_by_agent ON credentials (agent_id, generation);
    CREATE INDEX credentials_by_expiry ON credentials (expires_at);
    """,
    # What was claimed before could not say whether its successor began: it counts as confirmed.
    """
    ALTER TABLE handoff_claims ADD COLUMN claimant TEXT;
    ALTER TABLE handoff_claims ADD COLUMN number INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE handoff_claims ADD COLUMN status TEXT NOT NULL DEFAULT 'confirmed';
    CREATE INDEX handoff_claims_pending ON handoff_claims (handoff_id) WHERE status = 'pending';
    """,
    # How far the wall clock was ahead of each boot's own clock. Leases of before have no length.
    """
    CREATE TABLE boots (
        boot_id TEXT PRIMARY KEY,
        offset_seconds REAL NOT NULL
    ) WITHOUT ROWID;
    ALTER TABLE messages ADD COLUMN lease_seconds REAL;
    ALTER TABLE consumers ADD COLUMN lease_seconds REAL;
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
QUEUE_VERSION = 3
"""The first version with a queue and registrations: an older journal holds none of either."""
CREDENTIALS_VERSION = 4
"""The first version with credentials: an older journal knows no token."""
CLAIMS_VERSION = 5
"""The first version with pending claims: an older journal holds confirmed ones alone."""
CLOCK_VERSION = 6
"""The first version with a clock of its own: an older journal goes by the wall clock."""


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the tables of an open SQLite database up to date, as one step."""
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    try:
        (version,) = execute("PRAGMA user_version").fetchone()
        for migration in MIGRATIONS[version:]:
            for statement in migration.split(";"):
                if statement.strip():
                    execute(statement)
        execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        execute("COMMIT")
    finally:
        if connection.in_transaction:
            execute("ROLLBACK")
