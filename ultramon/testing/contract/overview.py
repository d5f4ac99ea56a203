"""Conformance of overviews: every sentence of `ultramon.backends.overview`, as tests."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from ultramon.state.liveness import ALIVE, ENDED, LOST, STALE, judge
from ultramon.system.processes import process_started_at, this_machine
from ultramon.testing.clock import START
from ultramon.testing.contract.states import prune, start, write
from ultramon.testing.samples import make_event, make_record

if TYPE_CHECKING:
    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.overview import Page
    from ultramon.state.record import StateRecord

NOW = START + 10_000
_ELSEWHERE = {"hostname": "elsewhere", "boot_id": "another-boot"}
_EARLIER = {"boot_id": "an-earlier-boot", "pid": 1}
_AGES = (0.0, 40.0, 46.0, 100.0, 599.0, 601.0, 5_000.0, 1e8, -60.0)
_RANKS = {"force_return": 1, "prepare_handoff": 2}


def page(backend: Any, run: str | None = None, **options: Any) -> Page:
    """Return a page as of `NOW`, seen from this machine."""
    shown: Page = backend.overview.page(run, now=NOW, machine=this_machine(), **options)
    return shown


def ids(shown: Page) -> list[str]:
    """Return the ids of the agents of a page, in order."""
    return [agent.agent_id for agent in shown.agents]


def verdict_of(agent: StoredAgent) -> str:
    """Return what the one judge says of an agent as of `NOW`."""
    assert agent.record is not None
    return judge(agent.record, agent.heartbeat_at, NOW, this_machine()).verdict


def urgency(agent: StoredAgent) -> tuple[int, float, str]:
    """Return what the order of a page goes by."""
    record, verdict = agent.record, verdict_of(agent)
    assert record is not None
    rank = _RANKS.get(record.action, 3 if verdict == STALE else 4)
    rank = {LOST: 0, ENDED: 5}.get(verdict, rank)
    return rank, -(record.usage_ratio or 0.0), record.agent_id


def gone_process() -> tuple[int, str | None]:
    """Return the pid and start of a process of this machine that has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started_at = process_started_at(process.pid)
        process.communicate(b"\n")
    return process.pid, started_at


def random_agent(chance: random.Random, number: int, gone: tuple[int, str | None]) -> StateRecord:
    """Return an agent of any urgency, here or elsewhere."""
    at = NOW - chance.choice(_AGES)
    own = os.getpid()
    owner: dict[str, Any] = chance.choice(
        (
            _ELSEWHERE,
            _ELSEWHERE,
            _EARLIER,
            {"pid": None},
            {"pid": own, "pid_started_at": process_started_at(own)},
            {"pid": own, "pid_started_at": "1"},
            {"pid": own, "pid_started_at": None},
            dict(zip(("pid", "pid_started_at"), gone, strict=True)),
        )
    )
    return make_record(
        f"agent-{number}",
        at=at,
        **owner,
        started_at=at - chance.choice((0.0, 0.0, 3_600.0, -200.0)),
        run=chance.choice(("a", "b")),
        active=chance.random() < 0.85,
        phase=chance.choice(("working", "in_tool", "waiting")),
        heartbeat_interval_seconds=chance.choice((15.0, 15.0, 0.5, 120, None)),
        lost_after_seconds=chance.choice((None, None, 30.0, 20, 3_000.0)),
        usage_ratio=chance.choice((None, 0.0, 0, 0.5, 0.5, 0.9, 1, 1.25)),
        action=chance.choice(("none", "none", "prepare_handoff", "force_return", "other")),
    )


def put(backend: Backend, record: StateRecord, beat_at: float) -> None:
    """Store an agent that beat last when it says."""
    backend.start_agent(
        record.agent_id,
        lambda _former, _generation: (record, []),
        takeover=True,
        now=beat_at,
        machine=this_machine(),
    )


