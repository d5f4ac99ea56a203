"""Three machines in one database, with kills of either side, and a dump of all that left them."""

from __future__ import annotations

import json
import random
import re
import secrets
import time

import psycopg
import pytest
from helpers.claude_replay import Replay
from helpers.postgres_server import QUICK, Server
from helpers.program import run
from helpers.sharing import VOCABULARY, Machine, dump, rows_of, strings_in, work
from helpers.waiting import until

from ultramon.backends.postgres.admin.roles import MACHINE, READER
from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.share.sent_events import _EPOCH_REASONS, SENT_EVENTS, redact_event

ROUNDS = 24
SECRET = "Anna's plan for Acme"


class Team:
    """A database of its own, with a user for each machine and one who looks."""

    def __init__(self):
        self.postgres = Server(**QUICK)
        self.postgres.start()
        backend = PostgresBackend(self.postgres.url())
        migrate(backend.database, create_roles=True)
        backend.close()

    def ask(self, statement):
        with psycopg.connect(self.postgres.url().partition("?")[0], autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else cursor.rowcount

    def login(self, role):
        name = f"user_{secrets.token_hex(4)}"
        self.ask(f"CREATE ROLE {name} LOGIN IN ROLE {role}")
        return self.postgres.url().replace("//ultramon@", f"//{name}@")

    def crash(self):
        self.postgres.kill()
        self.postgres.wait_until_dead()


@pytest.fixture
def team():
    made = Team()
    yield made
    made.postgres.remove()


@pytest.fixture
def machines(team, tmp_path):
    """Three machines; the first has a recorded session of Claude Code."""
    made = []
    for name in ("hooked", "second", "third"):
        made.append(Machine(tmp_path / name, team.login(MACHINE)))
    yield made
    for machine in made:
        machine.end()


def expected_events(machine):
    """Return what of a machine's journal is to be in the database, in its order."""
    found = []
    for event in machine.local.events(limit=100_000).events:
        sent = redact_event(event, machine.identity, {})
        if sent is not None:
            found.append((sent["eventId"], sent["type"], sent["agentId"]))
    return found


def stored_events(team, machine):
    rows = rows_of(
        team.ask, "events", "payload", f"machine_id = '{machine.identity.machine_id}' ORDER BY id"
    )
    events = [json.loads(payload) for (payload,) in rows]
    return [(event["eventId"], event["type"], event["agentId"]) for event in events]


def stored_seqs(team, machine):
    where = f"machine_id = '{machine.identity.machine_id}'"
    return dict(rows_of(team.ask, "agents", "agent_id, seq", where))


def local_seqs(machine):
    agents = machine.local.list_agents()
    return {machine.identity.agent_id(one.agent_id): one.record.seq for one in agents}


def is_complete(team, machine):
    """Return whether the database has all of a machine; False while it is away."""
    try:
        return (
            machine.identity is not None
            and stored_seqs(team, machine) == local_seqs(machine)
            and len(stored_events(team, machine)) >= len(expected_events(machine))
            and machine.status().get("waitingReadings") == 0
        )
    except psycopg.OperationalError:
        return False


def test_three_machines_through_kills_of_either_side(team, machines, tmp_path):
    """All is there once and in order, each row its machine's own, and nothing else has left."""
    chance = random.Random(36)
    replay = Replay(tmp_path, "r2")
    assert str(replay.session.state) == str(machines[0].directory)
    for machine in machines:
        machine.start()
    agents, reported = {}, {}
    for number, machine in enumerate(machines[1:]):
        for name in ("boss", "boss.scout", "other"):
            agent = machine.agent(
                name,
                parent_id="boss" if "." in name else None,
                label=f"{SECRET}: {name} {number}",
                goal=f"{SECRET} goal",
            )
            agent.plan([f"{SECRET} item {one}" for one in range(3)])
            agents[machine, name], reported[machine, name] = agent, []
    for turn in range(ROUNDS):
        for (machine, name), agent in agents.items():
            reported[machine, name].append(1_000 * (turn + 1) + len(name))
            work(agent, reported[machine, name][-1])
        if turn < 12:
            replay.to(turn + 1)
        if turn in (3, 9, 15, 21):
            victim = chance.choice(machines)
            victim.kill()
            victim.start()
        if turn in (6, 18):
            team.crash()
        if turn in (8, 19):
            team.postgres.start()
    for (_, name), agent in agents.items():
        with agent.task(f"{SECRET} item 0"):
            pass
        agent.hand_off(notes=f"{SECRET} notes of {name}")
        agent.stop()
    for machine in machines:
        until(lambda machine=machine: is_complete(team, machine), machine.process)
        assert stored_events(team, machine) == expected_events(machine)
    for (machine, name), wanted in reported.items():
        where = f"agent_id = '{machine.identity.agent_id(name)}' ORDER BY at"
        assert [one for (one,) in rows_of(team.ask, "readings", "used_tokens", where)] == wanted
    check_screen(team, machines)
    check_owners(team, machines)
    check_trees(team, machines[1])
    check_what_left(dump(team.ask), machines)


def check_screen(team, machines):
    """A person who only looks sees all three, and hears at once when the database is away."""
    reader = team.login(READER)
    done = run("status", "--all", "--json", ULTRAMON_BACKEND=reader)
    assert done.returncode == 0, done.stderr
    agents = json.loads(done.stdout)["agents"]
    ids = {one["agentId"].partition("-")[0] for one in agents}
    assert ids == {machine.identity.machine_id for machine in machines}
    shown = run("status", "--all", ULTRAMON_BACKEND=reader, COLUMNS="160").stdout
    assert all(machine.identity.machine_id in shown for machine in machines), shown
    assert SECRET not in shown
    team.crash()
    began_at = time.monotonic()
    away = run("status", ULTRAMON_BACKEND=reader)
    assert time.monotonic() - began_at < 5
    assert (away.returncode, "database" in away.stderr) == (1, True)
    team.postgres.start()


def check_owners(team, machines):
    """Each machine's rows belong to its own database user."""
    owners = dict(rows_of(team.ask, "machines", "machine_id, database_user"))
    users = [re.search("//(.*?)@", machine.choices.url)[1] for machine in machines]
    assert owners == {
        machine.identity.machine_id: user for machine, user in zip(machines, users, strict=True)
    }
    assert len(set(users)) == 3


def check_trees(team, machine):
    """What belonged together does, for a user who only looks."""
    everyone = PostgresBackend(team.login(READER))
    ids = machine.identity.agent_id
    records = {one.agent_id: one.record for one in everyone.list_agents()}
    everyone.close()
    assert records[ids("boss.scout")].parent_id == ids("boss")
    assert records[ids("boss")].outcome == "completed"
    assert records[ids("boss")].tasks_completed == 1
    [hooked] = [one for one in records.values() if one.host == "claude-code"]
    assert hooked.epoch == 2


LISTED = re.compile(r"[-+.:TZ0-9]*|claude-[a-z]+-[-0-9]+(\[1m\])?|claude-code|sdk|claudeCode")


def check_what_left(lines, machines):
    """No text of a state or an event here is in a line that left, but those that are listed."""
    assert {table for table, _ in lines} >= {"agents", "events", "readings", "machines"}
    words = {*VOCABULARY, *SENT_EVENTS, *_EPOCH_REASONS}
    secrets_here = set()
    for machine in machines:
        for path in machine.directory.glob("subagents/*.json"):
            secrets_here.update(strings_in(json.loads(path.read_bytes())))
        for event in machine.local.events(limit=100_000).events:
            secrets_here.update(strings_in(event))
        secrets_here.update((str(machine.directory), machine.identity.secret.hex(), SECRET))
    shown = {name for _, line in lines for name in json.loads(line)}
    private = {
        one
        for one in secrets_here
        if len(one) > 3 and one not in words | shown and not LISTED.fullmatch(one)
    }
    assert len(private) > 60
    assert any(SECRET in one for one in private)
    # Names of members say nothing: only values are texts of somebody.
    for table, line in lines:
        for value in values_in(json.loads(line)):
            found = [one for one in private if one in value]
            assert found == [], f"{table}: {line}"


def values_in(value):
    """Yield every text that is a value, in JSON within texts too; names of members are none."""
    if isinstance(value, str):
        if value.startswith(("{", "[")):
            yield from values_in(json.loads(value))
        else:
            yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from values_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from values_in(one)
