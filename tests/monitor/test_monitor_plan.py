"""Plan, tasks and handoffs of a monitor, and the successor that takes over."""

import json
import subprocess
from pathlib import Path

import pytest

from ultramon import ConfigurationError, HandoffTakenError
from ultramon.errors import LifecycleError
from ultramon.handoff import REASONS, HandoffRecord, Resume, Workspace
from ultramon.state.event_words import event_words
from ultramon.testing import fill

HERE = Workspace(cwd="/w")
LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def statuses(monitor):
    return {task.name: task.status for task in monitor.get_state().tasks or ()}


def test_a_plan_keeps_its_order(make):
    """Items stay in the order given; adding one again changes nothing; paths are items too."""
    monitor = make("scout-1")
    monitor.plan(["b", "a"])
    monitor.complete_task("b")
    monitor.plan(["b", Path("c/d.py"), "a", "e"])
    assert monitor.pending() == ["a", "c/d.py", "e"]
    assert statuses(monitor) == {"b": "done", "a": "pending", "c/d.py": "pending", "e": "pending"}
    state = monitor.get_state()
    assert (state.tasks_completed, state.tasks_total) == (1, 4)


@pytest.mark.parametrize("items", [[""], [3], [None], [b"x"], ["ok", ["nested"]]])
def test_an_item_without_a_name_is_refused(make, items):
    """A refused plan adds nothing."""
    monitor = make("scout-1")
    with pytest.raises(ConfigurationError, match="plan item"):
        monitor.plan(items)
    assert monitor.pending() == []


def test_a_plan_too_large_to_be_stored_is_refused(make):
    """A plan that no state could hold is refused at once, not at the next save."""
    monitor = make("scout-1")
    monitor.plan(["a"])
    with pytest.raises(ConfigurationError, match="give each agent a part of the work"):
        monitor.plan("x" * 1_000 + str(number) for number in range(2_000))
    assert monitor.pending() == ["a"]
    monitor.update_heartbeat()


def test_a_task_is_done_when_its_block_ends(make):
    """Within the block it is current; afterwards it counts; nesting works."""
    monitor = make("scout-1")
    monitor.plan(["a"])
    with monitor.task("a"):
        assert monitor.get_state().current_task == "a"
        with monitor.task("a.1"):
            assert monitor.get_state().current_task == "a.1"
        assert monitor.get_state().current_task == "a"
    assert monitor.get_state().current_task is None
    assert statuses(monitor) == {"a": "done", "a.1": "done"}


def test_a_task_that_raises_may_be_half_done(make):
    """An exception marks the item as interrupted, keeps it pending, and is raised further."""
    monitor = make("scout-1")
    with pytest.raises(OSError, match="unplugged"), monitor.task("a"):
        raise OSError("unplugged")
    assert (statuses(monitor), monitor.pending()) == ({"a": "interrupted"}, ["a"])


def test_completing_without_a_name(make):
    """Without a name it is the current task, else one more that has none."""
    monitor = make("scout-1")
    monitor.plan(["a"])
    with monitor.task("a"):
        monitor.complete_task(result="out/a.md")
    monitor.complete_task()
    state = monitor.get_state()
    assert [(task.name, task.status, task.result) for task in state.tasks] == [
        ("a", "done", "out/a.md")
    ]
    assert (state.tasks_completed, state.tasks_total) == (2, 2)


def test_a_current_task_need_not_be_planned(make):
    """What the agent does can be said without putting it into the plan, and taken back."""
    monitor = make("scout-1")
    monitor.set_current_task("reading the docs")
    assert monitor.get_state().current_task == "reading the docs"
    monitor.set_current_task(None)
    assert (monitor.get_state().current_task, monitor.get_state().tasks) == (None, None)


def test_the_total_can_be_fixed(make):
    """A given total holds against what the plan has, until it is taken back."""
    monitor = make("scout-1")
    monitor.plan(["a"])
    monitor.set_tasks_total(20)
    assert monitor.get_state().tasks_total == 20
    monitor.set_tasks_total(None)
    assert monitor.get_state().tasks_total == 1


def test_what_cannot_be_meant_of_tasks_is_logged_once(make, caplog):
    """A task completed again, and more tasks than there are, are a warning and no error."""
    monitor = make("scout-1")
    monitor.plan(["a"])
    monitor.set_tasks_total(1)
    for _ in range(3):
        monitor.complete_task("a")
    monitor.complete_task()
    assert [record.getMessage() for record in caplog.records] == [
        "agent scout-1: task 'a' was done already and counts once"
    ]
    state = monitor.get_state()
    assert (state.tasks_completed, state.tasks_total) == (2, 2)


