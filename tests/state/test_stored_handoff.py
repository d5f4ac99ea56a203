"""The handoff that a hook writes is the record that the agent's own program would have written."""

from __future__ import annotations

import pytest

from ultramon.handoff import REASONS, HandoffRecord
from ultramon.state.record import StateRecord
from ultramon.state.stored_handoff import handoff_reason, write_handoff

NOW = 1_763_866_123.25
TASKS = [
    {"name": "read", "status": "done", "result": "read.txt"},
    {"name": "write", "status": "in_progress", "result": None},
    {"name": "look", "status": "interrupted", "result": None},
    {"name": "test", "status": "pending", "result": None},
]


@pytest.fixture
def record():
    record = StateRecord("agent")
    record.run, record.generation, record.epoch = "run", 2, 3
    record.started_at, record.estimated_tokens = 1000.5, 160_000
    record.cwd, record.tasks = "/project", TASKS
    return record


def test_it_is_the_record_of_the_model(record):
    write_handoff(record, now=NOW, reason="threshold_critical")
    stored = HandoffRecord.model_validate(record.handoff)
    assert stored == HandoffRecord.of(record, TASKS, now=NOW, reason="threshold_critical")
    assert record.handoff.keys() == stored.to_json().keys()
    assert stored.interrupted == ("write", "look")


def test_tasks_that_are_only_counted_are_named_in_the_notes(record):
    record.tasks_total, record.tasks_completed = 10, 3
    write_handoff(record, now=NOW, reason="lost", notes="So far.")
    assert record.handoff["notes"] == (
        "So far.\n6 further tasks were only counted: 2 of them are done."
    )


def test_what_the_agent_has_said_in_this_epoch_stays(record):
    """Its plan and its tokens are those of now; a record of an earlier epoch is replaced."""
    said = HandoffRecord.of(record, TASKS, now=NOW, reason="cancelled", notes="mine", goal="all")
    record.handoff = said.to_json()
    record.tasks = [task | {"status": "done"} for task in TASKS]
    event = write_handoff(record, now=NOW + 1, reason="threshold_critical", notes="other")
    assert (event["n"], event["handoff"]) == (round((NOW + 1) * 1000), record.handoff)
    stored = HandoffRecord.model_validate(record.handoff)
    assert (stored.notes, stored.goal, stored.reason) == ("mine", "all", "threshold_critical")
    assert len(stored.completed) == len(TASKS)
    record.epoch += 1
    event = write_handoff(record, now=NOW + 2, reason="threshold_critical", notes="other")
    assert event["n"] == 0
    assert (record.handoff["notes"], record.handoff["goal"]) == ("other", None)


def test_the_reason_follows_the_level_that_asks_for_it():
    actions = ("force_return", "prepare_handoff", "none")
    reasons = [handoff_reason(action) for action in actions]
    assert reasons == ["threshold_critical", "threshold_warning", "task_complete"]
    assert set(reasons) < set(REASONS)
