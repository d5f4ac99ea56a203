"""The plan in a stored state, as a hook or a command changes it."""

from hypothesis import given
from hypothesis import strategies as st

from ultramon.state.models import TaskState
from ultramon.state.plan import DONE, IN_PROGRESS, MAX_PLAN_BYTES, PENDING
from ultramon.state.record import StateRecord, decode_state, encode_state
from ultramon.state.stored_plan import (
    DELETED,
    MAX_NAME_CHARS,
    ReportedTask,
    StoredPlan,
)


def task(task_id, name="", status=PENDING, former=None):
    """A task as a client reports it."""
    return ReportedTask(str(task_id), name, status, former)


def listed(*tasks, record=None):
    """A state whose plan is what a client listed."""
    record = record or StateRecord("agent")
    plan = StoredPlan(record)
    plan.replace(tasks)
    plan.save()
    return record


def changed(record, *tasks):
    """Change tasks; whether each is in the plan."""
    plan = StoredPlan(record)
    found = [plan.change(one) for one in tasks]
    plan.save()
    return found


def shown(record):
    """What a table shows of a plan."""
    return record.tasks_completed, record.tasks_total, record.current_task


def names(record):
    return [one["name"] for one in record.tasks or ()]


def test_counts_and_current_task_follow_the_tasks():
    """The task begun last is current; when it ends, another one in progress is, or none."""
    record = listed(task(1, "read"), task(2, "write"), task(3, "test"))
    assert shown(record) == (0, 3, None)
    assert changed(record, task(1, status=IN_PROGRESS)) == [True]
    assert shown(record) == (0, 3, "read")
    changed(record, task(3, status=IN_PROGRESS))
    assert shown(record) == (0, 3, "test")
    changed(record, task(3, status=DONE))
    assert shown(record) == (1, 3, "read")
    changed(record, task(1, status=DONE))
    assert shown(record) == (2, 3, None)


def test_the_current_task_of_a_prompt_stays_until_a_task_begins():
    """Nothing in progress says nothing about what a person asked for."""
    record = StateRecord("agent", current_task="repair the door")
    listed(task(1, "read"), record=record)
    assert record.current_task == "repair the door"
    changed(record, task(1, status=IN_PROGRESS))
    assert record.current_task == "read"


def test_deleted_tasks_leave_the_plan():
    """Without a task left there is no plan."""
    record = listed(task(1, "read"), task(2, "write", DONE))
    changed(record, task(1, status=DELETED))
    assert shown(record) == (1, 1, None)
    changed(record, task(2, status=DELETED))
    assert (record.tasks, *shown(record)) == (None, 0, None, None)


def test_tasks_with_one_subject_have_names_of_their_own():
    """The later one bears its id, keeps that name, and survives its namesake."""
    record = listed(task(1, "read"), task(2, "read"), task(3, "read (#2)"))
    assert names(record) == ["read", "read (#2)", "read (#2) (#3)"]
    listed(task(2, "read", DONE), task(3, "read (#2)"), record=record)
    assert names(record) == ["read (#2)", "read (#2) (#3)"]
    assert [one["id"] for one in record.tasks] == ["2", "3"]


def test_a_renamed_current_task_is_shown_under_its_new_name():
    """A client may change subject and status in one call."""
    record = listed(task(1, "read"), task(2, "write"))
    changed(record, task(1, "read all", IN_PROGRESS))
    changed(record, task(1, "read everything", None))
    assert names(record) == ["read everything", "write"]
    assert record.current_task == "read everything"


def test_a_subject_is_one_short_line():
    """White space becomes one space, a long text is cut, none at all is named after the id."""
    record = listed(task(1, " a\n\tb "), task(2, "x" * 10_000_000), task(3, " \n"))
    one, two, three = names(record)
    assert (one, three) == ("a b", "task 3")
    assert len(two) == MAX_NAME_CHARS
    assert two.endswith("…")


