"""The client's task list becomes the plan of its agents: what is done, begun and left."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from helpers import program
from helpers.hooked_session import HookedSession, encoded
from helpers.task_calls import create, listed, shown, statuses, update, updated
from hypothesis import given
from hypothesis import strategies as st
from test_hook_recorded import Replay

from ultramon import Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.hosts.claude_code.task_list import read_report

SUBAGENT = "a6e40c0f1cc567711"


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def test_a_recorded_session_works_through_its_list(tmp_path):
    """r7: created, begun, renamed, done, deleted, refused; a subagent has tasks of its own."""
    replay = Replay(tmp_path, "r7")
    session = replay.session
    replay.to(13)
    record = session.record()
    assert [(task["id"], task["name"]) for task in record.tasks] == [
        ("1", "read the parser"), ("2", "write the tests"), ("3", "read the parser (#3)"),
        ("4", "drop me"),
    ]  # fmt: skip
    assert shown(record) == ("0/4", "[[MAIN]] do the work")
    replay.to(15)
    assert shown(session.record()) == ("0/4", "read the parser")
    replay.to(20)
    assert shown(session.record()) == ("1/4", "write all the tests")
    replay.to(22)
    assert statuses(session.record()) == {"1": "done", "2": "in_progress", "3": "pending"}
    replay.to(28)
    assert shown(session.record()) == ("1/3", "write all the tests"), "no task 99, and none twice"
    replay.to(40)
    assert shown(session.record(SUBAGENT)) == ("0/2", "count the files")
    assert statuses(session.record()) == {"1": "done", "2": "in_progress", "3": "pending"}
    replay.to(45)
    assert shown(session.record(SUBAGENT)) == ("1/2", None)
    assert shown(session.record()) == ("1/3", "read the parser (#3)"), "begun by the subagent"
    replay.to(46)
    assert statuses(session.record(SUBAGENT)) == {"5": "done"}
    assert statuses(session.record())["6"] == "pending", "the session goes on with what is left"
    replay.to(49)
    assert shown(session.record()) == ("2/5", "read the parser (#3)")
    replay.to(57)
    record = session.record()
    assert shown(record) == ("2/5", "add them up")
    assert statuses(record) == {
        "1": "done", "2": "pending", "3": "in_progress", "5": "done", "6": "in_progress",
    }  # fmt: skip
    assert session.failures() == []


def test_a_session_that_is_killed_leaves_what_is_done_begun_and_left(session):
    """Every call is stored before the client continues: a fleet rebuilds the handoff from it."""
    with subprocess.Popen(["sleep", "600"]) as client:
        session.environ["CLAUDE_PID"] = str(client.pid)
        session.call("SessionStart", source="startup")
        for number, subject in enumerate(["read", "write", "test", "test"], 1):
            create(session, str(number), subject)
        update(session, "1", "pending", "completed")
        update(session, "2", "pending", "in_progress")
        client.kill()
    with closing(LocalBackend(str(session.state))) as backend:
        fleet = Fleet("claude-code", backend=backend)
        events = [event for _ in range(3) for event in fleet.poll()]
        fleet.close()
    (ready,) = [event for event in events if event.name == "handoff_ready"]
    handoff = ready.handoff
    assert handoff.reason == "lost"
    assert (handoff.completed, handoff.interrupted) == (("read",), ("write",))
    assert handoff.remaining == ("test", "test (#4)")


def test_people_see_how_far_each_session_is(session):
    """Counts and the current task stand in the table, whatever a subject holds."""
    session.call("SessionStart", source="startup")
    create(session, "1", "read \x1b[31m\u202ethe parser\nand more")
    create(session, "2", "\ud800" + "x" * 100_000)
    update(session, "1", "pending", "in_progress")
    done = program.run("status", "--state-dir", session.state)
    assert "0/2" in done.stdout
    assert "read" in done.stdout
    assert not set(done.stdout) & set("\x1b\u202e\ud800")


def test_a_prompt_does_not_replace_a_begun_task(session):
    """The plan says what the agent does; before and after, the prompt does."""
    session.call("UserPromptSubmit", prompt="repair the door")
    create(session, "1", "find the door")
    assert session.record().current_task == "repair the door"
    update(session, "1", "pending", "in_progress")
    session.call("UserPromptSubmit", prompt="go on")
    assert session.record().current_task == "find the door"
    update(session, "1", "in_progress", "completed")
    session.call("UserPromptSubmit", prompt="paint it")
    assert shown(session.record()) == ("1/1", "paint it")


def test_a_plan_outlives_compaction_and_resume(session):
    """The client's list does as well."""
    create(session, "1", "read")
    session.call("SessionStart", source="compact")
    session.call("SessionEnd", reason="other")
    session.call("SessionStart", source="resume")
    assert statuses(session.record()) == {"1": "pending"}


def test_hooks_that_come_late_learn_the_list(session):
    """A task whose creation was not reported is named after its id until the client lists it."""
    update(session, "7", "pending", "in_progress")
    assert shown(session.record()) == ("0/1", "task 7")
    listed(session, ("6", "read", "completed"), ("7", "write", "in_progress"))
    assert shown(session.record()) == ("1/2", "write")
    listed(session)
    assert (session.record().tasks, shown(session.record())) == (None, ("0/None", None))