@pytest.mark.parametrize("total", [-1, 10**20, True, 1.5, "3"])
def test_a_total_that_is_no_number_is_refused(make, total):
    """Totals are whole numbers from 0 on."""
    with pytest.raises(ConfigurationError, match="tasks_total"):
        make("scout-1").set_tasks_total(total)


def test_waiting_and_working_are_stored(make, store, ultramon_clock):
    """Others see within a moment that an agent waits for a person."""
    monitor = make("scout-1")
    monitor.waiting()
    ultramon_clock.advance(0.1)
    assert store.load("scout-1").record.phase == "waiting"
    monitor.working()
    ultramon_clock.advance(0.1)
    assert store.load("scout-1").record.phase == "working"


def test_a_handoff_is_filled_from_the_plan(make, store, ultramon_signals):
    """What is done, half done and left comes from the plan; the rest from the arguments."""
    monitor = make("scout-1", **LIMIT, goal="audit the parser")
    monitor.plan(["a", "b", "c", "d"])
    monitor.complete_task("a", result="out/a.md")
    with pytest.raises(OSError, match="x"), monitor.task("b"):
        raise OSError("x")
    fill(monitor, 0.72)
    with monitor.task("c"):
        record = monitor.hand_off(
            notes="b fails on surrogates",
            next_step="read b again",
            constraints=["do not push"],
            decisions=["keep the old name"],
            rejected=["a regex"],
            open_questions=["who calls it?"],
            files_modified=["c.py"],
            workspace=HERE,
            resume=Resume(command="agent --resume 7"),
        )
    assert (record.completed, record.interrupted, record.remaining) == (("a",), ("b", "c"), ("d",))
    assert (record.results, record.reason) == ({"a": "out/a.md"}, "threshold_warning")
    assert (record.goal, record.tokens, record.epoch) == ("audit the parser", 72_000, 1)
    assert (record.constraints, record.decisions) == (("do not push",), ("keep the old name",))
    assert (record.rejected, record.open_questions) == (("a regex",), ("who calls it?",))
    assert (record.files_modified, record.workspace) == (("c.py",), HERE)
    assert (record.predecessor_id, record.generation_count) == (None, 1)
    state = store.load("scout-1").record
    assert HandoffRecord.model_validate(state.handoff).model_dump() == record.model_dump()
    name, event = ultramon_signals[-1]
    assert (name, event.handoff["handoffId"]) == ("handoff_ready", record.handoff_id)
    assert store.events().events[-1]["handoff"] == state.handoff


def test_a_checkpoint_stores_the_work_of_an_agent_that_goes_on(make, store, ultramon_signals):
    """In the journal alone: it is no handoff, and what the agent leaves later is another record."""
    monitor = make("scout-1", **LIMIT, goal="audit the parser")
    monitor.plan(["a", "b"])
    monitor.complete_task("a")
    fill(monitor, 0.5)
    record = monitor.checkpoint(notes="b is long", next_step="read b")
    assert (record.reason, record.stored, record.tokens) == ("compaction", True, 50_000)
    assert (record.completed, record.remaining, record.notes) == (("a",), ("b",), "b is long")
    name, event = ultramon_signals[-1]
    assert (name, event.handoff["nextStep"]) == ("checkpoint_stored", "read b")
    stored = store.events().events[-1]
    assert HandoffRecord.model_validate(stored["handoff"]).handoff_id == record.handoff_id
    assert "compaction, 1 completed, 1 remaining" in event_words(stored)
    assert store.load("scout-1").record.handoff is None
    assert monitor.checkpoint().stored
    assert monitor.hand_off(workspace=HERE).handoff_id != record.handoff_id
    kinds = [one["type"] for one in store.events().events]
    assert kinds.count("checkpoint_stored") == 2


def test_a_later_handoff_replaces_the_record(make, store):
    """The state has the last record; each one has its event."""
    monitor = make("scout-1")
    first, second = (monitor.hand_off(workspace=HERE) for _ in range(2))
    assert store.load("scout-1").record.handoff["handoffId"] == second.handoff_id
    seen = [event["handoff"]["handoffId"] for event in store.events().events[1:]]
    assert seen == [first.handoff_id, second.handoff_id]


@pytest.mark.parametrize(
    ("ratio", "reason"),
    [(0.1, "task_complete"), (0.7, "threshold_warning"), (0.85, "threshold_critical")],
)
def test_the_reason_follows_the_level(make, ratio, reason):
    """Without a reason given, the level is the reason."""
    monitor = make("scout-1", **LIMIT)
    fill(monitor, ratio)
    assert monitor.hand_off(workspace=HERE).reason == reason


