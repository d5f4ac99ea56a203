"""`ultramon report` over a database: what the agents of several machines used."""

from __future__ import annotations

import json

import pytest
from helpers.program import run
from helpers.team import ATTIC, login, server, team  # noqa: F401

from ultramon.backends.postgres.admin.roles import ADMIN, WRITER


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


def test_old_readings_are_pruned_and_their_sums_stay(team, login, server):
    """Only by an administrator; a dry run counts them."""
    kept = server("SELECT count(*) FROM ultramon.reading_days")
    prune = ("backend", "prune", "--json", "--readings-older-than", "12h")
    refused = run(*prune, ULTRAMON_BACKEND=login(WRITER))
    assert "permission denied" in refused.stderr
    admin = login(ADMIN)
    for dry in (["--dry-run"], []):
        facts = json.loads(run(*prune, *dry, ULTRAMON_BACKEND=admin).stdout)
        assert (facts["readings"], facts["readingDays"]) == (2, 0)
    assert server("SELECT count(*) FROM ultramon.readings WHERE at < 1.0e9") == [(0,)]
    assert server("SELECT count(*) FROM ultramon.reading_days") == kept
    facts = json.loads(run(*prune, "--days-older-than", "60d", ULTRAMON_BACKEND=admin).stdout)
    assert (facts["readings"], facts["readingDays"]) == (0, 1)


def test_what_a_machine_wants_forgotten_is_pruned(team, login, server):
    """Also where it never comes back to do so."""
    server(f"UPDATE ultramon.machines SET retention_seconds = 3600 WHERE machine_id = '{ATTIC}'")
    done = run("backend", "prune", ULTRAMON_BACKEND=login(ADMIN))
    assert done.returncode == 0, done.stderr
    mirrored = f"FROM ultramon.readings WHERE machine_id = '{ATTIC}'"
    assert server(f"SELECT count(*) {mirrored}") == [(2 + 1,)]