def test_tasks_stay_with_the_living_subagent_that_created_them(session):
    """Whoever changes or lists them; a sibling and the session have theirs."""
    session.call("SubagentStart", "one")
    session.call("SubagentStart", "two")
    create(session, "1", "of the session")
    create(session, "2", "of one", "one")
    create(session, "3", "of two", "two")
    update(session, "2", "pending", "in_progress")
    update(session, "3", "pending", "in_progress", "one")
    update(session, "1", "pending", "in_progress", "two")
    all_tasks = [
        ("1", "of the session", "completed"), ("2", "of one", "completed"),
        ("3", "of two", "completed"), ("4", "of nobody yet", "pending"),
    ]  # fmt: skip
    records = [session.record(agent) for agent in (None, "one", "two")]
    assert [statuses(one) for one in records] == [
        {"1": "in_progress"}, {"2": "in_progress"}, {"3": "in_progress"},
    ]  # fmt: skip
    listed(session, *all_tasks, agent="two")
    records = [session.record(agent) for agent in (None, "one", "two")]
    assert [statuses(one) for one in records] == [
        {"1": "done", "4": "pending"}, {"2": "done"},
        {"3": "done"},
    ]  # fmt: skip
    listed(session, *all_tasks[2:])
    records = [session.record(agent) for agent in (None, "one", "two")]
    assert [statuses(one) for one in records] == [{"4": "pending"}, {}, {"3": "done"}]
    assert session.failures() == []


def test_parallel_calls_lose_no_task(session):
    """The client runs the calls of one reply side by side; each hook is a process of its own."""
    listed(session, *((str(n), f"task {n}", "pending") for n in range(12)))
    payloads = [
        session.payload("PostToolUse", **updated(str(n), "pending", "completed"))
        for n in range(0, 12, 2)
    ]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(session.run, payloads))
    assert shown(session.record()) == ("6/12", None)
    assert session.failures() == []


def test_two_thousand_tasks_are_one_plan(session):
    """They fit; what does not fit is counted, and that is reported once."""
    listed(session, *((str(n), f"task {n} of many", "pending") for n in range(2_000)))
    update(session, "1999", "pending", "completed")
    assert shown(session.record()) == ("1/2000", None)
    assert len(session.record().tasks) == 2_000
    assert session.failures() == []
    for _ in range(2):
        listed(session, *((str(n), f"{n} {'x' * 190}", "pending") for n in range(2_000)))
    record = session.record()
    assert shown(record) == ("0/2000", None)
    assert 0 < len(record.tasks) < 1_000
    update(session, "1999", "pending", "completed")
    assert shown(session.record()) == ("1/2000", None)
    assert session.failures() == [
        "its plan is full: further tasks are counted, their names are not stored"
    ]


def test_a_file_that_is_no_state_hides_no_subagent(session):
    """A copy that somebody left beside the states is passed over, at a list and at the end."""
    session.call("SubagentStart", "one")
    create(session, "1", "of one", "one")
    for name in ("session.one copy", "session.two"):
        (session.state / "subagents" / f"{name}.json").write_text("{}")
    listed(session, ("1", "of one", "completed"), ("2", "of the session", "pending"))
    assert statuses(session.record("one")) == {"1": "done"}
    assert statuses(session.record()) == {"2": "pending"}
    session.call("SessionEnd", reason="other")
    assert session.record("one").outcome == "cancelled"
    assert session.failures() == []


TASK = {"id": "1", "subject": "read", "status": "pending"}
GARBAGE = [
    ("TaskCreate", {}, {}),
    ("TaskCreate", None, None),
    ("TaskCreate", {}, {"task": []}),
    ("TaskCreate", {}, {"task": TASK | {"id": 1}}),
    ("TaskCreate", {}, {"task": TASK | {"id": ""}}),
    ("TaskCreate", {}, {"task": TASK | {"id": "9" * 65}}),
    ("TaskUpdate", [], {"success": True, "taskId": ["1"]}),
    ("TaskUpdate", {"taskId": "1", "status": "completed"}, {"success": False, "taskId": "1"}),
    ("TaskUpdate", {"taskId": "1", "status": "completed"}, {"success": 1, "taskId": "1"}),
    ("TaskUpdate", {"status": {}}, {"success": True, "taskId": "1", "statusChange": [1]}),
    ("TaskUpdate", {}, {"success": True, "taskId": "1", "statusChange": {"to": "exploded"}}),
    ("TaskList", {}, {"tasks": {"1": TASK}}),
    ("TaskList", {}, {"tasks": [None, "1", {"id": None}]}),
    ("TaskList", {}, "No tasks found"),
]


@pytest.mark.parametrize(("tool", "asked", "response"), GARBAGE)
def test_a_result_of_another_form_changes_no_plan(session, tool, asked, response):
    """Nothing is answered, nothing is logged, and the plan stays as it was."""
    create(session, "1", "read")
    before = session.record().tasks
    called = session.call("PostToolUse", tool_name=tool, tool_input=asked, tool_response=response)
    assert called.stdout == b""
    assert session.record().tasks == before
    assert session.failures() == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4)
    | st.sampled_from(["1", "pending", "completed", "deleted"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["task", "tasks", "taskId", "id", "subject", "status", "success", "statusChange",
             "from", "to"]
        ),
        inner,
    ),
    max_leaves=8,
)  # fmt: skip


@given(st.sampled_from(["TaskCreate", "TaskUpdate", "TaskList"]), JSON, JSON)
def test_whatever_a_tool_returns_is_read_or_left(tool, asked, response):
    """What is read can be stored: texts, and known statuses."""
    payload = {"tool_name": tool, "tool_input": asked, "tool_response": response}
    report = read_report(payload)
    for task in report.tasks if report is not None else ():
        assert type(task.id) is type(task.name) is str
        assert {task.status, task.former_status} <= {
            None, "pending", "in_progress", "done", "deleted",
        }  # fmt: skip
    assert encoded(payload)
