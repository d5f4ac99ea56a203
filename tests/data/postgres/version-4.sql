CREATE FUNCTION ultramon.beat(text[], bigint[], double precision) RETURNS SETOF text
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        PERFORM set_config('synchronous_commit', 'off', true),
            set_config('lock_timeout', '2s', true);
        RETURN QUERY WITH beaten AS (
            UPDATE ultramon.heartbeats h SET at = $3, changed = pg_current_xact_id()
            FROM unnest($1, $2) AS u (agent_id, generation)
            WHERE h.agent_id = u.agent_id AND h.generation = u.generation
                AND h.machine_id IS NULL
            RETURNING h.agent_id
        ) SELECT u.agent_id FROM unnest($1) AS u (agent_id)
            WHERE u.agent_id NOT IN (SELECT agent_id FROM beaten);
         END $_$;
CREATE FUNCTION ultramon.enter(json, json, double precision) RETURNS boolean
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$ #variable_conflict use_column
 DECLARE id text COLLATE "C" := $1->>'agent_id'; BEGIN 
        PERFORM set_config('lock_timeout', '1s', true);
        -- As `States.lock`: one start of an id at a time, and what comes next sees the one before.
        PERFORM pg_advisory_xact_lock(hashtextextended('ultramon.' || id, 0));
        IF EXISTS (SELECT 1 FROM ultramon.agents a WHERE a.agent_id = id)
            OR EXISTS (SELECT 1 FROM ultramon.registrations r WHERE r.agent_id = id)
        THEN
            RETURN false;
        END IF;
        INSERT INTO ultramon.agents (agent_id, generation, seq, schema_version, run, active, urgency, waiting, usage_ratio, skew_seconds, started_at, last_heartbeat, stale_after_seconds, lost_after_seconds, machine, process, label, shown_id, host, model, has_parent, epoch, level, measured_at, used_tokens, limit_tokens, document, history)
            SELECT agent_id, generation, seq, schema_version, run, active, urgency, waiting, usage_ratio, skew_seconds, started_at, last_heartbeat, stale_after_seconds, lost_after_seconds, machine, process, label, shown_id, host, model, has_parent, epoch, level, measured_at, used_tokens, limit_tokens, document, history FROM json_populate_record(NULL::ultramon.agents, $1);
        -- An agent that ran on while the database was away has one.
        IF $1->>'used_tokens' IS NOT NULL THEN
            INSERT INTO ultramon.readings (at, agent_id, host, model, epoch, level, used_tokens, limit_tokens)
                SELECT measured_at, agent_id, host, model, epoch, level, used_tokens, limit_tokens FROM ultramon.agents a WHERE a.agent_id = id;
        END IF;
        INSERT INTO ultramon.heartbeats (agent_id, generation, at)
            VALUES (id, ($1->>'generation')::bigint, $3);
        INSERT INTO ultramon.events (key, type, run, agent_id, occurred_at, payload)
            SELECT e.key, e.type, e.run, e.agent_id, e.occurred_at, e.payload
            FROM json_populate_recordset(NULL::ultramon.events, $2) AS e
            ON CONFLICT (key) DO NOTHING;
        RETURN true;
         END $_$;
CREATE FUNCTION ultramon.mirror(text, bigint, double precision, json, json, json, json) RETURNS TABLE(stored bigint, filled text[])
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        UPDATE ultramon.machines m SET position = $2, last_seen = $3
            WHERE m.machine_id = $1 AND m.position < $2;
        IF NOT FOUND THEN
            RETURN QUERY SELECT max(m.position), NULL::text[] FROM ultramon.machines m
                WHERE m.machine_id = $1;
            RETURN;
        END IF;
        WITH put AS (
            INSERT INTO ultramon.agents AS a (machine_id, agent_id, generation, seq, schema_version, run, active, urgency, waiting, usage_ratio, skew_seconds, started_at, last_heartbeat, stale_after_seconds, lost_after_seconds, machine, process, label, shown_id, host, model, has_parent, epoch, level, measured_at, used_tokens, limit_tokens, document, history)
            SELECT $1, agent_id, generation, seq, schema_version, run, active, urgency, waiting, usage_ratio, skew_seconds, started_at, last_heartbeat, stale_after_seconds, lost_after_seconds, machine, process, label, shown_id, host, model, has_parent, epoch, level, measured_at, used_tokens, limit_tokens, document, history FROM json_populate_recordset(NULL::ultramon.agents, $4)
            ON CONFLICT (agent_id) DO UPDATE SET generation = excluded.generation, seq = excluded.seq, schema_version = excluded.schema_version, run = excluded.run, active = excluded.active, urgency = excluded.urgency, waiting = excluded.waiting, usage_ratio = excluded.usage_ratio, skew_seconds = excluded.skew_seconds, started_at = excluded.started_at, last_heartbeat = excluded.last_heartbeat, stale_after_seconds = excluded.stale_after_seconds, lost_after_seconds = excluded.lost_after_seconds, machine = excluded.machine, process = excluded.process, label = excluded.label, shown_id = excluded.shown_id, host = excluded.host, model = excluded.model, has_parent = excluded.has_parent, epoch = excluded.epoch, level = excluded.level, measured_at = excluded.measured_at, used_tokens = excluded.used_tokens, limit_tokens = excluded.limit_tokens, document = excluded.document, history = CASE WHEN coalesce(excluded.history, '') IN ('', substring(a.history FROM octet_length(a.history) - 15)) OR octet_length(a.history) >= 1024 THEN a.history ELSE coalesce(a.history, '') || excluded.history END,
                changed = pg_current_xact_id()
            WHERE a.machine_id = $1
                AND (a.generation, a.seq) <= (excluded.generation, excluded.seq)
            RETURNING a.agent_id, octet_length(a.history) >= 1024 AS is_full
        ) SELECT array_agg(agent_id) FILTER (WHERE is_full) INTO filled FROM put;
        INSERT INTO ultramon.heartbeats AS h (machine_id, agent_id, generation, at)
            SELECT $1, b.agent_id, b.generation, max(b.at)
            FROM json_populate_recordset(NULL::ultramon.heartbeats, $5) AS b
            JOIN ultramon.agents a ON a.agent_id = b.agent_id AND a.machine_id = $1
                AND a.generation = b.generation
            GROUP BY b.agent_id, b.generation
            ON CONFLICT (agent_id) DO UPDATE SET generation = excluded.generation,
                at = excluded.at, changed = pg_current_xact_id() WHERE h.machine_id = $1;
        INSERT INTO ultramon.events (machine_id, key, type, run, agent_id, occurred_at, payload)
            SELECT $1, key, type, run, agent_id, occurred_at, payload FROM json_populate_recordset(NULL::ultramon.events, $6)
            ON CONFLICT (key) DO NOTHING;
        INSERT INTO ultramon.readings (machine_id, at, agent_id, host, model, epoch, level, used_tokens, limit_tokens, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_usd)
            SELECT $1, at, agent_id, host, model, epoch, level, used_tokens, limit_tokens, input_tokens, cache_read_tokens, cache_write_tokens, output_tokens, cost_usd
            FROM json_populate_recordset(NULL::ultramon.readings, $7);
        RETURN QUERY SELECT $2, filled;
         END $_$;
