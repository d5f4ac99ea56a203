CREATE FUNCTION ultramon.beat(text[], bigint[], double precision) RETURNS SETOF text
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        PERFORM set_config('synchronous_commit', 'off', true),
            set_config('lock_timeout', '2s', true);
        RETURN QUERY WITH beaten AS (
            UPDATE ultramon.heartbeats h SET at = $3, changed = pg_current_xact_id()
            FROM unnest($1, $2) AS u (agent_id, generation)
            WHERE h.agent_id = u.agent_id AND h.generation = u.generation
            RETURNING h.agent_id
        ) SELECT u.agent_id FROM unnest($1) AS u (agent_id)
            WHERE u.agent_id NOT IN (SELECT agent_id FROM beaten);
         END $_$;
CREATE FUNCTION ultramon.store(json, json) RETURNS TABLE(agent_id text, generation bigint, schema_version integer, fresh text[], notify_id text, source text, ladder text, registered_by text, registered_at double precision, started_at double precision, sender_generation bigint, sender_epoch bigint, cleared_at double precision, audience text, told_epoch bigint, level text)
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $_$ #variable_conflict use_column
 DECLARE ids text[]; generations bigint[]; versions integer[]; accepted text[]; stored text[]; BEGIN 
        WITH given AS MATERIALIZED (
            SELECT * FROM json_to_recordset($1) AS g (agent_id text, generation bigint, seq bigint, schema_version integer, run text, active boolean, urgency smallint, waiting boolean, usage_ratio float8, skew_seconds float8, started_at float8, last_heartbeat float8, stale_after_seconds float8, lost_after_seconds float8, machine bigint, process text, label text, shown_id text, document text)
        ), old AS (
            SELECT a.agent_id, a.generation, a.seq, a.schema_version
            FROM given JOIN ultramon.agents a USING (agent_id)
            ORDER BY a.agent_id FOR UPDATE OF a
        ), put AS (
            UPDATE ultramon.agents a SET seq = g.seq,
                run = g.run, active = g.active, urgency = g.urgency, waiting = g.waiting, usage_ratio = g.usage_ratio, skew_seconds = g.skew_seconds, started_at = g.started_at, last_heartbeat = g.last_heartbeat, stale_after_seconds = g.stale_after_seconds, lost_after_seconds = g.lost_after_seconds, machine = g.machine, process = g.process, label = g.label, shown_id = g.shown_id, document = g.document,
                changed = pg_current_xact_id()
            FROM given g JOIN old USING (agent_id)
            WHERE a.agent_id = g.agent_id AND old.generation = g.generation
                AND old.seq <= g.seq AND old.schema_version <= 1
        )
        SELECT array_agg(old.agent_id), array_agg(old.generation), array_agg(old.schema_version),
            array_agg(old.agent_id) FILTER
                (WHERE old.generation = g.generation AND old.schema_version <= 1)
        INTO ids, generations, versions, accepted FROM old JOIN given g USING (agent_id);
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
            s.epoch, s.cleared_at, t.audience, t.epoch, t.level
        FROM unnest(ids, generations, versions) AS u (agent_id, generation, schema_version)
        LEFT JOIN ultramon.registrations r USING (agent_id)
        LEFT JOIN ultramon.senders s USING (agent_id)
        LEFT JOIN ultramon.announcements t USING (agent_id);
         END $_$;
