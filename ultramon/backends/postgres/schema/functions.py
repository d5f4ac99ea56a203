"""The most frequent writes as functions of the database: planned once a connection.

To plan a statement on a few rows costs more than to execute it. A prepared statement would save
that as well, but behind a pooler it may meet another connection than the one that prepared it.
What a function plans suits few rows: it goes by the keys, however many come, and never reads a
whole table (measured with 100,000 agents: 1,667 beats in 13 ms instead of 50).

They are made anew with every version of the tables, and run with the rights of the caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ultramon.backends.local.event_rows import EVENT_COLUMNS
from ultramon.backends.postgres.schema.state_columns import (
    COLUMNS,
    HISTORY,
    MIRRORED_READING,
    READING,
    assignments,
    is_known_reading,
)
from ultramon.notices.message import EXPIRY_SECONDS
from ultramon.notices.message_rules import MAX_WAITING
from ultramon.notices.texts import CATEGORIES
from ultramon.state.history_ring import FULL_BYTES
from ultramon.state.record import SCHEMA
from ultramon.system import compact_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NAMES = ", ".join(COLUMNS)

BEAT = "SELECT * FROM ultramon.beat(%s, %s, %s)"
"""With ids, generations and a time; returns the refused ids. A transaction of its own."""
ENTER = "SELECT ultramon.enter(%s, %s, %s)"
"""With the row of a new agent, rows of its events that lead to no notice, and the time of its
first beat. False where the id is known or registered already: nothing is stored then. A transaction
of its own. A store that an earlier version set up lacks it."""
STORE = "SELECT * FROM ultramon.store(%s, %s)"
"""With rows of agents and of events; returns of each agent that is stored, a row for each audience,
its generation and schema, the keys of all new events, its registration, sender and announcement,
and whether its history is full."""
TELL = "SELECT * FROM ultramon.tell(%s, %s, %s)"
"""With rows of announcements and of messages, and the channel of the listeners; returns by
recipient the messages that are too many now."""

MIRROR = "SELECT * FROM ultramon.mirror(%s, %s, %s, %s, %s, %s, %s, %s)"
"""With a machine, the position of a batch and a time, rows of agents, beats, events and readings,
and the position that is stored if that is known; returns the position that is stored, None for an
unknown machine, and the agents whose histories are full. Nothing is stored of a batch whose
position is not a later one, nor where another position is stored."""
NOTICES = "SELECT * FROM ultramon.waiting_notices(%s, %s, %s)"
"""With a machine of this login, a time and a limit; returns the notices that wait for its agents,
of children that are registered for that, without their texts."""


def as_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as one argument: the driver takes long over many lists (measured: 0.4 ms)."""
    return compact_json.dumps([dict(zip(names, row, strict=True)) for row in rows])


def _function(name: str, arguments: str, returns: str, body: str, variables: str = "") -> str:
    return (
        f"DROP FUNCTION IF EXISTS ultramon.{name};"
        f" CREATE FUNCTION ultramon.{name} ({arguments}) RETURNS {returns}"
        # Left to itself the server plans anew for each number of rows: few look like less work.
        " LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan"
        # A plan is kept while tables grow: what was small when it was made would be read whole.
        " SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off"
        # What row security reads whole looks dear enough to be compiled: that takes a second.
        " SET jit = off"
        f" AS $$ #variable_conflict use_column\n DECLARE {variables} BEGIN {body} END $$"
    )


