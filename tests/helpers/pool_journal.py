"""The events of a supervised run, made by hand, and the pool that they add up to."""

from __future__ import annotations

from ultramon.fleet.journal_event import JournalEvent
from ultramon.fleet.supervise.jobs import added, make_event, name_in_run
from ultramon.fleet.supervise.pool import ItemPool
from ultramon.state.events import parse_event
from ultramon.system.timestamps import format_time
from ultramon.testing.clock import START


class Journal:
    """Events in the order of a journal, and the pool that they add up to."""

    def __init__(self, items=(), max_attempts=3):
        self.events = []
        self.pool = ItemPool(max_attempts)
        self.max_attempts = max_attempts
        if items:
            self.add(items)

    def add(self, items):
        for event in added("job", "job.pool", items, source="fleet:main", at=START):
            self.append(event)

    def append(self, event):
        parse_event(event)
        self.events.append(event)
        steps = self.pool.read(JournalEvent.of(event), str(len(self.events)))
        return [told.name for told in steps]

    def note(self, agent_id, kind, *, generation=1, **details):
        event = make_event("job", agent_id, kind, source="fleet:main", at=START, **details)
        return self.append({**event, "generation": generation})

    def assign(self, share=10**6, supervisor="me"):
        work = self.pool.next_work(share)
        agent_id = name_in_run("job", len(self.pool.contexts) + 1)
        what = (
            {"items": work.items} if work.handoff is None else {"handoff": work.handoff.to_json()}
        )
        self.note(agent_id, "agent_assigned", generation=0, supervisor=supervisor, **what)
        self.note(agent_id, "agent_started")
        return self.pool.contexts[agent_id]

    def claim(self, context, items, *, verified=True):
        self.note(context.agent_id, "items_claimed", items=items)
        if verified:
            self.note(context.agent_id, "items_verified", items=items)

    def reject(self, context, items):
        for attempt in (1, 2):
            reasons = dict.fromkeys(items, "not verified")
            facts = {"items": items, "reasons": reasons, "attempt": attempt}
            self.note(context.agent_id, "items_rejected", **facts)

    def end(self, context, in_work=(), *, exit=None, is_enforced=False, **details):
        kind = "agent_lost" if details.get("outcome") == "lost" else "agent_stopped"
        self.note(context.agent_id, kind, **{"outcome": "completed", **details})
        found, given_up = self.pool.closing(context, in_work, exit or {}, is_enforced=is_enforced)
        told = self.note(context.agent_id, "context_closed", **found.to_json())
        if given_up:
            facts = {"items": list(given_up), "reasons": given_up}
            told += self.note(context.agent_id, "items_set_aside", **facts)
        return told

    def hand_off(self, context, interrupted=(), remaining=(), **said):
        handoff = {
            "handoffId": f"of-{context.agent_id}",
            "agentId": context.agent_id,
            "run": "job",
            "epoch": 1,
            "tokens": 100,
            "createdAt": format_time(START),
            "reason": "threshold_warning",
            "completed": [],
            "interrupted": list(interrupted),
            "remaining": list(remaining),
            **said,
        }
        self.note(context.agent_id, "handoff_ready", handoff=handoff)