CREATE FUNCTION ultramon.tell(json, json) RETURNS TABLE(recipient text, over bigint[])
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $_$ #variable_conflict use_column
 DECLARE  BEGIN 
        INSERT INTO ultramon.announcements
        SELECT * FROM json_to_recordset($1)
            AS a (agent_id text, audience text, epoch bigint, level text, announced_at float8)
        ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,
            level = excluded.level, announced_at = excluded.announced_at;
        INSERT INTO ultramon.messages (recipient, sender, category, priority, text, facts, state,
            attempts, available_at, queued_at, expires_at)
        SELECT recipient, sender, category, priority, text, facts, 0, 0, at, at,
            at + 86400.0
        FROM json_to_recordset($2) AS m (recipient text, sender text, category text,
            priority smallint, text text, facts text, at float8);
        PERFORM pg_notify('ultramon_messages', u.recipient)
        FROM (SELECT DISTINCT v.recipient
            FROM json_to_recordset($2) AS v (recipient text)) AS u;
        RETURN QUERY SELECT u.recipient, ARRAY(
            SELECT m.id FROM ultramon.messages m WHERE m.recipient = u.recipient
                AND m.category = u.category AND m.state = 0
            ORDER BY m.id DESC OFFSET 1000)
        FROM (SELECT DISTINCT v.recipient, v.category
            FROM json_to_recordset($2) AS v (recipient text, category text)) AS u;
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
    CONSTRAINT agents_document_check CHECK ((octet_length(document) <= 1048576))
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
    payload text NOT NULL
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
    claimed_at double precision NOT NULL
);
CREATE TABLE ultramon.heartbeats (
    agent_id text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    at double precision NOT NULL,
    changed xid8 DEFAULT pg_current_xact_id() NOT NULL
)
WITH (fillfactor='50');
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
INSERT INTO ultramon.agents VALUES ('scout-1', 1, 4, 1, 'audit', false, 1, false, 0.75, 0, 1795327576.912571, 1795327576.9800172, 45, 600, -1849388390426065110, '[28421,"543229"]', 'night shift', NULL, '{"schema":1,"agentId":"scout-1","run":"audit","sessionId":"aae86da80cf01b2587ab67d9b9e4acaf","parentId":"boss","predecessorId":null,"label":"night shift","host":"sdk","model":null,"cwd":"/","active":false,"phase":"working","outcome":"returned","exit":null,"startedAt":"2026-11-22T06:06:16.913Z","lastHeartbeat":"2026-11-22T06:06:16.980Z","lastActivity":"2026-11-22T06:06:16.980Z","heartbeatIntervalSeconds":15.0,"lostAfterSeconds":null,"graceSeconds":30.0,"pid":28421,"pidStartedAt":"543229","bootId":"3ba4dd3e-02b3-43eb-b38f-25f61300d470:[4026531836]","hostname":"vm","generation":1,"epoch":1,"epochStartedAt":"2026-11-22T06:06:16.912Z","seq":4,"measuredAt":"2026-11-22T06:06:16.948Z","cumulativeChars":0,"estimatedTokens":150000,"tokensSource":"reported","anchor":{"tokens":150000,"isReport":true,"replyTokens":0,"exactTokens":0,"calibration":1.0},"bySource":{},"contextLimit":200000,"contextWindow":200000,"reservedOutputTokens":0,"limitSource":"explicit","limitSuspect":false,"limitCandidates":[{"name":"window","source":"explicit","tokens":200000,"verdict":"binding"},{"name":"window","source":"default","tokens":200000,"verdict":"outranked"}],"usageRatio":0.75,"thresholdStatus":"warning","action":"prepare_handoff","ladder":{"base":"normal","rearmMargin":0.05,"roundPercent":false,"rungs":[{"name":"warning","ratio":0.7,"tokensLeft":null,"action":"prepare_handoff","rearmRatio":null},{"name":"critical","ratio":0.85,"tokensLeft":null,"action":"force_return","rearmRatio":null}]},"ladderStatus":"ok","announced":{"epoch":1,"rungs":{"warning":1}},"forecast":null,"currentTask":null,"tasksCompleted":1,"tasksTotal":2,"tasks":[{"name":"a","status":"done","result":null},{"name":"b","status":"pending","result":null}],"handoff":{"handoffId":"scout-1-1-1-1795327576913","agentId":"scout-1","run":"audit","predecessorId":null,"generationCount":1,"epoch":1,"reason":"threshold_warning","goal":null,"constraints":[],"completed":["a"],"interrupted":[],"remaining":["b"],"results":{},"decisions":[],"rejected":[],"openQuestions":[],"nextStep":null,"filesModified":[],"workspace":{"cwd":"/","branch":null,"head":null,"dirtyFiles":[]},"resume":null,"notes":null,"tokens":150000,"createdAt":"2026-11-22T06:06:16.974389Z"},"pending":null,"crc32":3360274726}
', '4000000733');
INSERT INTO ultramon.agents VALUES ('scout-2', 1, 0, 1, 'audit', true, 0, false, 0, 0, 1795327576.9840608, 1795327576.9850676, 45, 600, -1849388390426065110, '[28421,"543229"]', NULL, NULL, '{"schema":1,"agentId":"scout-2","run":"audit","sessionId":"6573ed51dd2ca57a0612142bb5315121","parentId":null,"predecessorId":null,"label":null,"host":"sdk","model":null,"cwd":"/","active":true,"phase":"working","outcome":null,"exit":null,"startedAt":"2026-11-22T06:06:16.984Z","lastHeartbeat":"2026-11-22T06:06:16.985Z","lastActivity":"2026-11-22T06:06:16.984Z","heartbeatIntervalSeconds":15.0,"lostAfterSeconds":null,"graceSeconds":30.0,"pid":28421,"pidStartedAt":"543229","bootId":"3ba4dd3e-02b3-43eb-b38f-25f61300d470:[4026531836]","hostname":"vm","generation":1,"epoch":1,"epochStartedAt":"2026-11-22T06:06:16.984Z","seq":0,"measuredAt":null,"cumulativeChars":0,"estimatedTokens":0,"tokensSource":"estimated","anchor":null,"bySource":{},"contextLimit":200000,"contextWindow":200000,"reservedOutputTokens":0,"limitSource":"explicit","limitSuspect":false,"limitCandidates":[{"name":"window","source":"explicit","tokens":200000,"verdict":"binding"},{"name":"window","source":"default","tokens":200000,"verdict":"outranked"}],"usageRatio":0.0,"thresholdStatus":"normal","action":"none","ladder":{"base":"normal","rearmMargin":0.05,"roundPercent":false,"rungs":[{"name":"warning","ratio":0.7,"tokensLeft":null,"action":"prepare_handoff","rearmRatio":null},{"name":"critical","ratio":0.85,"tokensLeft":null,"action":"force_return","rearmRatio":null}]},"ladderStatus":"ok","announced":{"epoch":1,"rungs":{}},"forecast":null,"currentTask":null,"tasksCompleted":0,"tasksTotal":null,"tasks":null,"handoff":null,"pending":null,"crc32":3320455232}
', '4000000734');
INSERT INTO ultramon.announcements VALUES ('scout-1', 'scout-1', 1, 'warning', 1795327576.9481332);
INSERT INTO ultramon.consumers VALUES ('audit/main', '4000000728:2', '{"lives":{},"returning":{}}', NULL, 1795327606.9518542);
INSERT INTO ultramon.credentials VALUES ('0000000000000000000000000000000000000000000000000000000000000000', 'scout-2', 1, 'boss', 1, 9000000000);
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (1, '4000000725', 'scout-1/1/1/agent_started//0', 'agent_started', 'audit', 'scout-1', '2026-11-22T06:06:16.913Z', '{"eventId":"b322700cb52906d00cb9849fce6d0032","type":"agent_started","agentId":"scout-1","sessionId":"aae86da80cf01b2587ab67d9b9e4acaf","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-22T06:06:16.913Z","n":0}');
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (2, '4000000728', 'scout-1/1/1/context_threshold_reached/warning/0', 'context_threshold_reached', 'audit', 'scout-1', '2026-11-22T06:06:16.948Z', '{"eventId":"20585524307b1888ac9e060801507d19","type":"context_threshold_reached","agentId":"scout-1","sessionId":"aae86da80cf01b2587ab67d9b9e4acaf","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-22T06:06:16.948Z","n":0,"level":"warning","previousLevel":"normal","action":"prepare_handoff","usageRatio":0.75,"tokens":150000,"contextLimit":200000,"tokensSource":"reported"}');
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (3, '4000000732', 'scout-1/1/1/handoff_ready//0', 'handoff_ready', 'audit', 'scout-1', '2026-11-22T06:06:16.975Z', '{"eventId":"c978601e272d85557e677c01ea761a65","type":"handoff_ready","agentId":"scout-1","sessionId":"aae86da80cf01b2587ab67d9b9e4acaf","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-22T06:06:16.975Z","n":0,"handoff":{"handoffId":"scout-1-1-1-1795327576913","agentId":"scout-1","run":"audit","predecessorId":null,"generationCount":1,"epoch":1,"reason":"threshold_warning","goal":null,"constraints":[],"completed":["a"],"interrupted":[],"remaining":["b"],"results":{},"decisions":[],"rejected":[],"openQuestions":[],"nextStep":null,"filesModified":[],"workspace":{"cwd":"/","branch":null,"head":null,"dirtyFiles":[]},"resume":null,"notes":null,"tokens":150000,"createdAt":"2026-11-22T06:06:16.974389Z"}}');
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (4, '4000000733', 'scout-1/1/1/agent_stopped//0', 'agent_stopped', 'audit', 'scout-1', '2026-11-22T06:06:16.980Z', '{"eventId":"2f2a6df232dce0a50249a25d91616b3f","type":"agent_stopped","agentId":"scout-1","sessionId":"aae86da80cf01b2587ab67d9b9e4acaf","run":"audit","generation":1,"epoch":1,"source":"agent:scout-1","occurredAt":"2026-11-22T06:06:16.980Z","n":0,"outcome":"returned"}');
INSERT INTO ultramon.events OVERRIDING SYSTEM VALUE VALUES (5, '4000000734', 'scout-2/1/1/agent_started//0', 'agent_started', 'audit', 'scout-2', '2026-11-22T06:06:16.984Z', '{"eventId":"ced39f8c5c4bb192c3230010b3a84a7c","type":"agent_started","agentId":"scout-2","sessionId":"6573ed51dd2ca57a0612142bb5315121","run":"audit","generation":1,"epoch":1,"source":"agent:scout-2","occurredAt":"2026-11-22T06:06:16.984Z","n":0}');
INSERT INTO ultramon.handoff_claims VALUES ('handoff-1', 'scout-1', 'scout-2', 1795327576.9995372);
INSERT INTO ultramon.heartbeats VALUES ('scout-1', 1, 1795327576.9152415, '4000000725');
INSERT INTO ultramon.heartbeats VALUES ('scout-2', 1, 1795327576.9842186, '4000000734');
INSERT INTO ultramon.messages OVERRIDING SYSTEM VALUE VALUES (1, 'scout-1', 'scout-1', 'context_monitor', 2, '[ultramon] Your context is at 75% (warning), 150,000 of 200,000 tokens, reported 06:06Z.', '{"agentId":"scout-1","run":"audit","generation":1,"epoch":1,"kind":"level","level":"warning","previousLevel":"normal","action":"prepare_handoff","usageRatio":0.75,"tokens":150000,"contextLimit":200000,"tokensSource":"reported","measuredAt":"2026-11-22T06:06:16.948Z"}', NULL, 0, 0, NULL, NULL, 1795327576.9481332, 1795327576.9481332, 9000000000, NULL);
INSERT INTO ultramon.messages OVERRIDING SYSTEM VALUE VALUES (2, 'scout-2', 'scout-1', NULL, 2, 'stored long ago', '{}', 'ultramon once b923c0747968bfc6478f5cbf1eb75edb', 0, 0, NULL, NULL, 1795327576.993299, 1795327576.993299, 9000000000, NULL);
INSERT INTO ultramon.meta VALUES ('schema_version', '1');
INSERT INTO ultramon.registrations VALUES ('scout-1', 'scout-1', 'explicit', NULL, 'scout-1', 1795327576.9285111);
INSERT INTO ultramon.requests VALUES ('scout-2', '{"deadline":1.0,"generation":1}');
SELECT pg_catalog.setval('ultramon.corrupt_states_id_seq', 1, false);
SELECT pg_catalog.setval('ultramon.events_id_seq', 5, true);
SELECT pg_catalog.setval('ultramon.messages_id_seq', 2, true);
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
ALTER TABLE ONLY ultramon.message_losses
    ADD CONSTRAINT message_losses_pkey PRIMARY KEY (recipient, reason);
ALTER TABLE ONLY ultramon.messages
    ADD CONSTRAINT messages_pkey PRIMARY KEY (id);
ALTER TABLE ONLY ultramon.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
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
CREATE INDEX corrupt_states_by_agent ON ultramon.corrupt_states USING btree (agent_id, id);
CREATE INDEX credentials_by_agent ON ultramon.credentials USING btree (agent_id);
CREATE INDEX events_by_agent ON ultramon.events USING btree (agent_id, id);
CREATE INDEX events_by_time ON ultramon.events USING btree (occurred_at);
CREATE INDEX events_in_commit_order ON ultramon.events USING btree (txid, id);
CREATE INDEX messages_by_category ON ultramon.messages USING btree (recipient, category, id) WHERE (state = 0);
CREATE INDEX messages_by_expiry ON ultramon.messages USING btree (expires_at) WHERE (state = ANY (ARRAY[0, 4]));
CREATE INDEX messages_by_sender ON ultramon.messages USING btree (sender, category) WHERE (state = ANY (ARRAY[0, 1]));
CREATE INDEX messages_claimed ON ultramon.messages USING btree (claimed_until) WHERE (state = ANY (ARRAY[1, 3]));
CREATE UNIQUE INDEX messages_once ON ultramon.messages USING btree (recipient, dedupe_key) WHERE ((dedupe_key IS NOT NULL) AND (state = ANY (ARRAY[0, 1, 4])));
CREATE INDEX messages_ready ON ultramon.messages USING btree (recipient, priority, id) WHERE (state = 0);
CREATE INDEX pruned_agents_changed ON ultramon.pruned_agents USING btree (changed);
ALTER TABLE ONLY ultramon.heartbeats
    ADD CONSTRAINT heartbeats_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES ultramon.agents(agent_id) ON DELETE CASCADE;
ALTER TABLE ONLY ultramon.requests
    ADD CONSTRAINT requests_agent_id_fkey FOREIGN KEY (agent_id) REFERENCES ultramon.agents(agent_id) ON DELETE CASCADE;
