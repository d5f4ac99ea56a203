"""What screens do while the database does not answer: they wait as long as a look, no longer.

Every other wait for the server takes an hour here: what ends was ended by the limit of a look.
"""

from __future__ import annotations

import time

import pytest
from helpers.postgres_network import backend, direct, network, wait_until  # noqa: F401
from helpers.pty_screen import Terminal

from ultramon.backends.postgres.connection import database
from ultramon.backends.postgres.connection.database import Database, DatabaseAwayError
from ultramon.cli import main
from ultramon.metrics.source import MetricsSource
from ultramon.notices.message import Draft
from ultramon.testing.contract.states import start
from ultramon.web.agent_reader import AgentReader

LOOK_SECONDS = 1.0
HOUR = 3600.0
COMMANDS = [("status",), ("watch", "--once"), ("report",), ("events",), ("explain", "scout-1")]
CUTS = {"refuse": lambda network: network.refuse(), "hang": lambda network: network.hang()}


@pytest.fixture(autouse=True)
def patient_agents(monkeypatch):
    """What is not limited by a look waits longer than a test."""
    monkeypatch.setattr(database, "FIRST_CONNECT_SECONDS", HOUR)
    monkeypatch.setattr(database, "CONNECT_SECONDS", HOUR)
    for lend in (Database.connection, Database.transaction):
        monkeypatch.setitem(lend.__wrapped__.__kwdefaults__, "silence_seconds", HOUR)


@pytest.fixture
def screen(backend):
    """The store as a screen sees it."""
    backend.limit_waits(LOOK_SECONDS)
    return backend


def problem_of(look):
    """Return the error of a look that found no database."""
    with pytest.raises(DatabaseAwayError) as caught:
        look()
    return str(caught.value)


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda one: one[0])
@pytest.mark.parametrize("cut", CUTS)
def test_a_command_ends_with_the_limit_of_a_look(
    network, direct, cut, arguments, monkeypatch, capsys
):
    """Whether the port refuses or does not answer; one line says it."""
    start(direct, now=time.time())
    CUTS[cut](network)
    monkeypatch.setenv("ULTRAMON_BACKEND", network.url)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    assert (ended.value.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "the database cannot be reached" in said.err


@pytest.mark.parametrize("cut", CUTS)
def test_a_database_that_falls_silent_is_noticed(screen, network, direct, cut, monkeypatch):
    """Also behind a connection that was open; then at once, and it is found again."""
    monkeypatch.setattr(database, "_TRUSTED_SECONDS", 0.0)
    start(direct, now=time.time())
    seen = {}
    assert len(screen.changes(None, seen).changed) == 1
    CUTS[cut](network)
    monkeypatch.setattr(database, "_AWAY_SECONDS", HOUR)
    problem_of(lambda: screen.changes(None, seen))
    assert "(a moment ago)" in problem_of(screen.machines)
    monkeypatch.setattr(database, "_AWAY_SECONDS", 0.0)
    screen.database._away_until = time.monotonic()
    start(direct, "scout-2", now=time.time())
    network.accept() if cut == "refuse" else network.flow()

    def found():
        try:
            return screen.changes(None, seen).changed
        except DatabaseAwayError:
            return []

    assert [agent.agent_id for agent in wait_until(found)] == ["scout-2"]


@pytest.mark.parametrize("cut", CUTS)
def test_the_page_and_a_scrape_fail_together(screen, network, cut, monkeypatch):
    """Several questions of one drawing do not add up: the first one's answer is that of all."""
    monkeypatch.setattr(database, "_AWAY_SECONDS", HOUR)
    reader, source = AgentReader(screen), MetricsSource(screen, cache_seconds=0.0)
    CUTS[cut](network)
    first = problem_of(lambda: reader.look(None, 50, with_ended=True))
    for look in (source.collect, lambda: screen.queue.depth(now=time.time())):
        assert "(a moment ago)" in problem_of(look)
    assert "(a moment ago)" not in first


def test_what_waits_on_this_machine_delays_no_screen(screen, network):
    """It is stored later: the look and the delivery share the second."""
    network.hang()
    screen.queue.queue_message(Draft("boss", "hello"), now=time.time())
    assert screen.outbox.may_wait()
    assert not screen.deliver_kept()
    problem_of(screen.list_agents)


def test_a_long_question_is_waited_for(screen, monkeypatch):
    """A database that answers slowly is not one that does not answer."""
    monkeypatch.setattr(database, "_TRUSTED_SECONDS", 0.0)
    screen.limit_waits(0.2)
    screen.list_agents()
    assert screen.database.select("SELECT 1 FROM pg_sleep(0.5)") == [(1,)]


def test_a_watch_outlives_an_outage(network, direct):
    """The agents stay on the screen, with what is wrong; then they are up to date again."""
    start(direct, now=time.time())
    terminal = Terminal(
        *("watch", "--format", "table", "--interval", "0.1"),
        columns=160,
        ULTRAMON_BACKEND=network.url,
    )
    terminal.wait_for("scout-1")
    network.refuse()
    terminal.wait_for("(?s)scout-1.*cannot be read now: postgresql:")
    start(direct, "scout-2", now=time.time())
    network.accept()
    terminal.wait_for("scout-2")
    assert not any("cannot be read" in line for line in terminal.lines)
    terminal.child.send("q")
    terminal.end()