CREATE FUNCTION ultramon.store(json, json) RETURNS TABLE(agent_id text, generation bigint, schema_version integer, fresh text[], notify_id text, source text, ladder text, registered_by text, registered_at double precision, started_at double precision, sender_generation bigint, sender_epoch bigint, cleared_at double precision, audience text, told_epoch bigint, level text, is_history_full boolean)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$ #variable_conflict use_column
 DECLARE ids text[]; generations bigint[]; versions integer[]; accepted text[]; stored text[]; filled text[]; BEGIN 
        WITH given AS MATERIALIZED (
            SELECT * FROM json_populate_recordset(NULL::ultramon.agents, $1)
        ), old AS (
            SELECT g.*, a.generation AS held, a.seq AS newest, a.schema_version AS version,
                coalesce(g.history, '') IN ('', substring(a.history FROM octet_length(a.history) - 15)) AS is_known
            FROM given g JOIN ultramon.agents a USING (agent_id)
            -- Row security hides mirrored rows from others, but not from the owner of the tables.
            WHERE a.machine_id IS NULL
            ORDER BY a.agent_id FOR UPDATE OF a
        ), put AS (
            UPDATE ultramon.agents a SET generation = old.generation, seq = old.seq, schema_version = old.schema_version, run = old.run, active = old.active, urgency = old.urgency, waiting = old.waiting, usage_ratio = old.usage_ratio, skew_seconds = old.skew_seconds, started_at = old.started_at, last_heartbeat = old.last_heartbeat, stale_after_seconds = old.stale_after_seconds, lost_after_seconds = old.lost_after_seconds, machine = old.machine, process = old.process, label = old.label, shown_id = old.shown_id, host = old.host, model = old.model, has_parent = old.has_parent, epoch = old.epoch, level = old.level, measured_at = old.measured_at, used_tokens = old.used_tokens, limit_tokens = old.limit_tokens, document = old.document, history = CASE WHEN coalesce(old.history, '') IN ('', substring(a.history FROM octet_length(a.history) - 15)) OR octet_length(a.history) >= 1024 THEN a.history ELSE coalesce(a.history, '') || old.history END,
                changed = pg_current_xact_id()
            FROM old WHERE a.agent_id = old.agent_id AND held = old.generation
                AND newest <= old.seq AND version <= 1
            RETURNING a.agent_id, octet_length(a.history) >= 1024 AS is_full
        ), measured AS (
            INSERT INTO ultramon.readings (at, agent_id, host, model, epoch, level, used_tokens, limit_tokens)
            SELECT measured_at, agent_id, host, model, epoch, level, used_tokens, limit_tokens FROM old
            WHERE is_known IS NOT TRUE AND held = generation AND newest <= seq
                AND version <= 1
        )
        SELECT array_agg(agent_id), array_agg(held), array_agg(version),
            array_agg(agent_id) FILTER (WHERE held = generation AND version <= 1),
            ARRAY(SELECT agent_id FROM put WHERE is_full)
        INTO ids, generations, versions, accepted, filled FROM old;
        IF json_array_length($2) > 0 THEN
            WITH put AS (
                INSERT INTO ultramon.events (key, type, run, agent_id, occurred_at, payload)
                SELECT e.key, e.type, e.run, e.agent_id, e.occurred_at, e.payload
                FROM json_to_recordset($2) AS e (owner text, key text, type text, run text,
                    agent_id text, occurred_at text, payload text)
                WHERE e.owner = ANY(accepted)
                ON CONFLICT (key) DO NOTHING RETURNING key
            ) SELECT array_agg(key) INTO stored FROM put;
        END IF;
        -- A statement of its own: it sees what was changed while the rows were waited for.
        RETURN QUERY SELECT u.agent_id, u.generation, u.schema_version, stored, r.notify_id,
            r.source, r.ladder, r.registered_by, r.registered_at, s.started_at, s.generation,
            s.epoch, s.cleared_at, t.audience, t.epoch, t.level,
            u.agent_id = ANY(filled)
        FROM unnest(ids, generations, versions) AS u (agent_id, generation, schema_version)
        LEFT JOIN ultramon.registrations r USING (agent_id)
        LEFT JOIN ultramon.senders s USING (agent_id)
        LEFT JOIN ultramon.announcements t USING (agent_id);
         END $_$;
