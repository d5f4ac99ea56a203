"""The tables in a PostgreSQL database, one step per version; brought up to date in place.

`ultramon.` stands for the schema's name, whatever it is. A step that was released is never
changed. Times are epoch seconds of the server's clock; documents are text, because the checksum
of a state is over its bytes.
"""

from __future__ import annotations

# Ids are compared byte by byte (COLLATE "C"), as Python sorts them. A fillfactor leaves room for
# the next version of a row on its page.
MIGRATIONS = (
    """
    CREATE TABLE ultramon.agents (
        agent_id text COLLATE "C" PRIMARY KEY,
        generation bigint NOT NULL,
        seq bigint NOT NULL,
        schema_version integer NOT NULL,
        run text NOT NULL,
        active boolean NOT NULL,
        urgency smallint NOT NULL,
        waiting boolean NOT NULL,
        usage_ratio double precision,
        skew_seconds double precision NOT NULL,
        started_at double precision NOT NULL,
        last_heartbeat double precision NOT NULL,
        stale_after_seconds double precision,
        lost_after_seconds double precision NOT NULL,
        machine bigint NOT NULL,
        process text,
        label text,
        shown_id text COLLATE "C",
        document text NOT NULL CHECK (octet_length(document) <= 1048576),
        changed xid8 NOT NULL DEFAULT pg_current_xact_id()
    ) WITH (fillfactor = 70);
    CREATE INDEX agents_changed ON ultramon.agents (changed);
    CREATE INDEX agents_by_urgency
        ON ultramon.agents (urgency DESC, coalesce(usage_ratio, 0) DESC, agent_id) WHERE active;
    CREATE INDEX agents_ended
        ON ultramon.agents (coalesce(usage_ratio, 0) DESC, agent_id) WHERE NOT active;
    CREATE INDEX agents_by_patience
        ON ultramon.agents (least(stale_after_seconds, lost_after_seconds)) WHERE active;
    CREATE INDEX agents_by_machine ON ultramon.agents (machine) WHERE active;
    CREATE INDEX agents_by_label ON ultramon.agents USING hash (label) WHERE label IS NOT NULL;
    CREATE INDEX agents_by_shown_id ON ultramon.agents (shown_id) WHERE shown_id IS NOT NULL;
    CREATE TABLE ultramon.heartbeats (
        agent_id text COLLATE "C" PRIMARY KEY
            REFERENCES ultramon.agents (agent_id) ON DELETE CASCADE,
        generation bigint NOT NULL,
        at double precision NOT NULL,
        changed xid8 NOT NULL DEFAULT pg_current_xact_id()
    ) WITH (fillfactor = 50);
    CREATE TABLE ultramon.pruned_agents (
        agent_id text COLLATE "C" NOT NULL,
        at double precision NOT NULL,
        changed xid8 NOT NULL DEFAULT pg_current_xact_id()
    );
    CREATE INDEX pruned_agents_changed ON ultramon.pruned_agents (changed);
    CREATE TABLE ultramon.corrupt_states (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        agent_id text COLLATE "C" NOT NULL,
        document text NOT NULL,
        at double precision NOT NULL
    );
    CREATE INDEX corrupt_states_by_agent ON ultramon.corrupt_states (agent_id, id);
    CREATE TABLE ultramon.requests (
        agent_id text COLLATE "C" PRIMARY KEY
            REFERENCES ultramon.agents (agent_id) ON DELETE CASCADE,
        document text NOT NULL
    );
    CREATE TABLE ultramon.events (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
        key text COLLATE "C" NOT NULL UNIQUE,
        type text NOT NULL,
        run text NOT NULL,
        agent_id text COLLATE "C" NOT NULL,
        occurred_at text COLLATE "C" NOT NULL,
        payload text NOT NULL
    );
    CREATE INDEX events_in_commit_order ON ultramon.events (txid, id);
    CREATE INDEX events_by_agent ON ultramon.events (agent_id, id);
    CREATE INDEX events_by_time ON ultramon.events (occurred_at);
    CREATE TABLE ultramon.handoff_claims (
        handoff_id text COLLATE "C" PRIMARY KEY,
        agent_id text COLLATE "C" NOT NULL,
        successor_id text COLLATE "C" NOT NULL,
        claimed_at double precision NOT NULL
    );
    CREATE TABLE ultramon.consumers (
        name text COLLATE "C" PRIMARY KEY,
        cursor text,
        memory text NOT NULL,
        holder text,
        lease_until double precision NOT NULL
    );
    CREATE TABLE ultramon.messages (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        recipient text COLLATE "C" NOT NULL,
        sender text COLLATE "C",
        category text,
        priority smallint NOT NULL,
        text text NOT NULL,
        facts text NOT NULL,
        dedupe_key text,
        state smallint NOT NULL,
        attempts smallint NOT NULL,
        claim_token text,
        claimed_until double precision,
        available_at double precision NOT NULL,
        queued_at double precision NOT NULL,
        expires_at double precision NOT NULL,
        last_error text
    ) WITH (fillfactor = 80);
    CREATE INDEX messages_ready ON ultramon.messages (recipient, priority, id) WHERE state = 0;
    CREATE INDEX messages_by_category ON ultramon.messages (recipient, category, id)
        WHERE state = 0;
    CREATE INDEX messages_claimed ON ultramon.messages (claimed_until) WHERE state IN (1, 3);
    CREATE INDEX messages_by_sender ON ultramon.messages (sender, category)
        WHERE state IN (0, 1);
    CREATE INDEX messages_by_expiry ON ultramon.messages (expires_at) WHERE state IN (0, 4);
    CREATE UNIQUE INDEX messages_once ON ultramon.messages (recipient, dedupe_key)
        WHERE dedupe_key IS NOT NULL AND state IN (0, 1, 4);
    CREATE TABLE ultramon.message_losses (
        recipient text COLLATE "C" NOT NULL,
        reason text NOT NULL,
        count bigint NOT NULL,
        PRIMARY KEY (recipient, reason)
    );
    CREATE TABLE ultramon.senders (
        agent_id text COLLATE "C" PRIMARY KEY,
        started_at double precision NOT NULL,
        generation bigint NOT NULL,
        epoch bigint NOT NULL,
        cleared_at double precision NOT NULL
    );
    CREATE TABLE ultramon.registrations (
        agent_id text COLLATE "C" PRIMARY KEY,
        notify_id text COLLATE "C" NOT NULL,
        source text NOT NULL,
        ladder text,
        registered_by text NOT NULL,
        registered_at double precision NOT NULL
    );
    CREATE TABLE ultramon.announcements (
        agent_id text COLLATE "C" NOT NULL,
        audience text COLLATE "C" NOT NULL,
        epoch bigint NOT NULL,
        level text NOT NULL,
        announced_at double precision NOT NULL,
        PRIMARY KEY (agent_id, audience)
    );
    CREATE TABLE ultramon.credentials (
        token_hash text COLLATE "C" PRIMARY KEY,
        agent_id text COLLATE "C" NOT NULL,
        generation bigint NOT NULL,
        minted_by text,
        minted_at double precision NOT NULL,
        expires_at double precision NOT NULL
    );
    CREATE INDEX credentials_by_agent ON ultramon.credentials (agent_id);
    """,
    # What was claimed before could not say whether its successor began: it counts as confirmed.
    """
    ALTER TABLE ultramon.handoff_claims
        ADD COLUMN claimant text,
        ADD COLUMN number bigint NOT NULL DEFAULT 1,
        ADD COLUMN status text NOT NULL DEFAULT 'confirmed';
    CREATE INDEX handoff_claims_pending ON ultramon.handoff_claims (handoff_id)
        WHERE status = 'pending';
    """,
    # The points of `ultramon.state.history_ring`, as they are.
    """
    ALTER TABLE ultramon.agents ADD COLUMN history bytea;
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
