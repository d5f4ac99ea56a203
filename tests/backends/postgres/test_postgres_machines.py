"""Rows that machines mirror into a PostgreSQL store: kept from each other and from all others."""

from __future__ import annotations

import re

import psycopg
import pytest
from helpers.postgres_roles import login, server  # noqa: F401

from ultramon.backends.postgres.admin.roles import MACHINE, READER, WRITER

FIRST, SECOND = "m0123abcd", "mfedc9876"
REFUSED = "row-level security|violates check constraint"


def added(agent_id, machine_id):
    """A statement that stores an agent of a machine."""
    return (
        "INSERT INTO ultramon.agents (agent_id, machine_id, generation, seq, schema_version, run,"
        " active, urgency, waiting, skew_seconds, started_at, last_heartbeat, lost_after_seconds,"
        f" machine, document) VALUES ('{agent_id}', '{machine_id}', 1, 0, 1, 'r', true, 0, false,"
        " 0, 0, 0, 1, 0, '{}')"
    )


def mirrored(server, url, machine_id):
    """Let the user of a URL be a machine, with an agent and a row of each kind."""
    server(
        "INSERT INTO ultramon.machines (machine_id, first_seen, last_seen)"
        f" VALUES ('{machine_id}', 1, 1)",
        url,
    )
    agent_id = f"{machine_id}-1"
    server(added(agent_id, machine_id), url)
    server(
        "INSERT INTO ultramon.heartbeats (generation, at, agent_id, machine_id)"
        f" VALUES (1, 1, '{agent_id}', '{machine_id}')",
        url,
    )
    server(
        "INSERT INTO ultramon.events (key, type, run, occurred_at, payload, agent_id, machine_id)"
        f" VALUES ('{agent_id}/1/1/agent_started//0', 'agent_started', 'r', '2026-11-27', '{{}}',"
        f" '{agent_id}', '{machine_id}')",
        url,
    )
    server(
        "INSERT INTO ultramon.readings (at, epoch, used_tokens, agent_id, machine_id)"
        f" VALUES (1, 1, 1000, '{agent_id}', '{machine_id}')",
        url,
    )
    return agent_id


TABLES = ("agents", "heartbeats", "events", "readings", "reading_days", "machines")


def test_a_machine_sees_and_changes_its_own_rows_only(server, login):
    """Whatever it asks for; the sums of its days are made of its readings."""
    first, second = login(MACHINE), login(MACHINE)
    mirrored(server, first, FIRST)
    mirrored(server, second, SECOND)
    for table in TABLES:
        assert server(f"SELECT machine_id FROM ultramon.{table}", first) == [(FIRST,)]
        assert len(server(f"SELECT 1 FROM ultramon.{table}")) == 2
    assert server("SELECT readings, peak_tokens FROM ultramon.reading_days", first) == [(1, 1000)]
    for table in ("agents", "heartbeats", "machines"):
        assert server(f"UPDATE ultramon.{table} SET machine_id = machine_id", first) == 1
    for table in ("events", "readings", "reading_days", "agents", "machines"):
        assert server(f"DELETE FROM ultramon.{table}", first) == 1
        assert server(f"SELECT machine_id FROM ultramon.{table}") == [(SECOND,)]


@pytest.mark.parametrize(
    "statement",
    [
        added(f"{SECOND}-2", SECOND),
        added("boss", FIRST),
        added("boss", SECOND),
        added(f"{SECOND}-2", FIRST),
        added("boss", FIRST).replace(f"'{FIRST}'", "NULL"),
        f"INSERT INTO ultramon.machines VALUES ('{SECOND}', session_user, NULL, '', NULL, 0, 1, 1)"
        " ON CONFLICT (machine_id) DO UPDATE SET database_user = session_user",
        "INSERT INTO ultramon.machines VALUES ('m99999999', 'ultramon', NULL, '', NULL, 0, 1, 1)",
        "INSERT INTO ultramon.machines VALUES ('boss', session_user, NULL, '', NULL, 0, 1, 1)",
        f"UPDATE ultramon.agents SET machine_id = '{SECOND}'",
        "UPDATE ultramon.agents SET machine_id = NULL",
        "UPDATE ultramon.machines SET database_user = 'ultramon'",
        "INSERT INTO ultramon.events (key, type, run, occurred_at, payload, agent_id, machine_id)"
        f" VALUES ('boss/1/1/agent_started//0', 'x', 'r', '2026-11-27', '{{}}', '{FIRST}-1',"
        f" '{FIRST}')",
        "INSERT INTO ultramon.pruned_agents (agent_id, at) VALUES ('boss', 1)",
    ],
)
def test_a_machine_can_take_nothing_of_others(server, login, statement):
    """Neither another machine's name nor an id, a key or a user that is not its own."""
    first, second = login(MACHINE), login(MACHINE)
    mirrored(server, first, FIRST)
    mirrored(server, second, SECOND)
    with pytest.raises(psycopg.Error, match=REFUSED):
        server(statement, first)


def test_a_machine_stays_itself_in_another_role(server, login):
    """`SET ROLE` to a role that it shares with others changes nothing: its login counts."""
    first, second = login(MACHINE), login(MACHINE)
    mirrored(server, first, FIRST)
    mirrored(server, second, SECOND)
    with psycopg.connect(first.partition("?")[0], autocommit=True) as connection:
        connection.execute(f"SET ROLE {MACHINE}")
        schema = re.search(r"schema=(\w+)", first)[1]
        rows = connection.execute(f"SELECT machine_id FROM {schema}.agents").fetchall()
    assert rows == [(FIRST,)]


def test_a_machine_reads_the_messages_to_its_agents(server, login):
    """And deletes them; nothing of what others are sent."""
    url = login(MACHINE)
    agent_id = mirrored(server, url, FIRST)
    for recipient in (agent_id, "boss", f"{SECOND}-1"):
        server(
            "INSERT INTO ultramon.messages (recipient, priority, text, facts, state, attempts,"
            f" available_at, queued_at, expires_at) VALUES ('{recipient}', 0, 'x', '{{}}', 0, 0, 0,"
            " 0, 9e9)"
        )
    assert server("SELECT recipient FROM ultramon.messages", url) == [(agent_id,)]
    assert server("UPDATE ultramon.messages SET state = 1", url) == 1
    assert server("DELETE FROM ultramon.messages", url) == 1
    assert len(server("SELECT 1 FROM ultramon.messages")) == 2


def test_others_read_mirrored_rows_and_change_none(server, login):
    """Writers and readers; a writer that stores such a row is refused."""
    mirrored(server, login(MACHINE), FIRST)
    reader, writer = login(READER), login(WRITER)
    for table in TABLES:
        for url in (reader, writer):
            assert server(f"SELECT machine_id FROM ultramon.{table}", url) == [(FIRST,)]
    assert server("UPDATE ultramon.agents SET active = false", writer) == 0
    assert server("UPDATE ultramon.heartbeats SET at = 0", writer) == 0
    for statement in (
        added(f"{FIRST}-2", FIRST),
        "INSERT INTO ultramon.readings (at, epoch, used_tokens, agent_id, machine_id)"
        f" VALUES (1, 1, 1000, '{FIRST}-1', '{FIRST}')",
        f"INSERT INTO ultramon.requests VALUES ('{FIRST}-1', '{{}}')",
        f"INSERT INTO ultramon.registrations VALUES ('{FIRST}-1', 'x', 'explicit', NULL, 'x', 1)",
    ):
        with pytest.raises(psycopg.Error, match=REFUSED):
            server(statement, writer)