FUNCTIONS = (
    _function(
        "beat",
        "text[], bigint[], float8",
        "SETOF text",
        """
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
        """,
    ),
    _function(
        "enter",
        "json, json, float8",
        "boolean",
        f"""
        PERFORM set_config('lock_timeout', '1s', true);
        -- As `States.lock`: one start of an id at a time, and what comes next sees the one before.
        PERFORM pg_advisory_xact_lock(hashtextextended('ultramon.' || id, 0));
        IF EXISTS (SELECT 1 FROM ultramon.agents a WHERE a.agent_id = id)
            OR EXISTS (SELECT 1 FROM ultramon.registrations r WHERE r.agent_id = id)
        THEN
            RETURN false;
        END IF;
        INSERT INTO ultramon.agents ({_NAMES})
            SELECT {_NAMES} FROM json_populate_record(NULL::ultramon.agents, $1);
        -- An agent that ran on while the database was away has one.
        IF $1->>'used_tokens' IS NOT NULL THEN
            INSERT INTO ultramon.readings (at, {READING})
                SELECT measured_at, {READING} FROM ultramon.agents a WHERE a.agent_id = id;
        END IF;
        INSERT INTO ultramon.heartbeats (agent_id, generation, at)
            VALUES (id, ($1->>'generation')::bigint, $3);
        INSERT INTO ultramon.events (key, type, run, agent_id, occurred_at, payload)
            SELECT e.key, e.type, e.run, e.agent_id, e.occurred_at, e.payload
            FROM json_populate_recordset(NULL::ultramon.events, $2) AS e
            ON CONFLICT (key) DO NOTHING;
        RETURN true;
        """,
        "id text COLLATE \"C\" := $1->>'agent_id';",
    ),
    _function(
        "store",
        "json, json",
        """TABLE (agent_id text, generation bigint, schema_version integer, fresh text[],
        notify_id text, source text, ladder text, registered_by text, registered_at float8,
        started_at float8, sender_generation bigint, sender_epoch bigint, cleared_at float8,
        audience text, told_epoch bigint, level text, is_history_full boolean)""",
        f"""
        WITH given AS MATERIALIZED (
            SELECT * FROM json_populate_recordset(NULL::ultramon.agents, $1)
        ), old AS (
            SELECT g.*, a.generation AS held, a.seq AS newest, a.schema_version AS version,
                {is_known_reading("a", "g")} AS is_known
            FROM given g JOIN ultramon.agents a USING (agent_id)
            -- Row security hides mirrored rows from others, but not from the owner of the tables.
            WHERE a.machine_id IS NULL
            ORDER BY a.agent_id FOR UPDATE OF a
        ), put AS (
            UPDATE ultramon.agents a SET {assignments("a", "old")},
                changed = pg_current_xact_id()
            FROM old WHERE a.agent_id = old.agent_id AND held = old.generation
                AND newest <= old.seq AND version <= {SCHEMA}
            RETURNING a.agent_id, octet_length(a.{HISTORY}) >= {FULL_BYTES} AS is_full
        ), measured AS (
            INSERT INTO ultramon.readings (at, {READING})
            SELECT measured_at, {READING} FROM old
            WHERE is_known IS NOT TRUE AND held = generation AND newest <= seq
                AND version <= {SCHEMA}
        )
        SELECT array_agg(agent_id), array_agg(held), array_agg(version),
            array_agg(agent_id) FILTER (WHERE held = generation AND version <= {SCHEMA}),
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
        """,
        "ids text[]; generations bigint[]; versions integer[]; accepted text[]; stored text[];"
        " filled text[];",
    ),
    _function(
        "tell",
        "json, json, text",
        "TABLE (recipient text, over bigint[])",
        f"""
        INSERT INTO ultramon.announcements
        SELECT * FROM json_populate_recordset(NULL::ultramon.announcements, $1)
        ON CONFLICT (agent_id, audience) DO UPDATE SET epoch = excluded.epoch,
            level = excluded.level, announced_at = excluded.announced_at;
        INSERT INTO ultramon.messages (recipient, sender, category, priority, text, facts, state,
            attempts, available_at, queued_at, expires_at)
        SELECT recipient, sender, category, priority, text, facts, 0, 0, at, at,
            at + {EXPIRY_SECONDS}
        FROM json_to_recordset($2) AS m (recipient text, sender text, category text,
            priority smallint, text text, facts text, at float8);
        PERFORM pg_notify($3, v.recipient)
        FROM json_to_recordset($2) AS v (recipient text) GROUP BY v.recipient;
        RETURN QUERY SELECT u.recipient, ARRAY(
            SELECT m.id FROM ultramon.messages m WHERE m.recipient = u.recipient
                AND m.category = u.category AND m.state = 0
            ORDER BY m.id DESC OFFSET {MAX_WAITING})
        FROM (SELECT DISTINCT v.recipient, v.category
            FROM json_to_recordset($2) AS v (recipient text, category text)) AS u;
        """,
    ),
    _function(
        "mirror",
        "text, bigint, float8, json, json, json, json, bigint",
        "TABLE (stored bigint, filled text[])",
        f"""
        UPDATE ultramon.machines m SET position = $2, last_seen = $3
            WHERE m.machine_id = $1 AND m.position < $2 AND m.position = coalesce($8, m.position);
        IF NOT FOUND THEN
            RETURN QUERY SELECT max(m.position), NULL::text[] FROM ultramon.machines m
                WHERE m.machine_id = $1;
            RETURN;
        END IF;
        -- A statement without rows costs as much as one with a few: its triggers run all the same.
        IF json_array_length($4) > 0 THEN WITH put AS (
            INSERT INTO ultramon.agents AS a (machine_id, {_NAMES})
            SELECT $1, {_NAMES} FROM json_populate_recordset(NULL::ultramon.agents, $4)
            ON CONFLICT (agent_id) DO UPDATE SET {assignments("a", "excluded")},
                changed = pg_current_xact_id()
            WHERE a.machine_id = $1
                AND (a.generation, a.seq) <= (excluded.generation, excluded.seq)
            RETURNING a.agent_id, octet_length(a.{HISTORY}) >= {FULL_BYTES} AS is_full
        ) SELECT array_agg(agent_id) FILTER (WHERE is_full) INTO filled FROM put;
        END IF;
        IF json_array_length($5) > 0 THEN
        INSERT INTO ultramon.heartbeats AS h (machine_id, agent_id, generation, at)
            SELECT $1, b.agent_id, b.generation, max(b.at)
            FROM json_populate_recordset(NULL::ultramon.heartbeats, $5) AS b
            JOIN ultramon.agents a ON a.agent_id = b.agent_id AND a.machine_id = $1
                AND a.generation = b.generation
            GROUP BY b.agent_id, b.generation
            ON CONFLICT (agent_id) DO UPDATE SET generation = excluded.generation,
                at = excluded.at, changed = pg_current_xact_id() WHERE h.machine_id = $1;
        END IF;
        IF json_array_length($6) > 0 THEN
        INSERT INTO ultramon.events (machine_id, {EVENT_COLUMNS})
            SELECT $1, {EVENT_COLUMNS} FROM json_populate_recordset(NULL::ultramon.events, $6)
            ON CONFLICT (key) DO NOTHING;
        END IF;
        IF json_array_length($7) > 0 THEN
        INSERT INTO ultramon.readings (machine_id, {MIRRORED_READING})
            SELECT $1, {MIRRORED_READING}
            FROM json_populate_recordset(NULL::ultramon.readings, $7);
        END IF;
        RETURN QUERY SELECT $2, filled;
        """,
    ),
    # A machine may read neither registrations nor the agents of others, nor needs it any text.
    _function(
        "waiting_notices",
        "text, float8, integer",
        "TABLE (id bigint, recipient text, sender text, facts text)",
        f"""
        RETURN QUERY SELECT m.id, m.recipient, m.sender, m.facts FROM ultramon.messages m
            JOIN ultramon.registrations r ON r.agent_id = m.sender AND r.notify_id = m.recipient
            JOIN ultramon.agents a ON a.agent_id = m.sender
            WHERE m.recipient > $1 || '-' AND m.recipient < $1 || '.' AND m.state = 0
                AND m.available_at <= $2 AND m.expires_at > $2 AND m.facts <> '{{}}'
                AND m.category IN ({", ".join(f"'{name}'" for name in CATEGORIES)})
                AND a.document::json->>'parentId' = m.recipient
                AND EXISTS (SELECT 1 FROM ultramon.machines o
                    WHERE o.machine_id = $1 AND o.database_user = session_user)
            ORDER BY m.id LIMIT $3;
        """,
    ),
    "ALTER FUNCTION ultramon.waiting_notices SECURITY DEFINER"
    " SET search_path = pg_catalog, pg_temp",
)