CREATE FUNCTION ultramon.sum_events() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ BEGIN
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
CREATE FUNCTION ultramon.sum_readings() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$ BEGIN
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
CREATE FUNCTION ultramon.tell(json, json, text) RETURNS TABLE(recipient text, over bigint[])
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        INSERT INTO ultramon.announcements
        SELECT * FROM json_populate_recordset(NULL::ultramon.announcements, $1)
        ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,
            level = excluded.level, announced_at = excluded.announced_at;
        INSERT INTO ultramon.messages (recipient, sender, category, priority, text, facts, state,
            attempts, available_at, queued_at, expires_at)
        SELECT recipient, sender, category, priority, text, facts, 0, 0, at, at,
            at + 86400.0
        FROM json_to_recordset($2) AS m (recipient text, sender text, category text,
            priority smallint, text text, facts text, at float8);
        PERFORM pg_notify($3, v.recipient)
        FROM json_to_recordset($2) AS v (recipient text) GROUP BY v.recipient;
        RETURN QUERY SELECT u.recipient, ARRAY(
            SELECT m.id FROM ultramon.messages m WHERE m.recipient = u.recipient
                AND m.category = u.category AND m.state = 0
            ORDER BY m.id DESC OFFSET 1000)
        FROM (SELECT DISTINCT v.recipient, v.category
            FROM json_to_recordset($2) AS v (recipient text, category text)) AS u;
         END $_$;
