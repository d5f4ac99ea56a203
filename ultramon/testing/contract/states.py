"""Conformance of backends, first half: agents, their owners, states and heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ultramon.errors import (
    AgentAlreadyRunningError,
    AgentNotFoundError,
    FencedError,
    StateSchemaError,
)
from ultramon.system.processes import MachineIdentity, this_machine
from ultramon.testing.clock import START
from ultramon.testing.samples import make_event, make_record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ultramon.backends.base import Backend
    from ultramon.state.record import StateRecord

ELSEWHERE = MachineIdentity("another-host", "another-boot")
VANISHED = "a process start that no process has"
NEWER_SCHEMA = 99


def start(
    backend: Backend,
    agent_id: str = "scout-1",
    *,
    now: float = START,
    takeover: bool = False,
    events: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> StateRecord:
    """Start an agent with a sample state and return that state."""
    built: list[StateRecord] = []

    def build(
        stored: StateRecord | None, generation: int
    ) -> tuple[StateRecord, list[dict[str, Any]]]:
        seq = 0 if stored is None else stored.seq + 1
        built.append(make_record(agent_id, generation, at=now, seq=seq, **fields))
        return built[-1], list(events)

    assert backend.start_agent(agent_id, build, takeover=takeover, now=now, machine=this_machine())
    return built[-1]


def write(backend: Backend, before: StateRecord, **fields: Any) -> StateRecord:
    """Store the next state of an agent and return it."""
    values = {"seq": before.seq + 1, "run": before.run, **fields}
    record = make_record(before.agent_id, before.generation, **values)
    assert backend.record(record, [], durable=False)
    return record


def prune(backend: Backend, agents_before: float = 0.0, **given: Any) -> list[str]:
    """Delete agents, and no events by default."""
    values = {"events_before": 0.0, "now": START, "dry_run": False, **given}
    return backend.prune(agents_before=agents_before, machine=this_machine(), **values)


def held(backend: Backend, agent_id: str = "scout-1") -> StateRecord:
    """Return an agent's stored state."""
    record = backend.load(agent_id).record
    assert record is not None
    return record


