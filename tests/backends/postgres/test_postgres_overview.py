"""`status`, `watch` and the names of agents over a PostgreSQL store: sorted and judged there."""

import json
import random
import re
import time

import pytest
from helpers.program import NOTHING, run
from helpers.pty_screen import Terminal

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.memory import MemoryBackend
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.cli.agent_list import PagedAgentList, open_agent_list
from ultramon.cli.exit_codes import ExitCode
from ultramon.cli.selection import find_agent, find_agent_id
from ultramon.errors import AgentNotFoundError
from ultramon.state.liveness import judge
from ultramon.system.processes import this_machine
from ultramon.testing import OverviewContract, make_record
from ultramon.testing.contract.overview import NOW, gone_process, put, random_agent

ELSEWHERE = {"hostname": "elsewhere", "boot_id": "another-boot"}


@pytest.fixture
def backend(postgres_store):
    backend = PostgresBackend(postgres_store)
    yield backend
    backend.close()


@pytest.fixture
def ask(postgres_store):
    """The program over the store of the test."""

    def ask(*arguments):
        return run(*arguments, ULTRAMON_BACKEND=postgres_store)

    return ask


@pytest.fixture
def crowd(backend):
    """Sixty agents that beat, three that need somebody, one that ended."""
    now = time.time()
    for number in range(60):
        put(backend, remote(f"calm-{number:02}", now, usage_ratio=number / 100), now)
    put(backend, remote("gone", now - 5_000), now - 5_000)
    put(backend, remote("full", now, usage_ratio=0.9, action="force_return"), now)
    put(backend, remote("quiet", now - 100, label="night shift"), now - 100)
    put(backend, remote("past", now, active=False, outcome="returned"), now)


def remote(agent_id, at, **fields):
    return make_record(agent_id, at=at, **{**ELSEWHERE, **fields})


class TestPostgresOverview(OverviewContract):
    """The public suite."""


@pytest.mark.parametrize(("writers", "readers"), [(90.0, 0.0), (0.0, 90.0), (-3_600.0, 45.0)])
def test_clocks_that_differ_change_no_verdict(backend, postgres_store, writers, readers):
    """However far the clocks of writer and reader are from the server's, SQL and judge agree."""
    writer = PostgresBackend(postgres_store)
    for one, skew_seconds in ((writer, writers), (backend, readers)):
        one.change_mark()  # a first question measures the skew
        one.database.skew_seconds = skew_seconds
    chance, gone = random.Random(7), gone_process()
    for number in range(60):
        record = random_agent(chance, number, gone)
        put(writer, record, record.last_heartbeat)
    writer.close()
    verdicts = {}
    for agent in backend.list_agents():
        verdict = judge(agent.record, agent.heartbeat_at, NOW, this_machine()).verdict
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    counts = backend.overview.page(None, now=NOW, machine=this_machine()).counts
    assert {verdict: count for verdict, count in counts.items() if count} == verdicts


def test_numbers_that_no_agent_ever_had_keep_no_page_from_being_shown(backend):
    """A silence too long for a float is endless in SQL; a reader of the state learns of it."""
    put(backend, remote("endless", NOW, lost_after_seconds=10**400), NOW - 90_000)
    put(backend, remote("slow", NOW, heartbeat_interval_seconds=10**400), NOW)
    page = backend.overview.page(None, now=NOW, machine=this_machine())
    assert [(agent.agent_id, agent.record) for agent in page.agents] == [
        ("endless", None),
        ("slow", None),
    ]
    assert all("no number that an agent can have" in str(agent.problem) for agent in page.agents)
    assert page.counts["alive"] == 2


@pytest.mark.usefixtures("crowd")
def test_status_shows_as_many_as_asked_for(ask):
    """The most urgent first, and how many are left out; all of them in a pipe."""
    done = ask("status", "--limit", "4")
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert names == ["gone", "full", "night", "calm-59"]
    assert done.stderr == (
        "1 ended, shown with --all\n59 less urgent ones left out, shown with --limit 63\n"
    )
    whole = ask("status", "--all")
    assert len(whole.stdout.splitlines()) == 65
    assert whole.stderr == ""


