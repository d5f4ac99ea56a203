"""Checks the history of a run by what is stored: journal, claims and states, nothing else."""

from __future__ import annotations

import sqlite3
from collections import Counter
from pathlib import Path

from ultramon.backends.local.backend import LocalBackend
from ultramon.state.plan import DONE


def read_events(backend, run=None):
    """Return all events of a run in commit order."""
    events, cursor = [], None
    while (page := backend.events(cursor)).events:
        events += page.events
        cursor = page.cursor
    return [event for event in events if run in (None, event["run"])]


def read_claims(directory):
    """Return (handoff id, agent that left it, successor) of every claim that holds."""
    connection = sqlite3.connect(Path(directory) / "journal.sqlite3")
    try:
        query = (
            "SELECT handoff_id, agent_id, successor_id FROM handoff_claims"
            " WHERE status <> 'released'"
        )
        return connection.execute(query).fetchall()
    finally:
        connection.close()


class History:
    """What a directory tells about a run."""

    def __init__(self, directory, run):
        backend = LocalBackend(str(directory))
        self.events = read_events(backend, run)
        agents = backend.list_agents(run)
        assert [agent.problem for agent in agents if agent.problem] == []
        self.records = {agent.agent_id: agent.record for agent in agents}
        self.claims = read_claims(directory)
        backend.close()

    def check(self, planned=()):
        """Assert all that must hold for a run that is over; return it."""
        self.check_crossings()
        self.check_verdicts()
        self.check_claims()
        self.check_items(planned)
        return self

    def check_crossings(self):
        """Each crossing is announced as often as its agent counted it, through every restart."""
        told = Counter()
        for event in self.events:
            if event["type"] == "context_threshold_reached":
                told[event["agentId"], event["epoch"], event["level"]] += 1
        for agent_id, record in self.records.items():
            counted = dict(record.announced["rungs"])
            epoch = record.announced["epoch"]
            seen = {
                level: n
                for (who, when, level), n in told.items()
                if (who, when) == (agent_id, epoch)
            }
            # The journal is written before the state: a kill in between leaves one more there.
            untold = Counter(counted) - Counter(seen)
            beyond = Counter(seen) - Counter(counted)
            assert not untold, f"{agent_id} counted {counted}, the journal has {seen}"
            assert beyond.total() <= record.active, f"{agent_id}: {beyond} announced, not counted"

    def check_verdicts(self):
        """Each life is lost at most once, each episode stale and recovered at most once."""
        seen = Counter(
            (event["type"], event["agentId"], event["generation"], event["n"])
            for event in self.events
            if event["type"] in ("agent_stale", "agent_recovered", "agent_lost", "agent_expired")
        )
        assert [verdict for verdict, times in seen.items() if times > 1] == []

    def check_claims(self):
        """Each handoff went to one successor at most, and each successor claimed what it has."""
        left = {
            event["handoff"]["handoffId"]: event["agentId"]
            for event in self.events
            if event["type"] == "handoff_ready"
        }
        assert len({handoff for handoff, _, _ in self.claims}) == len(self.claims)
        assert len({successor for _, _, successor in self.claims}) == len(self.claims)
        for handoff_id, agent_id, _ in self.claims:
            assert left[handoff_id] == agent_id
        claimed = {(agent_id, successor) for _, agent_id, successor in self.claims}
        for record in self.records.values():
            if record.predecessor_id is not None:
                assert (record.predecessor_id, record.agent_id) in claimed

    def check_items(self, planned):
        """Each planned item is done, and counted by one agent alone."""
        done, known = Counter(), set(planned)
        for record in self.records.values():
            tasks = record.tasks or []
            known.update(task["name"] for task in tasks)
            finished = [task["name"] for task in tasks if task["status"] == DONE]
            assert record.tasks_completed == len(finished)
            done.update(finished)
        assert sorted(known - set(done)) == [], "lost"
        assert [item for item, times in done.items() if times > 1] == [], "counted twice"