class StateContract:
    """Who may write an agent, and what is read back."""

    def test_it_has_a_url(self, backend: Backend) -> None:
        """Its URL has a scheme."""
        assert ":" in backend.url

    def test_a_new_agent_gets_generation_1(self, backend: Backend) -> None:
        """A build for an unknown agent is given nothing stored and generation 1, once."""
        calls: list[tuple[StateRecord | None, int]] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            calls.append((stored, generation))
            return make_record("scout-1", generation), []

        backend.start_agent("scout-1", build, takeover=False, now=START, machine=this_machine())
        assert calls == [(None, 1)]
        assert held(backend).generation == 1

    def test_the_next_owner_is_given_what_is_stored(self, backend: Backend) -> None:
        """A build for a known agent is given its newest state and the next generation, once."""
        write(backend, start(backend), cumulative_chars=17)
        calls: list[tuple[int, int]] = []

        def build(
            stored: StateRecord | None, generation: int
        ) -> tuple[StateRecord, list[dict[str, Any]]]:
            assert stored is not None
            calls.append((stored.cumulative_chars, generation))
            return make_record("scout-1", generation), []

        backend.start_agent("scout-1", build, takeover=True, now=START, machine=this_machine())
        assert calls == [(17, 2)]

    def test_every_owner_gets_a_higher_generation(self, backend: Backend) -> None:
        """Generations rise by one from owner to owner."""
        assert [start(backend, takeover=True).generation for _ in range(4)] == [1, 2, 3, 4]

    def test_an_ended_agent_keeps_counting(self, backend: Backend) -> None:
        """An agent that ended may be started again without a takeover, one generation on."""
        write(backend, start(backend), active=False, outcome="completed")
        assert start(backend).generation == 2

    def test_a_living_owner_is_not_displaced(self, backend: Backend) -> None:
        """An owner that provably lives keeps its agent; the error names it, nothing is stored."""
        first = start(backend)

        def build(_: object, generation: int) -> tuple[StateRecord, list[dict[str, Any]]]:
            return make_record("scout-1", generation, seq=99), []

        with pytest.raises(AgentAlreadyRunningError) as caught:
            backend.start_agent("scout-1", build, takeover=False, now=START, machine=this_machine())
        assert (caught.value.pid, caught.value.hostname) == (first.pid, first.hostname)
        assert held(backend).seq == first.seq
        write(backend, first, cumulative_chars=3)
        assert held(backend).generation == 1

    def test_a_vanished_process_is_followed(self, backend: Backend) -> None:
        """Where the owner's process is gone, no takeover is needed, however fresh its beat."""
        start(backend, pid_started_at=VANISHED)
        assert start(backend).generation == 2

    def test_a_silent_owner_is_followed(self, backend: Backend) -> None:
        """An owner on another machine that missed three heartbeats does not provably live."""
        start(backend, machine=ELSEWHERE)
        with pytest.raises(AgentAlreadyRunningError):
            start(backend, now=START + 45)
        assert start(backend, now=START + 46).generation == 2

    def test_a_heartbeat_keeps_an_owner_alive(self, backend: Backend) -> None:
        """A heartbeat counts like a write for the question whether an owner lives."""
        start(backend, machine=ELSEWHERE)
        assert backend.heartbeat([("scout-1", 1)], START + 40) == []
        with pytest.raises(AgentAlreadyRunningError):
            start(backend, now=START + 80)

    def test_a_late_writer_is_fenced(self, backend: Backend) -> None:
        """After a takeover the former owner's writes fail, and change nothing."""
        start(backend)
        start(backend, takeover=True, cumulative_chars=5)
        late = make_record("scout-1", 1, seq=9, cumulative_chars=999)
        with pytest.raises(FencedError) as caught:
            backend.record(late, [make_event("scout-1")], durable=True)
        assert (caught.value.generation, caught.value.current_generation) == (1, 2)
        assert (held(backend).generation, held(backend).cumulative_chars) == (2, 5)
        assert backend.events().events == []

    def test_a_writer_from_the_future_is_fenced(self, backend: Backend) -> None:
        """A generation that no owner was given is not believed."""
        start(backend)
        with pytest.raises(FencedError):
            backend.record(make_record("scout-1", 2), [], durable=False)
        assert held(backend).generation == 1

    def test_a_fenced_writer_does_not_revive_a_pruned_agent(self, backend: Backend) -> None:
        """A write never creates an agent, not even one whose record was deleted since."""
        start(backend)
        write(backend, start(backend, takeover=True), active=False, outcome="completed")
        assert prune(backend, START + 1) == ["scout-1"]
        with pytest.raises(FencedError) as caught:
            backend.record(make_record("scout-1", 1, seq=9), [], durable=True)
        assert caught.value.current_generation is None
        with pytest.raises(AgentNotFoundError):
            backend.load("scout-1")

    def test_a_newer_schema_is_read_and_not_written(self, backend: Backend) -> None:
        """What a newer ultramon stored can be read; neither a write nor a start replaces it."""
        start(backend, schema=NEWER_SCHEMA, active=False, outcome="completed")
        assert held(backend).schema == NEWER_SCHEMA
        with pytest.raises(StateSchemaError):
            backend.record(make_record("scout-1", 1, seq=1), [], durable=False)
        with pytest.raises(StateSchemaError):
            start(backend, takeover=True)
        assert (held(backend).schema, held(backend).generation) == (NEWER_SCHEMA, 1)

    def test_a_start_that_fails_changes_nothing(self, backend: Backend) -> None:
        """An error while the first state is built leaves the former state as it was."""
        start(backend, cumulative_chars=5)

        def build(*_: object) -> tuple[StateRecord, list[dict[str, Any]]]:
            raise KeyError("from the agent's own code")

        with pytest.raises(KeyError):
            backend.start_agent("scout-1", build, takeover=True, now=START, machine=this_machine())
        assert (held(backend).generation, held(backend).cumulative_chars) == (1, 5)

    def test_a_state_comes_back_as_it_was(self, backend: Backend) -> None:
        """Every field survives, fields that this version does not know included."""
        # Among them a lone surrogate and a NUL, which not every store takes as text.
        record = start(
            backend,
            label="naïve 探 \ud800 \x00 \U0001f9ed",
            exit={"error": "ValueError", "nested": [1, 2.5, None, True]},
            by_source={"tool:read": 12},
            extra={"fromTheFuture": {"list": [1, {"deep": "é"}]}, "another": None},
            usage_ratio=1.234567,
            tasks=[{"name": "a/b.py", "status": "done", "result": None}],
        )
        assert held(backend).to_json() == record.to_json()

    def test_the_newest_state_is_read(self, backend: Backend) -> None:
        """A read sees the last write."""
        record = start(backend)
        for chars in (1, 2, 3):
            record = write(backend, record, cumulative_chars=chars)
        assert (held(backend).cumulative_chars, held(backend).seq) == (3, 3)

    def test_records_are_values(self, backend: Backend) -> None:
        """Changing a record after it was stored, or after it was read, changes no other one."""
        record = start(backend, by_source={"tool": 1}, extra={"list": [1]})
        record.by_source["tool"] = 2  # type: ignore[index]
        record.extra["list"].append(2)
        read = held(backend)
        assert (read.by_source, read.extra) == ({"tool": 1}, {"list": [1]})
        read.extra["list"].append(3)
        read.active = False
        assert (held(backend).extra, held(backend).active) == ({"list": [1]}, True)

    def test_an_unknown_agent_is_not_found(self, backend: Backend) -> None:
        """Loading an agent that was never started raises AgentNotFoundError naming it."""
        with pytest.raises(AgentNotFoundError) as caught:
            backend.load("nobody")
        assert caught.value.agent_id == "nobody"
        assert backend.list_agents() == []

    def test_a_start_beats(self, backend: Backend) -> None:
        """The start of an agent is its first heartbeat."""
        start(backend)
        assert backend.load("scout-1").heartbeat_at == pytest.approx(START, abs=0.01)

    def test_a_heartbeat_is_noted_without_a_write(self, backend: Backend) -> None:
        """A heartbeat moves its time and nothing in the state."""
        before = start(backend)
        assert backend.heartbeat([("scout-1", 1)], START + 15) == []
        agent = backend.load("scout-1")
        assert agent.heartbeat_at == pytest.approx(START + 15, abs=0.01)
        assert agent.record is not None
        assert agent.record.to_json() == before.to_json()

    def test_reading_does_not_beat(self, backend: Backend) -> None:
        """Neither load nor list makes an agent look alive."""
        start(backend)
        backend.load("scout-1")
        (agent,) = backend.list_agents()
        assert agent.heartbeat_at == pytest.approx(START, abs=0.01)

    def test_heartbeats_of_the_fenced_are_refused(self, backend: Backend) -> None:
        """The fenced and the unknown are returned and do not beat; the others do, in one call."""
        start(backend, "scout-1")
        start(backend, "scout-2")
        start(backend, "scout-2", takeover=True)
        beats = [("scout-1", 1), ("scout-2", 1), ("nobody", 1)]
        assert backend.heartbeat(beats, START + 15) == ["scout-2", "nobody"]
        assert backend.load("scout-1").heartbeat_at == pytest.approx(START + 15, abs=0.01)
        assert backend.load("scout-2").heartbeat_at == pytest.approx(START, abs=0.01)
        with pytest.raises(AgentNotFoundError):
            backend.load("nobody")

    def test_agents_are_listed_by_run(self, backend: Backend) -> None:
        """A list has the agents of one run, or of all with None, ended ones included."""
        start(backend, "a-1", run="audit")
        write(backend, start(backend, "a-2", run="audit"), active=False, outcome="failed")
        start(backend, "b-1", run="build")

        def ids(run: str | None) -> list[str]:
            return sorted(agent.agent_id for agent in backend.list_agents(run))

        assert ids("audit") == ["a-1", "a-2"]
        assert ids("build") == ["b-1"]
        assert ids("nothing") == []
        assert ids(None) == ["a-1", "a-2", "b-1"]

    def test_a_listed_agent_is_as_loaded(self, backend: Backend) -> None:
        """A list gives the same record and heartbeat as load, and no problem."""
        start(backend)
        (listed,), loaded = backend.list_agents(), backend.load("scout-1")
        assert listed.record is not None
        assert loaded.record is not None
        assert listed.record.to_json() == loaded.record.to_json()
        assert (listed.heartbeat_at, listed.problem) == (loaded.heartbeat_at, None)

    def test_states_survive_reopening(
        self, backend: Backend, reopen: Callable[[Backend], Backend] | None
    ) -> None:
        """Another process finds the state, the generation and the heartbeat."""
        if reopen is None:
            pytest.skip("not durable")
        record = start(backend)
        start(backend, takeover=True)
        backend.heartbeat([("scout-1", 2)], START + 15)
        backend.close()
        again = reopen(backend)
        agent = again.load("scout-1")
        assert agent.heartbeat_at == pytest.approx(START + 15, abs=0.01)
        with pytest.raises(FencedError):
            again.record(make_record("scout-1", record.generation), [], durable=True)
        assert start(again, takeover=True).generation == 3

    def test_it_can_be_used_after_close(self, backend: Backend) -> None:
        """Closing releases what is held open and forgets nothing; twice is harmless."""
        record = start(backend)
        backend.close()
        backend.close()
        write(backend, record, cumulative_chars=8)
        assert held(backend).cumulative_chars == 8