def test_a_given_reason_holds(make):
    """Every documented reason is accepted; another one is refused before anything is stored."""
    monitor = make("scout-1")
    for reason in REASONS:
        assert monitor.hand_off(reason, workspace=HERE).reason == reason
    with pytest.raises(ConfigurationError, match="reason='bored'"):
        monitor.hand_off("bored")


def test_a_text_that_no_handoff_has_is_refused(make):
    """A misspelt name would lose what the agent has learned."""
    monitor = make("scout-1")
    for leave in (monitor.hand_off, monitor.checkpoint):
        with pytest.raises(TypeError, match="a handoff has no 'note': its texts are notes, "):
            leave(note="page 7")


def test_free_text_is_bounded(make):
    """A handoff never outgrows what can be stored: notes and lists are cut, and say so."""
    monitor = make("scout-1")
    record = monitor.hand_off(
        notes="n" * 40_000, decisions=["d" * 2_000] * 300, next_step="s", workspace=HERE
    )
    assert record.notes.endswith("\n… 7232 more characters were cut")
    assert 0 < len(record.decisions) <= 200
    assert max(map(len, record.decisions)) <= 1_001


def test_the_workspace_is_looked_at(make, tmp_path, monkeypatch):
    """Without a workspace given, the working directory and its changes are in the record."""
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    (tmp_path / "a b.py").write_text("x")
    monkeypatch.chdir(tmp_path)
    workspace = make("scout-1").hand_off().workspace
    assert (workspace.cwd, workspace.branch) == (str(tmp_path), "main")
    assert "a b.py" in workspace.dirty_files


def test_a_successor_takes_the_work_over(make, store):
    """It starts with what was left, half done items first, and knows whom it follows."""
    first = make("scout-1", goal="audit")
    first.plan(["a", "b", "c"])
    first.complete_task("a")
    with pytest.raises(OSError, match="x"), first.task("c"):
        raise OSError("x")
    record = first.hand_off(workspace=HERE)
    first.stop("returned")
    second = make("scout-2", continues=record)
    assert second.pending() == ["c", "b"]
    state = store.load("scout-2").record
    assert (state.predecessor_id, state.continues_handoff_id) == ("scout-1", record.handoff_id)
    assert store.load("scout-1").record.continues_handoff_id is None
    later = second.hand_off(workspace=HERE)
    assert (later.generation_count, later.predecessor_id, later.goal) == (2, "scout-1", "audit")
    second.stop("returned")
    third = make("scout-3", continues=later).hand_off(workspace=HERE)
    assert (third.generation_count, third.predecessor_id, third.goal) == (3, "scout-2", "audit")


def test_one_successor_wins(make, store):
    """A second successor is refused at its start and leaves no trace."""
    record = make("scout-1").hand_off(workspace=HERE)
    make("scout-2", continues=record)
    with pytest.raises(HandoffTakenError, match="already claimed by scout-2"):
        make("scout-3", continues=record)
    assert [agent.agent_id for agent in store.list_agents()] == ["scout-1", "scout-2"]


def test_a_record_read_elsewhere_can_be_claimed(make, store):
    """From JSON it needs a backend; claiming again as the same agent is allowed."""
    record = make("scout-1").hand_off(workspace=HERE)
    received = HandoffRecord.model_validate(json.loads(record.model_dump_json(by_alias=True)))
    with pytest.raises(ValueError, match="pass backend=open_backend"):
        received.claim("scout-2")
    received.claim("scout-2", store)
    record.claim("scout-2")
    with pytest.raises(HandoffTakenError):
        record.claim("scout-3")


def test_the_prompt_of_a_successor_has_the_facts(make):
    """Rendered for a first message: what is half done and left, the notes quoted, in bounds."""
    monitor = make("scout-1", goal="audit")
    monitor.plan(f"item {number}" for number in range(400))
    record = monitor.hand_off(notes="first line\nsecond line", next_step="go on", workspace=HERE)
    text = record.to_prompt()
    assert text.startswith("# Handoff from agent scout-1\n")
    assert "items: 0 done, 0 perhaps half done, 400 left." in text
    assert "> first line\n> second line" in text
    assert "## Remaining (400)\n- item 0\n" in text
    assert " more\n" in text


def test_after_the_end_there_is_no_handoff(make):
    """An agent hands off before it stops."""
    monitor = make("scout-1")
    monitor.stop()
    with pytest.raises(LifecycleError):
        monitor.hand_off()