CREATE FUNCTION ultramon.waiting_notices(text, double precision, integer) RETURNS TABLE(id bigint, recipient text, sender text, facts text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET jit TO 'off'
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        RETURN QUERY SELECT m.id, m.recipient, m.sender, m.facts FROM ultramon.messages m
            JOIN ultramon.registrations r ON r.agent_id = m.sender AND r.notify_id = m.recipient
            JOIN ultramon.agents a ON a.agent_id = m.sender
            WHERE m.recipient > $1 || '-' AND m.recipient < $1 || '.' AND m.state = 0
                AND m.available_at <= $2 AND m.expires_at > $2 AND m.facts <> '{}'
                AND m.category IN ('context_monitor', 'handoff', 'lifecycle')
                AND a.document::json->>'parentId' = m.recipient
                AND EXISTS (SELECT 1 FROM ultramon.machines o
                    WHERE o.machine_id = $1 AND o.database_user = session_user)
            ORDER BY m.id LIMIT $3;
         END $_$;
CREATE TABLE ultramon.agents (
    agent_id text NOT NULL COLLATE pg_catalog."C",
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
    shown_id text COLLATE pg_catalog."C",
    document text NOT NULL,
    changed xid8 DEFAULT pg_current_xact_id() NOT NULL,
    history bytea,
    machine_id text COLLATE pg_catalog."C",
    host text,
    model text,
    has_parent boolean,
    epoch bigint,
    level text,
    measured_at double precision,
    used_tokens bigint,
    limit_tokens bigint,
    CONSTRAINT agents_document_check CHECK ((octet_length(document) <= 1048576)),
    CONSTRAINT agents_of_machine CHECK (starts_with(agent_id, (machine_id || '-'::text)))
)
WITH (fillfactor='70');
CREATE TABLE ultramon.announcements (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    audience text NOT NULL COLLATE pg_catalog."C",
    epoch bigint NOT NULL,
    level text NOT NULL,
    announced_at double precision NOT NULL
);
CREATE TABLE ultramon.consumers (
    name text NOT NULL COLLATE pg_catalog."C",
    cursor text,
    memory text NOT NULL,
    holder text,
    lease_until double precision NOT NULL
);
CREATE TABLE ultramon.corrupt_states (
    id bigint NOT NULL,
    agent_id text NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL,
    at double precision NOT NULL
);
ALTER TABLE ultramon.corrupt_states ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ultramon.corrupt_states_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ultramon.credentials (
    token_hash text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    minted_by text,
    minted_at double precision NOT NULL,
    expires_at double precision NOT NULL
);
CREATE TABLE ultramon.events (
    id bigint NOT NULL,
    txid xid8 DEFAULT pg_current_xact_id() NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    type text NOT NULL,
    run text NOT NULL,
    agent_id text NOT NULL COLLATE pg_catalog."C",
    occurred_at text NOT NULL COLLATE pg_catalog."C",
    payload text NOT NULL,
    machine_id text COLLATE pg_catalog."C",
    CONSTRAINT events_of_machine CHECK (((machine_id IS NULL) OR (starts_with(agent_id, (machine_id || '-'::text)) AND starts_with(key, (agent_id || '/'::text)))))
);
ALTER TABLE ultramon.events ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ultramon.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ultramon.handoff_claims (
    handoff_id text NOT NULL COLLATE pg_catalog."C",
    agent_id text NOT NULL COLLATE pg_catalog."C",
    successor_id text NOT NULL COLLATE pg_catalog."C",
    claimed_at double precision NOT NULL,
    claimant text,
    number bigint DEFAULT 1 NOT NULL,
    status text DEFAULT 'confirmed'::text NOT NULL
);
CREATE TABLE ultramon.heartbeats (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    at double precision NOT NULL,
    changed xid8 DEFAULT pg_current_xact_id() NOT NULL,
    machine_id text COLLATE pg_catalog."C",
    CONSTRAINT heartbeats_of_machine CHECK (starts_with(agent_id, (machine_id || '-'::text)))
)
WITH (fillfactor='50');
CREATE TABLE ultramon.machines (
    machine_id text NOT NULL COLLATE pg_catalog."C",
    database_user name DEFAULT SESSION_USER NOT NULL,
    name text,
    sent_fields text DEFAULT ''::text NOT NULL,
    retention_seconds double precision,
    "position" bigint DEFAULT 0 NOT NULL,
    first_seen double precision NOT NULL,
    last_seen double precision NOT NULL,
    CONSTRAINT machines_machine_id_check CHECK ((machine_id ~ '^m[0-9a-f]{8,32}$'::text))
);
CREATE TABLE ultramon.message_losses (
    recipient text NOT NULL COLLATE pg_catalog."C",
    reason text NOT NULL,
    count bigint NOT NULL
);
CREATE TABLE ultramon.messages (
    id bigint NOT NULL,
    recipient text NOT NULL COLLATE pg_catalog."C",
    sender text COLLATE pg_catalog."C",
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
)
WITH (fillfactor='80');
ALTER TABLE ultramon.messages ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME ultramon.messages_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE ultramon.meta (
    key text NOT NULL,
    value text NOT NULL
);
CREATE TABLE ultramon.pruned_agents (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    at double precision NOT NULL,
    changed xid8 DEFAULT pg_current_xact_id() NOT NULL
);
CREATE TABLE ultramon.reading_days (
    day date NOT NULL,
    agent_id text NOT NULL COLLATE pg_catalog."C",
    model text NOT NULL,
    machine_id text COLLATE pg_catalog."C",
    host text,
    has_parent boolean,
    readings bigint DEFAULT 0 NOT NULL,
    peak_tokens bigint,
    input_tokens bigint,
    cache_read_tokens bigint,
    cache_write_tokens bigint,
    output_tokens bigint,
    cost_usd double precision,
    crossings bigint DEFAULT 0 NOT NULL,
    compactions bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70');
CREATE TABLE ultramon.readings (
    at double precision NOT NULL,
    agent_id text NOT NULL COLLATE pg_catalog."C",
    machine_id text COLLATE pg_catalog."C",
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
    CONSTRAINT readings_of_machine CHECK (starts_with(agent_id, (machine_id || '-'::text)))
);
CREATE TABLE ultramon.registrations (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    notify_id text NOT NULL COLLATE pg_catalog."C",
    source text NOT NULL,
    ladder text,
    registered_by text NOT NULL,
    registered_at double precision NOT NULL
);
CREATE TABLE ultramon.requests (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    document text NOT NULL
);
CREATE TABLE ultramon.senders (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    started_at double precision NOT NULL,
    generation bigint NOT NULL,
    epoch bigint NOT NULL,
    cleared_at double precision NOT NULL
);
INSERT INTO ultramon.agents VALUES ('scout-1', 1, 4, 1, 'audit', false, 1, false, 0.75, 0, 1795771030.2176626, 1795771030.307899, 45, 600, -982697007366251065, '[11095,"6807350"]', 'night shift', NULL, '{"schema":1,"agentId":"scout-1","run":"audit","sessionId":"90e9b6d680ae6ffa0138d28f4ea55f3a","parentId":"boss","predecessorId":null,"label":"night shift","host":"sdk","model":null,"cwd":"/","active":false,"phase":"working","outcome":"returned","exit":null,"startedAt":"2026-11-27T09:17:10.218Z","lastHeartbeat":"2026-11-27T09:17:10.308Z","lastActivity":"2026-11-27T09:17:10.308Z","heartbeatIntervalSeconds":15.0,"lostAfterSeconds":null,"graceSeconds":30.0,"pid":11095,"pidStartedAt":"6807350","bootId":"53311da5-68e4-44c1-8b57-35a45a75691f:[4026531836]","hostname":"vm","startId":"200f24efcfaa5edc1234ce6a1efa5229","generation":1,"epoch":1,"epochStartedAt":"2026-11-27T09:17:10.217Z","seq":4,"measuredAt":"2026-11-27T09:17:10.258Z","cumulativeChars":0,"estimatedTokens":150000,"tokensSource":"reported","anchor":{"tokens":150000,"isReport":true,"replyTokens":0,"exactTokens":0,"calibration":1.0},"bySource":{},"contextLimit":200000,"contextWindow":200000,"reservedOutputTokens":0,"limitSource":"explicit","limitSuspect":false,"limitCandidates":[{"name":"window","source":"explicit","tokens":200000,"verdict":"binding"},{"name":"window","source":"default","tokens":200000,"verdict":"outranked"}],"usageRatio":0.75,"thresholdStatus":"warning","action":"prepare_handoff","ladder":{"base":"normal","rearmMargin":0.05,"roundPercent":false,"rungs":[{"name":"warning","ratio":0.7,"tokensLeft":null,"action":"prepare_handoff","rearmRatio":null},{"name":"critical","ratio":0.85,"tokensLeft":null,"action":"force_return","rearmRatio":null}]},"ladderStatus":"ok","announced":{"epoch":1,"rungs":{"warning":1}},"forecast":null,"currentTask":null,"tasksCompleted":1,"tasksTotal":2,"tasks":[{"name":"a","status":"done","result":null},{"name":"b","status":"pending","result":null}],"continuesHandoffId":null,"handoff":{"handoffId":"scout-1-1-1-1795771030218","agentId":"scout-1","run":"audit","predecessorId":null,"generationCount":1,"epoch":1,"reason":"threshold_warning","goal":null,"constraints":[],"completed":["a"],"interrupted":[],"remaining":["b"],"results":{},"decisions":[],"rejected":[],"openQuestions":[],"nextStep":null,"filesModified":[],"workspace":{"cwd":"/","branch":null,"head":null,"dirtyFiles":[]},"resume":null,"notes":null,"tokens":150000,"createdAt":"2026-11-27T09:17:10.301000Z"},"pending":null,"crc32":2941548726}
', '4000000733', '\x01a21c4b5af2000249f00000000103c6', NULL, 'sdk', NULL, true, 1, 'warning', 1795771030.257567, 150000, 200000);
INSERT INTO ultramon.agents VALUES ('scout-2', 1, 0, 1, 'audit', true, 0, false, NULL, 0, 1795771030.3203578, 1795771030.3205612, 45, 600, -982697007366251065, '[11095,"6807350"]', NULL, NULL, '{"schema":1,"agentId":"scout-2","run":"audit","sessionId":"1affb9d46266b116bf8a7e43845d9a5e","parentId":null,"predecessorId":null,"label":null,"host":"sdk","model":null,"cwd":"/","active":true,"phase":"working","outcome":null,"exit":null,"startedAt":"2026-11-27T09:17:10.320Z","lastHeartbeat":"2026-11-27T09:17:10.321Z","lastActivity":"2026-11-27T09:17:10.320Z","heartbeatIntervalSeconds":15.0,"lostAfterSeconds":null,"graceSeconds":30.0,"pid":11095,"pidStartedAt":"6807350","bootId":"53311da5-68e4-44c1-8b57-35a45a75691f:[4026531836]","hostname":"vm","startId":"ab0163ac82409e8d43415bb01d920a6c","generation":1,"epoch":1,"epochStartedAt":"2026-11-27T09:17:10.320Z","seq":0,"measuredAt":null,"cumulativeChars":0,"estimatedTokens":0,"tokensSource":"estimated","anchor":null,"bySource":{},"contextLimit":200000,"contextWindow":200000,"reservedOutputTokens":0,"limitSource":"explicit","limitSuspect":false,"limitCandidates":[{"name":"window","source":"explicit","tokens":200000,"verdict":"binding"},{"name":"window","source":"default","tokens":200000,"verdict":"outranked"}],"usageRatio":null,"thresholdStatus":null,"action":"none","ladder":{"base":"normal","rearmMargin":0.05,"roundPercent":false,"rungs":[{"name":"warning","ratio":0.7,"tokensLeft":null,"action":"prepare_handoff","rearmRatio":null},{"name":"critical","ratio":0.85,"tokensLeft":null,"action":"force_return","rearmRatio":null}]},"ladderStatus":"ok","announced":{"epoch":1,"rungs":{}},"forecast":null,"currentTask":null,"tasksCompleted":0,"tasksTotal":null,"tasks":null,"continuesHandoffId":null,"handoff":null,"pending":null,"crc32":2959323979}
', '4000000734', '\x', NULL, 'sdk', NULL, false, 1, NULL, NULL, NULL, NULL);
INSERT INTO ultramon.consumers VALUES ('audit/main', '4000000728:2', '{"lives":{},"returning":{},"assignments":{"given":{},"left":{},"ending":{},"unstarted":{}}}', NULL, 1795771060.267352);
INSERT INTO ultramon.credentials VALUES ('0000000000000000000000000000000000000000000000000000000000000000', 'scout-2', 1, 'boss', 1, 9000000000);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (1, '4000000725', 'scout-1/1/1/agent_started//0', 'agent_started', 'audit', 'scout-1', '2026-11-27T09:17:10.218Z', '{"eventId":"a3aeec2613ed79482d56c48851a282d5","type":"agent_started","agentId":"scout-1","sessionId":"90e9b6d680ae6ffa0138d28f4ea55f3a","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-27T09:17:10.218Z","n":0}', NULL);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (2, '4000000728', 'scout-1/1/1/context_threshold_reached/warning/0', 'context_threshold_reached', 'audit', 'scout-1', '2026-11-27T09:17:10.258Z', '{"eventId":"e0a253e6e8fd2ec30449da56cf395cd8","type":"context_threshold_reached","agentId":"scout-1","sessionId":"90e9b6d680ae6ffa0138d28f4ea55f3a","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-27T09:17:10.258Z","n":0,"level":"warning","previousLevel":"normal","action":"prepare_handoff","usageRatio":0.75,"tokens":150000,"contextLimit":200000,"tokensSource":"reported","levelFrom":0.7}', NULL);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (3, '4000000732', 'scout-1/1/1/handoff_ready//0', 'handoff_ready', 'audit', 'scout-1', '2026-11-27T09:17:10.301Z', '{"eventId":"2f7860c2b0a9b4b7174e8864bbbaf68c","type":"handoff_ready","agentId":"scout-1","sessionId":"90e9b6d680ae6ffa0138d28f4ea55f3a","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-27T09:17:10.301Z","n":0,"handoff":{"handoffId":"scout-1-1-1-1795771030218","agentId":"scout-1","run":"audit","predecessorId":null,"generationCount":1,"epoch":1,"reason":"threshold_warning","goal":null,"constraints":[],"completed":["a"],"interrupted":[],"remaining":["b"],"results":{},"decisions":[],"rejected":[],"openQuestions":[],"nextStep":null,"filesModified":[],"workspace":{"cwd":"/","branch":null,"head":null,"dirtyFiles":[]},"resume":null,"notes":null,"tokens":150000,"createdAt":"2026-11-27T09:17:10.301000Z"}}', NULL);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (4, '4000000733', 'scout-1/1/1/agent_stopped//0', 'agent_stopped', 'audit', 'scout-1', '2026-11-27T09:17:10.308Z', '{"eventId":"aced54b918f2f7d5c9760833bb85f35f","type":"agent_stopped","agentId":"scout-1","sessionId":"90e9b6d680ae6ffa0138d28f4ea55f3a","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-27T09:17:10.308Z","n":0,"outcome":"returned"}', NULL);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (5, '4000000734', 'scout-2/1/1/agent_started//0', 'agent_started', 'audit', 'scout-2', '2026-11-27T09:17:10.320Z', '{"eventId":"853ffd65bad62beca079b0a1201ac5df","type":"agent_started","agentId":"scout-2","sessionId":"1affb9d46266b116bf8a7e43845d9a5e","run":"audit","generation":1,"epoch":1,"source":"agent:scout-2","occurredAt":"2026-11-27T09:17:10.320Z","n":0}', NULL);
INSERT INTO ultramon.handoff_claims VALUES ('handoff-1', 'scout-1', 'scout-2', 1795771030.327341, NULL, 1, 'pending');
INSERT INTO ultramon.heartbeats VALUES ('scout-1', 1, 1795771030.2182217, '4000000725', NULL);
INSERT INTO ultramon.heartbeats VALUES ('scout-2', 1, 1795771030.3205247, '4000000734', NULL);
INSERT INTO ultramon.machines VALUES ('m0123abcd', 'ultramon', 'attic', '', NULL, 0, 1, 2);
INSERT INTO ultramon.messages OVERRIDING SYSTEM VALUE VALUES (1, 'scout-1', NULL, NULL, 0, '', '{}', 'ultramon cancelled context_monitor', 4, 0, NULL, NULL, 1795771030.236432, 1795771030.236432, 9000000000, NULL);
INSERT INTO ultramon.messages OVERRIDING SYSTEM VALUE VALUES (3, 'scout-2', 'scout-1', NULL, 2, 'stored long ago', '{}', 'ultramon once 679e624d9bb9488af50ee13e9138bd5c', 0, 0, NULL, NULL, 1795771030.324852, 1795771030.324852, 9000000000, NULL);
INSERT INTO ultramon.meta VALUES ('schema_version', '4');
INSERT INTO ultramon.reading_days VALUES ('2026-11-27', 'scout-1', '', NULL, 'sdk', true, 1, 150000, NULL, NULL, NULL, NULL, NULL, 1, 0);
INSERT INTO ultramon.reading_days VALUES ('2027-01-15', 'm0123abcd-1f', 'gpt-5', 'm0123abcd', 'codex', NULL, 1, 1000, NULL, NULL, NULL, 50, 0.25, 0, 0);
INSERT INTO ultramon.readings VALUES (1795771030.257567, 'scout-1', NULL, 'sdk', NULL, 1, 'warning', 150000, 200000, NULL, NULL, NULL, NULL, NULL);
INSERT INTO ultramon.readings VALUES (1800000000, 'm0123abcd-1f', 'm0123abcd', 'codex', 'gpt-5', 1, 'normal', 1000, 200000, NULL, NULL, NULL, 50, 0.25);
INSERT INTO ultramon.registrations VALUES ('scout-1', 'scout-1', 'explicit', NULL, 'scout-1', 1795771030.2305675);
INSERT INTO ultramon.requests VALUES ('scout-2', '{"deadline":1.0,"generation":1}');
SELECT pg_catalog.setval('ultramon.corrupt_states_id_seq', 1, false);
SELECT pg_catalog.setval('ultramon.events_id_seq', 5, true);
SELECT pg_catalog.setval('ultramon.messages_id_seq', 3, true);
ALTER TABLE ONLY ultramon.agents
    ADD CONSTRAINT agents_pkey PRIMARY KEY (agent_id);
ALTER TABLE ONLY ultramon.announcements
    ADD CONSTRAINT announcements_pkey PRIMARY KEY (agent_id, audience);
ALTER TABLE ONLY ultramon.consumers
    ADD CONSTRAINT consumers_pkey PRIMARY KEY (name);
ALTER TABLE ONLY ultramon.corrupt_states
    ADD CONSTRAINT corrupt_states_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ultramon.credentials
    ADD CONSTRAINT credentials_pkey PRIMARY KEY (token_hash);
ALTER TABLE ONLY ultramon.events
    ADD CONSTRAINT events_key_key UNIQUE (key);
ALTER TABLE ONLY ultramon.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ultramon.handoff_claims
    ADD CONSTRAINT handoff_claims_pkey PRIMARY KEY (handoff_id);
ALTER TABLE ONLY ultramon.heartbeats
    ADD CONSTRAINT heartbeats_pkey PRIMARY KEY (agent_id);
ALTER TABLE ONLY ultramon.machines
    ADD CONSTRAINT machines_pkey PRIMARY KEY (machine_id);
ALTER TABLE ONLY ultramon.message_losses
    ADD CONSTRAINT message_losses_pkey PRIMARY KEY (recipient, reason);
ALTER TABLE ONLY ultramon.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ultramon.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY ultramon.reading_days
    ADD CONSTRAINT reading_days_pkey PRIMARY KEY (day, agent_id, model);
ALTER TABLE ONLY ultramon.registrations
    ADD CONSTRAINT registrations_pkey PRIMARY KEY (agent_id);
ALTER TABLE ONLY ultramon.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (agent_id);
ALTER TABLE ONLY ultramon.senders
    ADD CONSTRAINT senders_pkey PRIMARY KEY (agent_id);
CREATE INDEX agents_by_label ON ultramon.agents USING hash (label) WHERE (label IS NOT NULL);
CREATE INDEX agents_by_machine ON ultramon.agents USING btree (machine) WHERE active;
CREATE INDEX agents_by_patience ON ultramon.agents USING btree (LEAST(stale_after_seconds, lost_after_seconds)) WHERE active;
CREATE INDEX agents_by_shown_id ON ultramon.agents USING btree (shown_id) WHERE (shown_id IS NOT NULL);
CREATE INDEX agents_by_urgency ON ultramon.agents USING btree (urgency DESC, COALESCE(usage_ratio, (0)::double precision) DESC, agent_id) WHERE active;
CREATE INDEX agents_changed ON ultramon.agents USING btree (changed);
CREATE INDEX agents_ended ON ultramon.agents USING btree (COALESCE(usage_ratio, (0)::double precision) DESC, agent_id) WHERE (NOT active);
CREATE INDEX agents_mirrored ON ultramon.agents USING btree (machine_id) WHERE (machine_id IS NOT NULL);
CREATE INDEX corrupt_states_by_agent ON ultramon.corrupt_states USING btree (agent_id, id);
CREATE INDEX credentials_by_agent ON ultramon.credentials USING btree (agent_id);
CREATE INDEX events_by_agent ON ultramon.events USING btree (agent_id, id);
CREATE INDEX events_by_time ON ultramon.events USING btree (occurred_at);
CREATE INDEX events_in_commit_order ON ultramon.events USING btree (txid, id);
CREATE INDEX handoff_claims_pending ON ultramon.handoff_claims USING btree (handoff_id) WHERE (status = 'pending'::text);
CREATE INDEX machines_by_user ON ultramon.machines USING btree (database_user);
CREATE INDEX messages_by_category ON ultramon.messages USING btree (recipient, category, id) WHERE (state = 0);
CREATE INDEX messages_by_expiry ON ultramon.messages USING btree (expires_at) WHERE (state = ANY (ARRAY[0, 4]));
CREATE INDEX messages_by_sender ON ultramon.messages USING btree (sender, category) WHERE (state = ANY (ARRAY[0, 1]));
CREATE INDEX messages_claimed ON ultramon.messages USING btree (claimed_until) WHERE (state = ANY (ARRAY[1, 3]));
CREATE UNIQUE INDEX messages_once ON ultramon.messages USING btree (recipient, dedupe_key) WHERE ((dedupe_key IS NOT NULL) AND (state = ANY (ARRAY[0, 1, 4])));
CREATE INDEX messages_ready ON ultramon.messages USING btree (recipient, priority, id) WHERE (state = 0);
CREATE INDEX pruned_agents_changed ON ultramon.pruned_agents USING btree (changed);
CREATE INDEX readings_by_time ON ultramon.readings USING brin (at) WITH (pages_per_range='32');
CREATE TRIGGER events_summed AFTER INSERT ON ultramon.events REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ultramon.sum_events();
CREATE TRIGGER readings_summed AFTER INSERT ON ultramon.readings REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION ultramon.sum_readings();
ALTER TABLE ONLY ultramon.heartbeats
    ADD CONSTRAINT heartbeats_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES ultramon.agents(agent_id) ON DELETE CASCADE;
ALTER TABLE ONLY ultramon.requests
    ADD CONSTRAINT requests_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES ultramon.agents(agent_id) ON DELETE CASCADE;
CREATE POLICY add ON ultramon.agents FOR INSERT WITH CHECK ((machine_id IS NULL));
CREATE POLICY add ON ultramon.events FOR INSERT WITH CHECK ((machine_id IS NULL));
CREATE POLICY add ON ultramon.heartbeats FOR INSERT WITH CHECK ((machine_id IS NULL));
CREATE POLICY add ON ultramon.machines FOR INSERT WITH CHECK (true);
CREATE POLICY add ON ultramon.message_losses FOR INSERT WITH CHECK (true);
CREATE POLICY add ON ultramon.messages FOR INSERT WITH CHECK (true);
CREATE POLICY add ON ultramon.pruned_agents FOR INSERT WITH CHECK (true);
CREATE POLICY add ON ultramon.reading_days FOR INSERT WITH CHECK (true);
CREATE POLICY add ON ultramon.readings FOR INSERT WITH CHECK ((machine_id IS NULL));
CREATE POLICY add ON ultramon.registrations FOR INSERT WITH CHECK ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = registrations.agent_id) AND (a.machine_id IS NOT NULL))))));
CREATE POLICY add ON ultramon.requests FOR INSERT WITH CHECK ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = requests.agent_id) AND (a.machine_id IS NOT NULL))))));
ALTER TABLE ultramon.agents ENABLE ROW LEVEL SECURITY;
CREATE POLICY change ON ultramon.agents FOR UPDATE USING ((machine_id IS NULL));
CREATE POLICY change ON ultramon.events FOR UPDATE USING ((machine_id IS NULL));
CREATE POLICY change ON ultramon.heartbeats FOR UPDATE USING ((machine_id IS NULL));
CREATE POLICY change ON ultramon.machines FOR UPDATE USING (true);
CREATE POLICY change ON ultramon.message_losses FOR UPDATE USING (true);
CREATE POLICY change ON ultramon.messages FOR UPDATE USING (true);
CREATE POLICY change ON ultramon.pruned_agents FOR UPDATE USING (true);
CREATE POLICY change ON ultramon.reading_days FOR UPDATE USING (true);
CREATE POLICY change ON ultramon.readings FOR UPDATE USING ((machine_id IS NULL));
CREATE POLICY change ON ultramon.registrations FOR UPDATE USING ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = registrations.agent_id) AND (a.machine_id IS NOT NULL))))));
CREATE POLICY change ON ultramon.requests FOR UPDATE USING ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = requests.agent_id) AND (a.machine_id IS NOT NULL))))));
CREATE POLICY delete ON ultramon.agents FOR DELETE USING ((machine_id IS NULL));
CREATE POLICY delete ON ultramon.events FOR DELETE USING ((machine_id IS NULL));
CREATE POLICY delete ON ultramon.heartbeats FOR DELETE USING ((machine_id IS NULL));
CREATE POLICY delete ON ultramon.machines FOR DELETE USING (true);
CREATE POLICY delete ON ultramon.message_losses FOR DELETE USING (true);
CREATE POLICY delete ON ultramon.messages FOR DELETE USING (true);
CREATE POLICY delete ON ultramon.pruned_agents FOR DELETE USING (true);
CREATE POLICY delete ON ultramon.reading_days FOR DELETE USING (true);
CREATE POLICY delete ON ultramon.readings FOR DELETE USING ((machine_id IS NULL));
CREATE POLICY delete ON ultramon.registrations FOR DELETE USING ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = registrations.agent_id) AND (a.machine_id IS NOT NULL))))));
CREATE POLICY delete ON ultramon.requests FOR DELETE USING ((NOT (EXISTS ( SELECT 1
   FROM ultramon.agents a
  WHERE ((a.agent_id = requests.agent_id) AND (a.machine_id IS NOT NULL))))));
ALTER TABLE ultramon.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.heartbeats ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.machines ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.message_losses ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.pruned_agents ENABLE ROW LEVEL SECURITY;
CREATE POLICY read ON ultramon.agents FOR SELECT USING (true);
CREATE POLICY read ON ultramon.events FOR SELECT USING (true);
CREATE POLICY read ON ultramon.heartbeats FOR SELECT USING (true);
CREATE POLICY read ON ultramon.machines FOR SELECT USING (true);
CREATE POLICY read ON ultramon.message_losses FOR SELECT USING (true);
CREATE POLICY read ON ultramon.messages FOR SELECT USING (true);
CREATE POLICY read ON ultramon.pruned_agents FOR SELECT USING (true);
CREATE POLICY read ON ultramon.reading_days FOR SELECT USING (true);
CREATE POLICY read ON ultramon.readings FOR SELECT USING (true);
CREATE POLICY read ON ultramon.registrations FOR SELECT USING (true);
CREATE POLICY read ON ultramon.requests FOR SELECT USING (true);
ALTER TABLE ultramon.reading_days ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.readings ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.registrations ENABLE ROW LEVEL SECURITY;
ALTER TABLE ultramon.requests ENABLE ROW LEVEL SECURITY;
