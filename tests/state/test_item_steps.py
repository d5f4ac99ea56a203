"""The steps inside items: what may be one, what they add up to, when they end."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import ConfigurationError
from ultramon.state.item_steps import MAX_STEP_DEPTH, MAX_STEPS_BYTES, ItemSteps
from ultramon.system import compact_json

NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def event(kind, **details):
    return {"type": kind, **details}


def step(item, name, result=None):
    return event("step_completed", item=item, step=name, result=result)


def read(*events):
    steps = ItemSteps()
    for one in events:
        steps.read(one)
    return steps


@given(VALUES)
def test_a_result_comes_back_as_json_has_it(value):
    assert ItemSteps().checked("a", "parse", value) == json.loads(json.dumps(value))


def test_a_result_is_a_copy():
    """What its agent does with it afterwards is not the step's."""
    given = {"rows": (1, 2)}
    steps = ItemSteps()
    as_read = steps.checked("a", "parse", given)
    steps.put("a", "parse", as_read)
    steps.of("a")["parse"]["rows"].append(3)
    given["rows"] = ()
    assert steps.of("a") == {"parse": {"rows": [1, 2]}}


@pytest.mark.parametrize(
    ("name", "result", "words"),
    [
        ("", 1, "1 to 200 characters"),
        ("x" * 201, 1, "1 to 200 characters"),
        (7, 1, "step='int'"),
        ("parse", object(), "object cannot be stored as JSON"),
        ("parse", {"seen": {1, 2}}, "set cannot be stored as JSON"),
        ("parse", float("nan"), "a JSON value"),
        ("parse", {(1, 2): 3}, "a JSON value"),
        ("parse", [10**5000], "a JSON value"),
    ],
)
def test_what_is_no_step_is_refused(name, result, words):
    with pytest.raises(ConfigurationError) as caught:
        ItemSteps().checked("a", name, result)
    assert words in str(caught.value)


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_result_is_nested_so_deeply_that_each_reader_can_read_it():
    ItemSteps().checked("a", "parse", nested(MAX_STEP_DEPTH))
    for depth in (MAX_STEP_DEPTH + 1, 100_000):
        with pytest.raises(ConfigurationError):
            ItemSteps().checked("a", "parse", nested(depth))


def test_the_steps_of_an_item_have_one_bound_together():
    """To the byte, as they are stored; a replaced step makes room, another item has its own."""
    steps = ItemSteps()
    frame = len(compact_json.dumps({"parse": "", "load": ""}))
    half = "x" * ((MAX_STEPS_BYTES - frame) // 2)
    rest = "x" * (MAX_STEPS_BYTES - frame - len(half))
    steps.put("a", "parse", half)
    assert steps.checked("a", "load", rest) == rest
    with pytest.raises(ConfigurationError, match=f"these take {MAX_STEPS_BYTES + 1:,}"):
        steps.checked("a", "load", rest + "x")
    # In ASCII a letter beyond it takes six bytes.
    with pytest.raises(ConfigurationError, match=f"these take {MAX_STEPS_BYTES + 5:,}"):
        steps.checked("a", "load", rest[:-1] + "é")
    assert steps.checked("a", "parse", half + rest)
    assert steps.checked("b", "load", half + rest)


def test_a_step_that_is_done_again_replaces_the_first_one():
    """It is the last one then."""
    steps = read(step("a", "parse", 1), step("a", "load", 2), step("a", "parse", 3))
    assert list(steps.of("a").items()) == [("load", 2), ("parse", 3)]
    assert steps.of("b") == {}
    assert (steps.put("a", "load", 4), steps.put("b", "load", 4)) == (False, True)


@pytest.mark.parametrize(
    "kind", ["items_claimed", "items_verified", "items_rejected", "items_set_aside"]
)
def test_an_items_steps_end_with_its_claim(kind):
    """Verified it needs none; where a check denies it, they led to that."""
    steps = read(step("a", "parse"), step("b", "parse"), event(kind, items=["a"]))
    assert steps.among(["a", "b"]) == {"b": {"parse": None}}


def test_what_an_agent_is_assigned_are_its_steps_too():
    assigned = event("agent_assigned", items=["a"], steps={"a": {"parse": 1, "load": 2}})
    assert read(assigned, step("a", "load", 3)).of("a") == {"parse": 1, "load": 3}
    assert read(event("agent_assigned", items=["a"])).of("a") == {}


def test_a_life_after_an_end_begins_its_items_anew():
    """After a kill it continues them: that is no end that the agent has stored."""
    killed = event("agent_lost", outcome="lost"), event("agent_started")
    assert read(step("a", "parse"), *killed).of("a") == {"parse": None}
    ended = event("agent_stopped", outcome="completed"), event("agent_started")
    assert read(step("a", "parse"), *ended).of("a") == {}