@pytest.mark.usefixtures("crowd")
def test_json_has_the_same_agents(ask, backend):
    """One document, printed as it is read, like the one of a store that is listed."""
    shown = ask("status", "--json", "--all").stdout
    agents = json.loads(shown)["agents"]
    assert len(agents) == 64
    assert [one["agentId"] for one in agents[:2] + agents[-1:]] == ["gone", "full", "past"]
    assert json.loads(shown)["unreadable"] == []
    cut = ask("status", "--json", "--limit", "1")
    assert [one["liveness"] for one in json.loads(cut.stdout)["agents"]] == ["lost"]
    assert cut.stderr.startswith("62 less urgent ones left out")
    with backend.database.transaction() as connection:
        connection.execute(
            "UPDATE ultramon.agents SET document = 'x' WHERE agent_id = %s",
            ("gone",),
        )
    torn = json.loads(ask("status", "--json", "--limit", "2").stdout)
    assert [one["agentId"] for one in torn["agents"]] == ["full"]
    assert [one["agentId"] for one in torn["unreadable"]] == ["gone"]


def test_an_empty_store_has_nobody(ask):
    """The words and the document are those of every other store."""
    assert ask("status").stderr == NOTHING
    empty = {"agents": [], "unreadable": [], "plan": [], "budgets": []}
    assert ask("status", "--json").stdout == json.dumps(empty, indent=2) + "\n"
    assert ask("watch", "--format", "tmux").stdout == "um 0 agents\n"


@pytest.mark.usefixtures("crowd")
def test_watch_draws_a_screenful(postgres_store, backend):
    """The most urgent that fit, and the numbers of all; it follows what happens."""
    terminal = Terminal(
        *("watch", "--interval", "0.1", "--notify", "bell", "--format", "table"),
        rows=8,
        columns=120,
        ULTRAMON_BACKEND=postgres_store,
    )
    try:
        terminal.wait_for(r"^agent .*\ngone .*\nfull .*\nnight shift .*\ncalm-59 .*\ncalm-58")
        terminal.wait_for("62 living, 1 lost, 1 ended, shown with --all, 58 more than fit, q ends")
        config = ContextConfig(context_limit_tokens=1_000, on_error="raise")
        with create_context_monitor("scout", config, backend=backend) as scout:
            scout.report_usage(input_tokens=750)
            terminal.wait_for(r"full .*\nscout +\S+ +warning .* 75 %.*\nnight shift")
            terminal.wait_for("63 living, 1 lost, .* 59 more than fit")
        terminal.wait_for("62 living, 1 lost, 2 ended")
        terminal.child.send("q")
        assert terminal.end() == (0, None)
    finally:
        terminal.child.close(force=True)
    assert terminal.raw.count(b"\a") == 1


@pytest.mark.usefixtures("crowd")
def test_watch_into_a_pipe_can_be_cut_too(ask):
    """--limit holds for every format; without it everybody is printed."""
    cut = ask("watch", "--once", "--limit", "2")
    assert [line.split()[0] for line in cut.stdout.splitlines()] == ["agent", "gone", "full"]
    assert "61 less urgent ones left out" in cut.stderr
    whole = json.loads(ask("watch", "--once", "--json").stdout)["agents"]
    assert len(whole) == 63
    lines = json.loads(ask("watch", "--once", "--json", "--limit", "2").stdout)["agents"]
    assert [one["agentId"] for one in lines] == ["gone", "full"]


TMUX = [
    ([("a", 0.2, "none", 0), ("b", 0.5, "none", 0)], "um 2 agents · b 50% normal"),
    ([("a", 0.9, "none", 100), ("b", 0.5, "none", 0)], "um 2 agents · a 90% normal · 1 stale"),
    ([("a", 0.3, "none", 100), ("b", 0.5, "none", 0)], "um 2 agents · b 50% normal · 1 stale"),
    (
        [("a", 0.3, "prepare_handoff", 100), ("b", 0.5, "none", 0), ("c", 1.0, "none", 9_000)],
        "um 2 agents · a 30% normal · 1 stale · 1 lost",
    ),
]


