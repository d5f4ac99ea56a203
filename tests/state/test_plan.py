"""The plan: what is done, what may be half done, what is left, and how much fits in a state."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.state.plan import MAX_PLAN_BYTES, MAX_RESULTS_BYTES, Plan
from ultramon.state.record import MAX_STATE_BYTES

names = st.sampled_from(["a", "b", "c", "d"])
steps = st.lists(
    st.tuples(st.sampled_from(["begin", "interrupt", "complete"]), names)
    | st.tuples(st.just("unnamed"), st.none()),
    max_size=20,
)


def plan(*items):
    """A plan with items."""
    made = Plan()
    made.add(items)
    return made


def with_status(made, *statuses):
    """The names of the items that have one of the statuses, in order."""
    return tuple(task["name"] for task in made.to_json() or () if task["status"] in statuses)


def results(made):
    """References to results, by item."""
    tasks = made.to_json() or ()
    return {task["name"]: task["result"] for task in tasks if task["result"] is not None}


def fill(made, name):
    """Add items one by one until there is no room for another."""
    for number in range(1_000_000):
        made.add([f"{number}{name}"])


def restored(made):
    """The plan a successor process reads from the state, through real JSON."""
    again = Plan()
    again.restore(json.loads(json.dumps(made.to_json())), made.completed_count, made.total_count)
    return again


def walk(made, taken):
    """Take steps on a plan."""
    for verb, name in taken:
        if verb == "begin":
            made.begin(name)
        elif verb == "interrupt":
            made.interrupt(name)
        else:
            made.complete(name, None)
    return made


def test_items_keep_their_order_and_are_there_once():
    """Adding again changes nothing; paths and texts name the same item."""
    made = plan("b", "a", Path("c/d"))
    made.complete("a", None)
    made.add(["a", "c/d", "e"])
    assert made.pending() == ["b", "c/d", "e"]
    assert with_status(made, "done") == ("a",)
    assert (made.completed_count, made.total_count) == (1, 4)


def test_an_item_goes_from_pending_to_done_or_interrupted():
    """Begun is current; what was interrupted is still to do."""
    made = plan("a", "b")
    made.begin("a")
    assert (made.current, with_status(made, "in_progress")) == ("a", ("a",))
    made.interrupt("a")
    assert (made.current, with_status(made, "interrupted")) == (None, ("a",))
    assert made.pending() == ["a", "b"]
    made.begin("a")
    made.complete("a", "out/a.md")
    assert results(made) == {"a": "out/a.md"}
    assert made.pending() == ["b"]


def test_interrupting_what_is_done_leaves_it_done():
    """An item completed inside its own block was completed."""
    made = plan("a")
    made.begin("a")
    made.complete("a", None)
    made.interrupt("a")
    assert with_status(made, "done") == ("a",)


def test_nested_tasks_lead_back_to_the_outer_one():
    """The task begun last and not finished is the current one."""
    made = plan("outer", "inner")
    made.begin("outer")
    made.begin("inner")
    assert made.current == "inner"
    made.complete(None, None)
    assert made.current == "outer"


def test_completing_without_a_name_completes_the_current_task_or_counts():
    """With nothing current there is one more done without a name."""
    made = plan("a")
    made.set_current("a")
    made.complete(None, None)
    made.complete(None, None)
    assert with_status(made, "done") == ("a",)
    assert (made.completed_count, made.total_count) == (2, 2)


def test_without_a_plan_nobody_knows_the_total():
    """Tasks that were merely done or begun do not say how many there will be."""
    made = Plan()
    assert (made.total_count, made.to_json(), made.current) == (None, None, None)
    made.complete(None, None)
    made.complete("surprise", None)
    made.begin("another")
    assert (made.completed_count, made.total_count) == (2, None)
    made.set_total(5)
    assert made.total_count == 5
    assert restored(made).total_count == 5


def test_an_empty_plan_is_no_plan():
    """Planning nothing says nothing about the total."""
    assert plan().total_count is None


@pytest.mark.parametrize("total", [-1, 10**20, 1.5, True, "5"])
def test_a_total_that_is_no_count_is_refused(total):
    """Only None and whole numbers from 0 on."""
    with pytest.raises(ConfigurationError, match="tasks_total"):
        Plan().set_total(total)
    made = plan("a")
    made.set_total(0)
    assert made.total_count == 0
    made.set_total(None)
    assert made.total_count == 1


@pytest.mark.parametrize("item", ["", None, 5, b"a", ["a"]], ids=repr)
def test_an_item_must_be_text_or_a_path(item):
    """And nothing of the list is added when one of it is neither."""
    made = Plan()
    for call in (made.begin, lambda it: made.add(["good", it]), lambda it: made.complete(it, "x")):
        if item is None and call is not made.add:
            continue
        with pytest.raises(ConfigurationError, match="plan item"):
            call(item)
    assert made.to_json() is None


@pytest.mark.parametrize("text", ["a.py", b"a.py"])
def test_one_text_is_not_a_list_of_its_letters(text):
    """plan("a.py") would silently plan four items."""
    with pytest.raises(ConfigurationError, match="a list of items, not one text"):
        Plan().add(text)


@given(steps, st.booleans())
def test_a_restored_plan_goes_on_where_the_process_vanished(taken, planned):
    """Everything comes back, and what was being worked on may be half done."""
    made = walk(plan("a", "b", "c") if planned else Plan(), taken)
    again = restored(made)
    assert again.pending() == made.pending()
    assert with_status(again, "done") == with_status(made, "done")
    assert with_status(again, "interrupted", "in_progress") == with_status(
        made, "interrupted", "in_progress"
    )
    assert with_status(again, "in_progress") == ()
    assert again.current is None
    assert results(again) == results(made)
    assert (again.completed_count, again.total_count) == (made.completed_count, made.total_count)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["x", "\N{SNOWMAN}", "\N{TELESCOPE}", "\n", "\udc80", '"']), st.booleans())
def test_a_full_plan_and_its_handoff_fit_into_a_state(character, long):
    """However it is spelt, what is accepted can be stored and read back, results included."""
    made = Plan()
    with pytest.raises(ConfigurationError, match="give each agent a part of the work"):
        fill(made, character * (300 if long else 1))
    for name in made.pending():
        made.complete(name, character * 2000)
    handoff = {"completed": with_status(made, "done"), "results": results(made)}
    stored = json.dumps({"tasks": made.to_json(), "handoff": handoff}, separators=(",", ":"))
    assert len(stored) < MAX_STATE_BYTES - 200 * 1024


def test_a_plan_that_is_full_is_left_as_it_was():
    """The items of a refused call are not added, not even some of them."""
    made = plan("a")
    with pytest.raises(ConfigurationError, match=f"at most {MAX_PLAN_BYTES} bytes as stored"):
        made.add(f"{number:050}" for number in range(100_000))
    assert made.pending() == ["a"]


@pytest.mark.parametrize("items", [["a", "b", "a", "a"], ["a", Path("a"), "a"]])
def test_items_of_one_name_are_refused(items):
    """Done and handed over by name, two of them would be one; nothing of the list is added."""
    made = plan("z")
    with pytest.raises(ConfigurationError, match="must be there once, not 3 times: number items"):
        made.add(items)
    assert made.pending() == ["z"]


def test_a_task_completed_again_is_named_and_counts_once():
    """A result that comes later is none of that, nor is a block around a completed task."""
    made = plan("a", "b")
    assert made.complete("a", None) is None
    assert made.complete("a", "out/a.md") is None
    assert made.complete("a", None) == "task 'a' was done already and counts once"
    made.begin("b")
    assert made.complete("b", None) is None
    assert made.finish("b") is None
    assert (made.completed_count, made.current) == (2, None)


def test_more_tasks_than_there_are_raise_the_total():
    """Three of one task does not stand in a state, and is said."""
    made = Plan()
    made.set_total(1)
    assert made.complete(None, None) is None
    assert made.complete(None, None) == "2 tasks are done, the total was 1 and follows"
    made.complete("named", None)
    assert (made.completed_count, made.total_count) == (3, 3)
    with pytest.raises(ConfigurationError, match="must be at least the 3 that are done"):
        made.set_total(2)
    assert made.total_count == 3


def test_a_result_for_which_there_is_no_room_is_marked():
    """The item is done all the same; the mark says that there was a result."""
    made = Plan()
    for number in range(MAX_RESULTS_BYTES // 1000):
        made.complete(str(number), "x" * 5000)
    assert results(made)["0"] == "x" * 1000
    assert results(made)[str(number)] == "…"
    assert made.completed_count == MAX_RESULTS_BYTES // 1000


def test_a_result_may_be_replaced_as_often_as_one_likes():
    """Only the last one takes up room."""
    made = Plan()
    for number in range(1_000):
        made.complete("a", f"{number:01000}")
    assert results(made) == {"a": f"{999:01000}"}


def test_a_current_task_is_a_name_and_not_a_document():
    """Free text for the current task is cut to what a state can carry."""
    made = Plan()
    made.set_current("x" * 1_000_000)
    assert made.current == "x" * 1000
    made.set_current(None)
    assert made.current is None
