"""Conformance of backends, third part: what orchestrators look at, acknowledge and ask for."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from ultramon.backends.base import Changes, Subscription
from ultramon.backends.lease_holder import name_holder
from ultramon.errors import AgentNotFoundError, StateError
from ultramon.system.processes import sees_processes, this_machine
from ultramon.testing.clock import START
from ultramon.testing.contract.events import THREADS, insist
from ultramon.testing.contract.states import held, prune, start, write
from ultramon.testing.samples import make_event

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.backends.base import Backend

    Reopen = Callable[[Backend], Backend] | None
    Damage = Callable[[Backend, str], None] | None

LEASE_SECONDS = 30.0
NOTHING = Subscription(None, {})
MEMORY = {"lives": {"scout-1": [1, "stale"]}, "note": "naïve 探", "ratio": 0.5, "none": None}
REQUEST = {"kind": "return", "deadlineAt": "2026-11-21T20:28:51.642Z", "generation": 1}


def changed(look: Changes) -> list[str]:
    """Return the ids of the agents that a look found changed, sorted."""
    return sorted(agent.agent_id for agent in look.changed)


def end_and_prune(backend: Backend, agent_id: str, **fields: Any) -> None:
    """Let an agent end, long ago, and delete what has ended."""
    record = start(backend, agent_id, takeover=True, **fields)
    write(backend, record, active=False, last_activity=START - 1)
    prune(backend, START)


def subscribe(
    backend: Backend, holder: str, at: float = START, name: str = "main"
) -> Subscription | None:
    """Ask for a consumer name with the lease of these tests."""
    return backend.subscribe(name, holder, now=at, lease_seconds=LEASE_SECONDS)


def next_cursor(backend: Backend, n: int) -> str:
    """Store an event and return the cursor behind it."""
    backend.append_events([make_event("scout-1", n=n)])
    return backend.events().cursor


class FleetContract:
    """Looking again, consumers of events and their leases, requests to agents."""

    def test_the_first_look_shows_every_agent(self, backend: Backend) -> None:
        """All that is stored is new at first, with the record and heartbeat that load gives."""
        assert backend.changes(None, {}) == Changes([], [], {})
        start(backend, "scout-1")
        start(backend, "scout-2")
        look = backend.changes(None, {})
        assert changed(look) == ["scout-1", "scout-2"]
        assert look.removed == []
        for agent in look.changed:
            loaded = backend.load(agent.agent_id)
            assert agent.record is not None
            assert loaded.record is not None
            assert agent.record.to_json() == loaded.record.to_json()
            assert agent.heartbeat_at in (None, loaded.heartbeat_at)
            assert agent.problem is None
            assert look.heartbeats[agent.agent_id] == loaded.heartbeat_at

    def test_a_look_shows_what_changed(self, backend: Backend) -> None:
        """Of many agents only the one that was written comes again, as it is now, and once."""
        records = [start(backend, f"scout-{n}") for n in range(3)]
        seen: dict[str, Any] = {}
        backend.changes(None, seen)
        assert backend.changes(None, seen).changed == []
        write(backend, records[1], cumulative_chars=5)
        start(backend, "scout-3")
        look = backend.changes(None, seen)
        assert changed(look) == ["scout-1", "scout-3"]
        chars = {a.agent_id: a.record.cumulative_chars for a in look.changed if a.record}
        assert chars["scout-1"] == 5
        assert backend.changes(None, seen)[:2] == ([], [])

    def test_a_beat_is_no_change(self, backend: Backend) -> None:
        """Every look has the newest heartbeat of every agent, changed or not."""
        start(backend, "scout-1")
        start(backend, "scout-2")
        seen: dict[str, Any] = {}
        backend.changes(None, seen)
        backend.heartbeat([("scout-1", 1)], START + 15)
        look = backend.changes(None, seen)
        assert look.changed == []
        assert look.heartbeats == pytest.approx({"scout-1": START + 15, "scout-2": START}, abs=0.01)

    def test_an_agent_that_is_gone_is_removed(self, backend: Backend) -> None:
        """A pruned agent is named once, has no heartbeat, and is new when it comes again."""
        start(backend, "scout-1")
        seen: dict[str, Any] = {}
        backend.changes(None, seen)
        end_and_prune(backend, "scout-1")
        assert backend.changes(None, seen) == Changes([], ["scout-1"], {})
        assert backend.changes(None, seen) == Changes([], [], {})
        start(backend, "scout-1")
        assert changed(backend.changes(None, seen)) == ["scout-1"]

    def test_a_look_sees_its_run_only(self, backend: Backend) -> None:
        """Agents of another run are neither changed nor removed; their heartbeats are there."""
        own, other = start(backend, "a-1", run="a"), start(backend, "b-1", run="b")
        seen: dict[str, Any] = {}
        look = backend.changes("a", seen)
        assert changed(look) == ["a-1"]
        assert sorted(look.heartbeats) == ["a-1", "b-1"]
        write(backend, other, cumulative_chars=5)
        assert backend.changes("a", seen).changed == []
        write(backend, own, cumulative_chars=5)
        assert changed(backend.changes("a", seen)) == ["a-1"]
        end_and_prune(backend, "b-1", run="b")
        assert backend.changes("a", seen)[:2] == ([], [])
        assert changed(backend.changes(None, {})) == ["a-1"]

    def test_an_agent_that_changes_its_run_leaves_the_look(self, backend: Backend) -> None:
        """Started again in another run it is removed from its old one, and back when it returns."""
        start(backend, run="a")
        seen: dict[str, Any] = {}
        backend.changes("a", seen)
        start(backend, takeover=True, run="b")
        assert backend.changes("a", seen)[:2] == ([], ["scout-1"])
        start(backend, takeover=True, run="a")
        assert changed(backend.changes("a", seen)) == ["scout-1"]

    def test_each_looker_has_its_own_marks(self, backend: Backend) -> None:
        """What one has seen is still new to another one."""
        start(backend)
        first: dict[str, Any] = {}
        second: dict[str, Any] = {}
        for seen in (first, second):
            assert changed(backend.changes(None, seen)) == ["scout-1"]
            assert backend.changes(None, seen).changed == []

    def test_an_unreadable_state_is_shown_once(self, backend: Backend, damage: Damage) -> None:
        """It comes with its problem, hides no other, and comes again when it can be read."""
        if damage is None:
            pytest.skip("no way to damage a state")
        start(backend, "scout-1", run="a")
        start(backend, "scout-2", run="a")
        seen: dict[str, Any] = {}
        backend.changes("a", seen)
        damage(backend, "scout-1")
        look = backend.changes("a", seen)
        assert [(a.agent_id, a.record) for a in look.changed] == [("scout-1", None)]
        assert isinstance(look.changed[0].problem, StateError)
        assert sorted(look.heartbeats) == ["scout-1", "scout-2"]
        assert backend.changes("a", seen)[:2] == ([], [])
        assert changed(backend.changes("a", {})) == ["scout-1", "scout-2"]
        start(backend, "scout-1", run="a")
        assert [a.problem for a in backend.changes("a", seen).changed] == [None]

    def test_a_mark_changes_with_every_event(self, backend: Backend) -> None:
        """The mark differs after each way to store events, and stays while nothing happens."""
        marks = [backend.change_mark()]
        record = start(backend, events=[make_event("scout-1", "agent_started")])
        marks.append(backend.change_mark())
        assert backend.record(record, [make_event("scout-1", n=1)], durable=True)
        marks.append(backend.change_mark())
        for n in range(2, 12):
            backend.append_events([make_event("scout-1", n=n)])
            marks.append(backend.change_mark())
        assert all(before != after for before, after in pairwise(marks))
        assert backend.change_mark() == marks[-1]

    def test_a_mark_sees_events_of_others(self, backend: Backend, reopen: Reopen) -> None:
        """What another process stores changes the mark here."""
        if reopen is None:
            pytest.skip("not durable")
        backend.append_events([make_event("scout-1", n=0)])
        other = reopen(backend)
        mark = backend.change_mark()
        other.append_events([make_event("scout-1", n=1)])
        assert backend.change_mark() != mark
        other.close()

    def test_a_new_consumer_remembers_nothing(self, backend: Backend) -> None:
        """The first holder of a name finds no cursor and an empty memory."""
        assert subscribe(backend, "fleet-1") == NOTHING

    def test_one_holder_has_a_name(self, backend: Backend) -> None:
        """While a lease runs no other holder gets the name, other names are free."""
        assert subscribe(backend, "fleet-1") == NOTHING
        assert subscribe(backend, "fleet-2", START + LEASE_SECONDS - 1) is None
        assert subscribe(backend, "fleet-2", name="other") == NOTHING
        assert subscribe(backend, "fleet-1", START + LEASE_SECONDS - 1) == NOTHING

    def test_a_lease_ends(self, backend: Backend) -> None:
        """After its time another holder gets the name, and the one before does not."""
        subscribe(backend, "fleet-1")
        later = START + LEASE_SECONDS + 1
        assert subscribe(backend, "fleet-2", later) == NOTHING
        assert subscribe(backend, "fleet-1", later) is None

    def test_a_holder_that_is_gone_is_replaced_at_once(self, backend: Backend) -> None:
        """The lease of a process of this machine that has ended is free."""
        if not (sees_processes() and this_machine().boot_id):
            pytest.skip("this system does not prove that a process has ended")
        code = (
            "import os; from ultramon.backends.lease_holder import name_holder;"
            " os.write(1, name_holder().encode())"
        )
        gone = subprocess.check_output([sys.executable, "-c", code], text=True)
        subscribe(backend, gone)
        cursor = next_cursor(backend, 0)
        assert backend.acknowledge("main", gone, cursor, MEMORY)
        assert subscribe(backend, name_holder(), START + 1) == Subscription(cursor, MEMORY)
        assert subscribe(backend, "fleet-3", START + 1) is None

    def test_a_living_holder_keeps_its_lease(self, backend: Backend) -> None:
        """Of two holders in one process the first has the name, as nothing proves it gone."""
        first, second = name_holder(), name_holder()
        assert subscribe(backend, first) == NOTHING
        assert subscribe(backend, second, START + LEASE_SECONDS - 1) is None
        assert subscribe(backend, second, START + LEASE_SECONDS) == NOTHING

    def test_each_call_renews_the_lease(self, backend: Backend) -> None:
        """The time counts from the holder's last call; attempts of others change nothing."""
        subscribe(backend, "fleet-1")
        subscribe(backend, "fleet-1", START + 20)
        subscribe(backend, "fleet-2", START + 25)
        assert subscribe(backend, "fleet-2", START + 20 + LEASE_SECONDS - 1) is None
        assert subscribe(backend, "fleet-2", START + 20 + LEASE_SECONDS + 1) == NOTHING

    def test_cursor_and_memory_come_back(self, backend: Backend) -> None:
        """What was acknowledged last is what the next subscription gives, value for value."""
        subscribe(backend, "fleet-1")
        assert backend.acknowledge("main", "fleet-1", next_cursor(backend, 0), {"old": 1})
        cursor = next_cursor(backend, 1)
        assert backend.acknowledge("main", "fleet-1", cursor, MEMORY)
        assert subscribe(backend, "fleet-1") == Subscription(cursor, MEMORY)
        assert subscribe(backend, "fleet-1", name="other") == NOTHING

    def test_a_memory_is_a_value(self, backend: Backend) -> None:
        """Changing it after it was stored, or after it was read, changes nothing stored."""
        subscribe(backend, "fleet-1")
        memory = {"lives": ["scout-1"]}
        backend.acknowledge("main", "fleet-1", next_cursor(backend, 0), memory)
        memory["lives"].append("scout-2")
        for _ in range(2):
            left = subscribe(backend, "fleet-1")
            assert left is not None
            assert left.memory == {"lives": ["scout-1"]}
            left.memory["lives"].append("scout-3")

    def test_cursor_and_memory_belong_to_the_name(self, backend: Backend) -> None:
        """The next holder continues where the one before acknowledged."""
        subscribe(backend, "fleet-1")
        cursor = next_cursor(backend, 0)
        backend.acknowledge("main", "fleet-1", cursor, MEMORY)
        later = START + LEASE_SECONDS + 1
        assert subscribe(backend, "fleet-2", later) == Subscription(cursor, MEMORY)

    def test_a_displaced_holder_acknowledges_nothing(self, backend: Backend) -> None:
        """A holder that lost the name is refused, also after the next one has given it up."""
        subscribe(backend, "fleet-1")
        behind = [next_cursor(backend, n) for n in range(2)]
        subscribe(backend, "fleet-2", START + LEASE_SECONDS + 1)
        assert backend.acknowledge("main", "fleet-2", behind[1], MEMORY)
        assert not backend.acknowledge("main", "fleet-1", behind[0], {})
        backend.unsubscribe("main", "fleet-2")
        assert not backend.acknowledge("main", "fleet-1", behind[0], {})
        assert not backend.acknowledge("unknown", "fleet-1", behind[0], {})
        assert subscribe(backend, "fleet-3") == Subscription(behind[1], MEMORY)

    def test_a_lease_that_no_other_took_still_acknowledges(self, backend: Backend) -> None:
        """A holder that was slow, and not displaced, loses nothing."""
        subscribe(backend, "fleet-1")
        cursor = next_cursor(backend, 0)
        assert backend.acknowledge("main", "fleet-1", cursor, {})
        assert subscribe(backend, "fleet-1", START + 10 * LEASE_SECONDS) == (cursor, {})

    def test_a_lease_that_is_given_up_is_free(self, backend: Backend) -> None:
        """After unsubscribe the next one need not wait, and finds cursor and memory."""
        subscribe(backend, "fleet-1")
        cursor = next_cursor(backend, 0)
        backend.acknowledge("main", "fleet-1", cursor, MEMORY)
        backend.unsubscribe("main", "fleet-1")
        backend.unsubscribe("main", "fleet-1")
        assert subscribe(backend, "fleet-2") == Subscription(cursor, MEMORY)

    def test_only_the_holder_gives_a_lease_up(self, backend: Backend) -> None:
        """Unsubscribing a name that another one holds, or that is unknown, changes nothing."""
        backend.unsubscribe("main", "fleet-1")
        subscribe(backend, "fleet-1")
        backend.unsubscribe("main", "fleet-2")
        assert subscribe(backend, "fleet-2") is None
        assert backend.acknowledge("main", "fleet-1", next_cursor(backend, 0), {})

    def test_consumers_survive_reopening(self, backend: Backend, reopen: Reopen) -> None:
        """Another process respects the lease, and finds cursor and memory when it is over."""
        if reopen is None:
            pytest.skip("not durable")
        subscribe(backend, "fleet-1")
        cursor = next_cursor(backend, 0)
        backend.acknowledge("main", "fleet-1", cursor, MEMORY)
        prune(backend, events_before=START + 1)
        backend.close()
        again = reopen(backend)
        assert subscribe(again, "fleet-2") is None
        later = START + LEASE_SECONDS + 1
        assert subscribe(again, "fleet-2", later) == Subscription(cursor, MEMORY)

    def test_one_of_many_subscribers_wins(self, backend: Backend) -> None:
        """Of holders that ask at the same time exactly one gets the name."""

        def ask(number: int) -> Subscription | None:
            left: Subscription | None = insist(lambda: subscribe(backend, f"fleet-{number}"))
            return left

        with ThreadPoolExecutor(THREADS) as threads:
            answers = list(threads.map(ask, range(3 * THREADS)))
        assert [answer for answer in answers if answer is not None] == [NOTHING]

    def test_a_request_is_left_for_one_agent(self, backend: Backend) -> None:
        """It comes back as it was, as often as it is asked for, and to no other agent."""
        start(backend, "scout-1")
        start(backend, "scout-2")
        assert backend.get_request("scout-1") is None
        backend.put_request("scout-1", REQUEST)
        assert backend.get_request("scout-1") == backend.get_request("scout-1") == REQUEST
        assert backend.get_request("scout-2") is None

    def test_a_request_is_replaced_and_withdrawn(self, backend: Backend) -> None:
        """The newest one counts; None takes it away, also where there is none."""
        start(backend)
        backend.put_request("scout-1", REQUEST)
        backend.put_request("scout-1", {"kind": "other"})
        assert backend.get_request("scout-1") == {"kind": "other"}
        for _ in range(2):
            backend.put_request("scout-1", None)
            assert backend.get_request("scout-1") is None

    def test_a_request_is_a_value(self, backend: Backend) -> None:
        """Changing one after it was left, or after it was read, changes nothing stored."""
        start(backend)
        request = {"items": ["a"]}
        backend.put_request("scout-1", request)
        request["items"].append("b")
        for _ in range(2):
            read = backend.get_request("scout-1")
            assert read == {"items": ["a"]}
            read["items"].append("c")

    def test_an_unknown_agent_gets_no_request(self, backend: Backend) -> None:
        """Leaving or withdrawing one is an error, reading finds none, and no agent appears."""
        for request in (REQUEST, None):
            with pytest.raises(AgentNotFoundError):
                backend.put_request("nobody", request)
        assert backend.get_request("nobody") is None
        assert backend.list_agents() == []

    def test_a_request_changes_no_state(self, backend: Backend) -> None:
        """The owner's state stays as it is, and its next save leaves the request."""
        record = start(backend)
        seen: dict[str, Any] = {}
        backend.changes(None, seen)
        backend.put_request("scout-1", REQUEST)
        assert backend.changes(None, seen).changed == []
        assert held(backend).to_json() == record.to_json()
        write(backend, record)
        assert backend.get_request("scout-1") == REQUEST

    def test_a_pruned_agent_leaves_no_request(self, backend: Backend) -> None:
        """The next agent of its name is not asked for what the one before was asked for."""
        start(backend)
        backend.put_request("scout-1", REQUEST)
        end_and_prune(backend, "scout-1")
        assert backend.get_request("scout-1") is None
        start(backend)
        assert backend.get_request("scout-1") is None

    def test_a_request_reaches_another_process(self, backend: Backend, reopen: Reopen) -> None:
        """The owner finds it however it has opened the store."""
        if reopen is None:
            pytest.skip("not durable")
        start(backend)
        other = reopen(backend)
        other.put_request("scout-1", REQUEST)
        assert backend.get_request("scout-1") == REQUEST
        other.close()
        backend.close()
        assert reopen(backend).get_request("scout-1") == REQUEST