def test_a_list_leaves_the_tasks_of_commands_alone():
    """Only tasks with an id are the client's; the others follow them, with their results."""
    record = listed(task(1, "read"))
    plan = StoredPlan(record)
    plan.add("by hand")["result"] = "a.txt"
    plan.save()
    listed(task(2, "by hand"), task(1, "read", DONE), record=record)
    assert [(one["name"], one.get("id")) for one in record.tasks] == [
        ("by hand (#2)", "2"), ("read", "1"), ("by hand", None),
    ]  # fmt: skip
    assert record.tasks[-1]["result"] == "a.txt"


def test_a_plan_that_is_not_saved_changes_no_state():
    """A caller that compares both sees whether there is anything to store."""
    record = listed(task(1, "read", IN_PROGRESS), task(2, "write", IN_PROGRESS))
    before = encode_state(record, "x")
    plan = StoredPlan(record)
    plan.change(task(1, "read all", PENDING))
    assert encode_state(record, "x") == before
    plan.save()
    assert names(record) == ["read all", "write"]


def test_an_unknown_task_changes_nothing_until_it_is_adopted():
    """Its subject is not known then, so it is named after its id."""
    record = listed(task(1, "read"))
    assert changed(record, task(7, status=DONE, former=PENDING)) == [False]
    assert names(record) == ["read"]
    plan = StoredPlan(record)
    plan.adopt(task(7, status=DONE))
    plan.save()
    assert (names(record), shown(record)) == (["read", "task 7"], (1, 2, None))


def test_beyond_its_bound_a_plan_counts():
    """Finished tasks lose their names first; every count stays exact, and a state can be read."""
    many = [task(n, f"{n} " + "é" * 150, DONE if n <= 500 else PENDING) for n in range(2_000)]
    record = listed(*many)
    plan = StoredPlan(record)
    assert plan.stored_bytes <= MAX_PLAN_BYTES
    assert plan.more_count == 2_000 - len(record.tasks) > 501
    assert {one["status"] for one in record.tasks} == {PENDING}
    assert names(record)[0].startswith("501 "), "what comes first is done first"
    assert shown(record) == (501, 2_000, None)
    assert decode_state(encode_state(record, "x"), "x").tasks == record.tasks
    changes = [
        task(3, status=PENDING, former=DONE),
        task(1_999, status=DONE, former=PENDING),
        task(1_998, status=DONE, former=PENDING),
        task(1_998, status=DELETED, former=DONE),
    ]
    assert changed(record, *changes) == [True] * 4
    assert shown(record) == (501, 1_999, None)
    plan = StoredPlan(record)
    plan.adopt(task(1_997, status=PENDING))
    assert len(plan.tasks) == len(record.tasks), "it may be one of those that are counted"
    listed(*many[:3], record=record)
    assert (shown(record), StoredPlan(record).more_count) == ((3, 3, None), 0)


STATUS = st.sampled_from([PENDING, IN_PROGRESS, DONE, DELETED])
STEP = st.tuples(
    st.sampled_from(["put", "change", "replace"]),
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ab c"), STATUS), max_size=6),
)


@given(st.lists(STEP, max_size=12))
def test_a_plan_is_what_was_reported_last(steps):
    """Compared with a dictionary of statuses; names are unique, and tasks valid."""
    record, model = StateRecord("agent"), {}
    for kind, reported in steps:
        tasks = [task(*one) for one in reported]
        plan = StoredPlan(record)
        if kind == "replace":
            plan.replace(tasks)
            model = {one.id: one.status for one in tasks if one.status != DELETED}
        for one in tasks if kind != "replace" else ():
            if kind == "put":
                plan.put(one)
            if kind == "put" or plan.change(one):
                model[one.id] = one.status
            if one.status == DELETED:
                model.pop(one.id, None)
        plan.save()
        found = [TaskState.model_validate(one) for one in record.tasks or ()]
        assert {one.id: one.status for one in found} == model
        assert len({one.name for one in found}) == len(found)
        assert record.tasks_completed == list(model.values()).count(DONE)
        assert record.tasks_total == (len(model) or None)
        running = [one.name for one in found if one.status == IN_PROGRESS]
        assert (record.current_task in running) if running else record.current_task is None
