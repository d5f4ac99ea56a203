"""`ultramon report` over a database: what the agents of several machines used."""

from __future__ import annotations

import json
import time

import pytest
from helpers.postgres_roles import login, server  # noqa: F401
from helpers.program import run

from ultramon.backends.postgres.admin.roles import MACHINE, READER
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.store.mirror import MirroredState, Reading
from ultramon.testing.contract.states import start, write
from ultramon.testing.samples import make_event, make_record

ATTIC, CELLAR = "m0123abcd", "mfedc9876"
DAY_SECONDS = 86_400


def use(url, machine_id, name, agents):
    """Let a machine send agents: each with its host, model and increments of its readings."""
    backend = PostgresBackend(url)
    mirror = backend.mirror(machine_id)
    mirror.announce(name=name, sent_fields=(), retention_seconds=None)
    now = time.time()
    for position, (tag, host, model, parent, used) in enumerate(agents, 1):
        agent_id = f"{machine_id}-{tag}"
        record = make_record(
            agent_id, at=now, host=host, model=model, parent_id=parent, hostname=machine_id
        )
        readings = [
            Reading(agent_id, now - ago, host, model, 1, "normal", peak, 200_000, *rest)
            for ago, peak, *rest in used
        ]
        crossed = [make_event(agent_id, "context_threshold_reached", at=now, level="warning")]
        mirror.store(position, [MirroredState(record, now)], crossed, readings)
    backend.close()


@pytest.fixture
def team(postgres_store, login):
    """A reader's URL of a store with two machines, and an agent that stores there itself."""
    use(
        login(MACHINE),
        ATTIC,
        "attic",
        [
            ("1", "claude-code", "opus", None, [(0, 9_000, 10, 500, 20, 7, 0.5), (1, 100)]),
            ("2", "claude-code", "haiku", f"{ATTIC}-1", [(0, 1_000, 1, None, None, 3, 0.25)]),
            ("3", "codex", "gpt-5", None, [(DAY_SECONDS, 5_000, 2, 3, 4, 5, None)]),
            ("4", "codex", "gpt-5", None, [(90 * DAY_SECONDS, 1)]),
        ],
    )
    use(login(MACHINE), CELLAR, None, [("1", "claude-code", "opus", None, [(0, 70_000)])])
    backend = PostgresBackend(postgres_store)
    write(backend, start(backend), measured_at=time.time(), estimated_tokens=400)
    backend.close()
    return login(READER)


def report(url, *arguments):
    return run("report", *arguments, ULTRAMON_BACKEND=url, COLUMNS="160")


def test_a_teams_month_is_told_apart(team):
    """By machine, host, model and day; a cost that is not whole is a lower bound."""
    done = report(team)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "30 days · 5 sessions · 1 subagent · 3 machines"
    cells = {line.split("  ")[0].strip(): line.split() for line in lines}
    assert cells["attic"] == [
        *("attic", "3", "1", "≥", "$0.75", "37", "503", "15", "9.0k", "4"),
    ]
    assert cells["mfedc9876"] == ["mfedc9876", "1", "unpriced", "70k", "1"]
    assert cells["direct"] == ["direct", "1", "unpriced", "400"]
    assert cells["codex"][:2] == ["codex", "2"]
    assert {"opus", "haiku", "gpt-5", "unknown", "sdk"} <= cells.keys()


def test_json_has_every_figure(team):
    """The names of its members are those of other reports."""
    facts = json.loads(report(team, "--json", "--by", "machine").stdout)
    assert facts["days"] == 30
    assert set(facts) == {"url", "since", "days", "total", "byMachine"}
    [attic] = [one for one in facts["byMachine"] if one["machine"] == ATTIC]
    assert attic == {
        "machine": ATTIC,
        "name": "attic",
        "sessions": 3,
        "subagents": 1,
        "readings": 4,
        "peakTokens": 9_000,
        "inputTokens": 13,
        "cacheReadTokens": 503,
        "cacheWriteTokens": 24,
        "outputTokens": 15,
        "costUsd": 0.75,
        "unpricedAgents": 1,
        "crossings": 4,
        "compactions": 0,
    }


@pytest.mark.parametrize("name", ["attic", ATTIC, "m01"])
def test_one_machine_is_named_by_name_or_id(team, name):
    """Or by the beginning of its id."""
    facts = json.loads(report(team, "--json", "--machine", name).stdout)
    assert [one["machine"] for one in facts["byMachine"]] == [ATTIC]
    assert {one["host"] for one in facts["byHost"]} == {"claude-code", "codex"}


def test_days_are_chosen(team):
    """Today is one of them."""
    facts = json.loads(report(team, "--json", "--days", "365", "--by", "day").stdout)
    assert facts["total"]["sessions"] == 5
    assert len(facts["byDay"]) == 3


def test_what_does_not_fit_is_refused(team, postgres_store):
    """With what does."""
    assert "machine='garden'" in report(team, "--machine", "garden").stderr
    assert "one of attic, mfedc9876" in report(team, "--machine", "garden").stderr
    assert report(team, "--by", "week").returncode == 2
    assert "in a database only" in run("report", "--machine", "attic").stderr
    empty = report(team, "--days", "1", "--machine", "direct")
    assert empty.returncode == 0
