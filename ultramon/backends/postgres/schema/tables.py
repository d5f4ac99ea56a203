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
    # Rows that a machine mirrors, and every reading. The id of a mirrored agent begins with that of
    # its machine: no machine can take the name, the messages or the event keys of another agent.
    # Sums of a day are kept by triggers, whichever way a row comes; they outlive its readings.
    """
    CREATE TABLE ultramon.machines (
        machine_id text COLLATE "C" PRIMARY KEY CHECK (machine_id ~ '^m[0-9a-f]{8,32}$'),
        database_user name NOT NULL DEFAULT session_user,
        name text,
        sent_fields text NOT NULL DEFAULT '',
        retention_seconds double precision,
        position bigint NOT NULL DEFAULT 0,
        first_seen double precision NOT NULL,
        last_seen double precision NOT NULL
    );
    CREATE INDEX machines_by_user ON ultramon.machines (database_user);
    ALTER TABLE ultramon.agents
        ADD COLUMN machine_id text COLLATE "C",
        ADD COLUMN host text,
        ADD COLUMN model text,
        ADD COLUMN has_parent boolean,
        ADD COLUMN epoch bigint,
        ADD COLUMN level text,
        ADD COLUMN measured_at double precision,
        ADD COLUMN used_tokens bigint,
        ADD COLUMN limit_tokens bigint,
        ADD CONSTRAINT agents_of_machine CHECK (starts_with(agent_id, machine_id || '-'));
    CREATE INDEX agents_mirrored ON ultramon.agents (machine_id) WHERE machine_id IS NOT NULL;
    ALTER TABLE ultramon.heartbeats
        ADD COLUMN machine_id text COLLATE "C",
        ADD CONSTRAINT heartbeats_of_machine CHECK (starts_with(agent_id, machine_id || '-'));
    ALTER TABLE ultramon.events
        ADD COLUMN machine_id text COLLATE "C",
        ADD CONSTRAINT events_of_machine CHECK (machine_id IS NULL OR
            starts_with(agent_id, machine_id || '-') AND starts_with(key, agent_id || '/'));
    CREATE TABLE ultramon.readings (
        at double precision NOT NULL,
        agent_id text COLLATE "C" NOT NULL,
        machine_id text COLLATE "C",
        host text,
        model text,
        epoch bigint NOT NULL,
        level text,
        used_tokens bigint NOT NULL,
        limit_tokens bigint,
        input_tokens bigint,
        cache_read_tokens bigint,
        cache_write_tokens bigint,
        output_tokens bigint,
        cost_usd double precision,
        CONSTRAINT readings_of_machine CHECK (starts_with(agent_id, machine_id || '-'))
    );
    CREATE INDEX readings_by_time ON ultramon.readings USING brin (at) WITH (pages_per_range = 32);
    CREATE TABLE ultramon.reading_days (
        day date NOT NULL,
        agent_id text COLLATE "C" NOT NULL,
        model text NOT NULL,
        machine_id text COLLATE "C",
        host text,
        has_parent boolean,
        readings bigint NOT NULL DEFAULT 0,
        peak_tokens bigint,
        input_tokens bigint,
        cache_read_tokens bigint,
        cache_write_tokens bigint,
        output_tokens bigint,
        cost_usd double precision,
        crossings bigint NOT NULL DEFAULT 0,
        compactions bigint NOT NULL DEFAULT 0,
        PRIMARY KEY (day, agent_id, model)
    ) WITH (fillfactor = 70);
    CREATE FUNCTION ultramon.sum_readings() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp AS $$ BEGIN
        INSERT INTO ultramon.reading_days AS d (day, agent_id, model, machine_id, host, has_parent,
            readings, peak_tokens, input_tokens, cache_read_tokens, cache_write_tokens,
            output_tokens, cost_usd)
        SELECT (to_timestamp(r.at) AT TIME ZONE 'UTC')::date, r.agent_id, coalesce(r.model, ''),
            max(r.machine_id), max(r.host), bool_or(a.has_parent), count(*), max(r.used_tokens),
            sum(r.input_tokens), sum(r.cache_read_tokens), sum(r.cache_write_tokens),
            sum(r.output_tokens), sum(r.cost_usd)
        FROM added r LEFT JOIN ultramon.agents a USING (agent_id) GROUP BY 1, 2, 3
        ON CONFLICT (day, agent_id, model) DO UPDATE SET
            readings = d.readings + excluded.readings,
            peak_tokens = greatest(d.peak_tokens, excluded.peak_tokens),
            input_tokens = coalesce(d.input_tokens + excluded.input_tokens,
                d.input_tokens, excluded.input_tokens),
            cache_read_tokens = coalesce(d.cache_read_tokens + excluded.cache_read_tokens,
                d.cache_read_tokens, excluded.cache_read_tokens),
            cache_write_tokens = coalesce(d.cache_write_tokens + excluded.cache_write_tokens,
                d.cache_write_tokens, excluded.cache_write_tokens),
            output_tokens = coalesce(d.output_tokens + excluded.output_tokens,
                d.output_tokens, excluded.output_tokens),
            cost_usd = coalesce(d.cost_usd + excluded.cost_usd, d.cost_usd, excluded.cost_usd);
        RETURN NULL;
        END $$;
    CREATE TRIGGER readings_summed AFTER INSERT ON ultramon.readings
        REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION ultramon.sum_readings();
    CREATE FUNCTION ultramon.sum_events() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
        SET search_path = pg_catalog, pg_temp AS $$ BEGIN
        INSERT INTO ultramon.reading_days AS d (day, agent_id, model, machine_id, host, has_parent,
            crossings, compactions)
        SELECT left(e.occurred_at, 10)::date, e.agent_id, coalesce(a.model, ''), a.machine_id,
            a.host, a.has_parent, count(*) FILTER (WHERE e.type = 'context_threshold_reached'),
            count(*) FILTER (WHERE e.type = 'context_epoch_started')
        FROM added e JOIN ultramon.agents a USING (agent_id)
        -- Texts have their quotes escaped: what is found is the member of the event. To parse it
        -- would refuse what PostgreSQL cannot decode.
        WHERE e.type = 'context_threshold_reached' OR e.type = 'context_epoch_started' AND
            (e.payload LIKE '%"reason":"compaction"%' OR e.payload LIKE '%"reason":"fall"%')
        GROUP BY 1, 2, 3, 4, 5, 6
        ON CONFLICT (day, agent_id, model) DO UPDATE SET
            crossings = d.crossings + excluded.crossings,
            compactions = d.compactions + excluded.compactions;
        RETURN NULL;
        END $$;
    CREATE TRIGGER events_summed AFTER INSERT ON ultramon.events
        REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION ultramon.sum_events();
    """,
)
SCHEMA_VERSION = len(MIGRATIONS)