class OverviewContract:
    """Pages, counts and names. Give the fixture `backend`."""

    @pytest.mark.parametrize("seed", range(3))
    def test_order_and_counts_are_those_of_the_judge(self, backend: Backend, seed: int) -> None:
        """Of any agents, each page is the stretch of what sorting all judged ones gives."""
        chance, gone = random.Random(seed), gone_process()
        for number in range(60):
            record = random_agent(chance, number, gone)
            put(backend, record, record.last_heartbeat + chance.choice((0.0, 0.0, 50.0, -500.0)))
        for run in (None, "a"):
            agents = sorted(backend.list_agents(run), key=urgency)
            verdicts = Counter(map(verdict_of, agents))
            expected = [agent.agent_id for agent in agents]
            living = expected[: len(expected) - verdicts[ENDED]]
            whole = page(backend, run, include_ended=True)
            assert ids(whole) == expected
            assert whole.counts == {name: verdicts[name] for name in (ALIVE, STALE, LOST, ENDED)}
            assert ids(page(backend, run)) == living
            for skip, limit in ((0, 1), (0, 7), (5, 20), (30, 200), (1_000, 5)):
                shown = page(backend, run, skip=skip, limit=limit)
                assert ids(shown) == living[skip : skip + limit]
                assert shown.counts == whole.counts
                ended_too = page(backend, run, skip=skip, limit=limit, include_ended=True)
                assert ids(ended_too) == expected[skip : skip + limit]

    def test_a_store_of_silent_agents_is_judged_too(self, backend: Backend) -> None:
        """When no agent beat for long all are lost, the fullest first."""
        for number in range(5):
            put(backend, make_record(f"agent-{number}", usage_ratio=number / 10), START)
        shown = page(backend, limit=2)
        assert shown.counts == {ALIVE: 0, STALE: 0, LOST: 5, ENDED: 0}
        assert ids(shown) == ["agent-4", "agent-3"]

    def test_an_empty_store_has_an_empty_page(self, backend: Backend) -> None:
        """Every verdict is counted, with 0."""
        shown = page(backend)
        assert (ids(shown), shown.counts) == ([], dict.fromkeys((ALIVE, STALE, LOST, ENDED), 0))
        assert backend.events(shown.cursor).events == []

    def test_agents_are_those_that_load_returns(self, backend: Backend) -> None:
        """State and heartbeat are whole, of many agents too, and asking changes nothing."""
        for number in range(450):
            put(backend, make_record(f"agent-{number:03}", at=NOW, label="näive"), NOW)
        shown = list(page(backend).agents)
        assert [agent.agent_id for agent in shown] == [f"agent-{n:03}" for n in range(450)]
        for agent in shown[::100]:
            loaded = backend.load(agent.agent_id)
            assert agent.record is not None
            assert loaded.record is not None
            assert agent.record.to_json() == loaded.record.to_json()
            assert agent.heartbeat_at == loaded.heartbeat_at

    def test_a_page_follows_every_write(self, backend: Backend) -> None:
        """A save, an end, a beat and a new owner are in the next page."""
        put(backend, make_record("a", at=NOW), NOW)
        record = make_record("b", at=NOW)
        put(backend, record, NOW)
        assert ids(page(backend)) == ["a", "b"]
        write(backend, record, usage_ratio=0.9, action="force_return")
        assert ids(page(backend)) == ["b", "a"]
        write(backend, record, active=False, outcome="completed")
        assert page(backend).counts == {ALIVE: 1, STALE: 0, LOST: 0, ENDED: 1}
        put(backend, make_record("a", generation=2, at=NOW - 50), NOW - 50)
        assert page(backend).counts == {ALIVE: 0, STALE: 1, LOST: 0, ENDED: 1}
        backend.heartbeat([("a", 2)], NOW)
        assert page(backend).counts == {ALIVE: 1, STALE: 0, LOST: 0, ENDED: 1}

    def test_who_is_deleted_meanwhile_is_left_out(self, backend: Backend) -> None:
        """Agents are read when they are reached."""
        record = start(backend, "gone")
        put(backend, make_record("here", at=NOW), NOW)
        shown = page(backend, include_ended=True)
        write(backend, record, active=False, last_activity=START - 1)
        prune(backend, START)
        assert ids(shown) == ["here"]

    def test_news_lie_behind_the_cursor(self, backend: Backend) -> None:
        """What is stored after a page is found behind its cursor, what was stored before is not."""
        backend.append_events([make_event("a", n=1)])
        shown = page(backend)
        backend.append_events([make_event("a", n=2)])
        assert [event["n"] for event in backend.events(shown.cursor).events] == [2]

    def test_ids_are_found_by_their_beginning(self, backend: Any) -> None:
        """As they are stored and as they are shown; nothing in it is a wildcard."""
        session = "6c575986-d4a6-4be2-966d-4edbcdd24d7f"
        names = ("scout-1", "scout-10", "scout_2", "scouts", "Scout-1")
        for name in (*names, session, f"{session}.helper"):
            record = make_record(name, session_id=session)
            record.host = "claude_code" if name.startswith(session) else "sdk"
            put(backend, record, START)
        find = backend.overview.find_by_prefix
        assert find("scout-1") == ["scout-1", "scout-10"]
        assert find("scout") == ["scout-1", "scout-10", "scout_2", "scouts"]
        assert find("6c575986.h") == [f"{session}.helper"]
        assert find("6c575986-") == find("6c575986") == [session, f"{session}.helper"]
        assert len(find("")) == len(names) + 2
        for unknown in ("scout-2", "s_out", "s%", "scout-1\0", '"', "\udcff", "z" * 200):
            assert find(unknown) == []

    def test_agents_are_found_by_label(self, backend: Any) -> None:
        """The whole label as it is now, whatever characters and however many it has."""
        labels = ["night shift", "näive 探", 'a "b" \0 \udcff', "x" * 5_000]
        for number, label in enumerate(labels):
            put(backend, make_record(f"agent-{number}", label=label), START)
        put(backend, make_record("other", label="night shift"), START)
        put(backend, make_record("none"), START)
        find = backend.overview.find_by_label
        assert find("night shift") == ["agent-0", "other"]
        assert [find(label) for label in labels[1:]] == [["agent-1"], ["agent-2"], ["agent-3"]]
        for unknown in ("night", "Night shift", "", '"', "night shift\0"):
            assert find(unknown) == []