@pytest.mark.parametrize(("agents", "line"), TMUX)
def test_the_line_for_a_status_bar_reads_few(ask, backend, agents, line):
    """Who is nearest to its limit lives, silent or not."""
    now = time.time()
    for name, ratio, action, age in agents:
        put(backend, remote(name, now - age, usage_ratio=ratio, action=action), now - age)
    put(backend, remote("past", now, active=False, usage_ratio=2.0), now)
    assert ask("watch", "--format", "tmux").stdout == line + "\n"


def test_news_are_told_once_and_of_the_own_run_only(backend):
    """Crossings after the first look, whether the agent is on the page or not."""
    config = ContextConfig(context_limit_tokens=1_000, on_error="raise")
    first = create_context_monitor("a", config, backend=backend, run="audit")
    other = create_context_monitor("b", config, backend=backend, run="other")
    with first, other:
        first.report_usage(input_tokens=750)
        agent_list = open_agent_list(backend, "audit", show_all=False, is_cut=True, with_news=True)
        assert isinstance(agent_list, PagedAgentList)
        assert agent_list.refresh(1) == []
        first.report_usage(input_tokens=900)
        other.report_usage(input_tokens=900)
        put(backend, remote("gone", NOW - 90_000, run="audit"), NOW - 90_000)
        told = [(one.record.agent_id, rung) for one, rung in agent_list.refresh(1)]
        assert told == [("a", "critical")]
        assert [one.record.agent_id for one in agent_list.seen] == ["gone"]
        assert agent_list.refresh(1) == []


def outcome(backend, name):
    """What looking for an agent gives: its id, or the error in its words."""
    try:
        return find_agent_id(backend, name)
    except Exception as error:  # noqa: BLE001 - the class is compared
        return type(error).__name__, str(error)


def test_names_mean_the_same_as_in_every_other_store(backend):
    """Ids, beginnings, shown ids, labels, sessions with subagents, and what fits several."""
    memory = MemoryBackend()
    session = "6c575986-d4a6-4be2-966d-4edbcdd24d7f"
    agents = {name: {} for name in ("scout-1", "scout-10", "scout-2", "x")}
    agents |= {session: {"session_id": session}, f"{session}.a1": {"session_id": session}}
    agents |= {"6c57ffff": {}, "b-1": {"label": "scout"}, "b-2": {"label": "twice"}}
    agents |= {"b-3": {"label": "twice"}, "b-4": {"label": "x"}}
    for store in (backend, memory):
        for name, fields in agents.items():
            record = make_record(name, **fields)
            record.host = "claude_code" if fields.get("session_id") else "sdk"
            put(store, record, time.time())
    names = ["scout-1", "scout-10", "scout-", "s", "scout", "twice", "x", "6c57", "6c575986"]
    names += ["6c575986-d4", "6c575986.a", session, f"{session}.", "b", "nobody", "", "%", "\udcff"]
    found = [outcome(backend, name) for name in names]
    assert found == [outcome(memory, name) for name in names]
    assert found[:2] == ["scout-1", "scout-10"]
    assert found[4] == "b-1"
    assert found[7][0] == "SeveralFound"
    assert found[8:11] == [session, session, f"{session}.a1"]


def test_a_name_that_is_no_text_is_nobodys(backend, ask):
    """Bytes that are not Unicode are looked for like any other name."""
    with pytest.raises(AgentNotFoundError):
        find_agent(backend, "\udcff")
    assert ask("status", "\udcff").returncode == ExitCode.NOT_FOUND


@pytest.mark.usefixtures("crowd")
def test_one_is_found_among_many(ask):
    """An id, the beginning of one and a label are answered by the database."""
    assert re.search(r"^gone ", ask("status", "go").stdout, re.MULTILINE)
    assert re.search(r"^night shift .* quiet$", ask("status", "night shift").stdout, re.MULTILINE)
    assert ask("status", "calm-").stderr.startswith("Error: prefix calm- fits 60 agents: calm-00,")
