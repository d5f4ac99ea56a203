"""The judge of a soak sees each violation in a history, and none in a sound one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.checker import judge
from benchmarks.soak.history import History

ITEMS = ["a", "b", "c"]
OK = {
    "ok": True,
    "counts": {"assigned": 3, "verified": 3, "claimed": 0, "set_aside": 0, "left": 0},
    "set_aside": {},
    "left": [],
    "lost": [],
    "repeated": [],
    "stopped": None,
}


def fact(name, /, **details):
    return {"fact": name, "at": 1.0, "pid": 1, **details}


def history_of(items=ITEMS, *, lied=(), raised=(), died=(), result=OK, run="run"):
    """Return the facts of a run in which each item is done in the end."""
    facts = [fact("given", run=run, items=list(items)), fact("started", run=run, agent="one")]
    for item in items:
        if item in died:
            facts.append(fact("began", item=item, agent="none"))
            facts.append(fact("killed", pids=[7]))
        if item in lied:
            facts += [fact(kind, item=item, agent="liar") for kind in ("began", "lied", "claimed")]
            facts.append(fact("asked", item=item, answer="no"))
        if item in raised:
            facts.append(fact("asked", item=item, answer="raised"))
        facts += [fact(kind, item=item, agent="one") for kind in ("began", "did", "claimed")]
        facts.append(fact("asked", item=item, answer="yes"))
    return [*facts, fact("result", run=run, result=result)]


def without(facts, kind, item):
    return [one for one in facts if (one["fact"], one.get("item")) != (kind, item)]


def changed(**changes):
    return {**OK, **changes, "counts": {**OK["counts"], **changes.get("counts", {})}}


def test_a_sound_history_breaks_nothing():
    """Lies that were found, checks that raised and deaths are no violations."""
    facts = history_of(lied=["a"], raised=["b"], died=["a", "c"])
    verdict = judge(facts, ITEMS)
    assert verdict.violations == {}
    assert (verdict.counts["items"], verdict.counts["lied"]) == (3, 1)
    assert verdict.counts["begun again"] == 3


@pytest.mark.parametrize(
    ("kind", "facts", "effects"),
    [
        ("lost", [one for one in history_of() if one.get("item") != "b"], ["a", "c"]),
        ("false", without(history_of(lied=["b"]), "did", "b"), ["a", "c"]),
        ("unverified", without(history_of(), "asked", "b"), ITEMS),
        ("unverified", [one for one in history_of(raised=["b"])
                        if (one.get("item"), one.get("answer")) != ("b", "yes")], ITEMS),
        ("two_holders", [*history_of(), fact("two_holders", item="b", agent="2", holder="1")],
         ITEMS),
        ("wrong_results", history_of(result=changed(counts={"claimed": 1, "verified": 2})), ITEMS),
        ("wrong_results", history_of(result=changed(counts={"verified": 2})), ITEMS),
        ("wrong_results", history_of(result=changed(lost=["a"])), ITEMS),
        ("wrong_results", history_of(result=changed(
            set_aside={"b": "killed"}, counts={"verified": 2, "set_aside": 1})), ITEMS),
        ("set_aside", history_of(died=["b"], result=changed(
            ok=False, set_aside={"b": "killed"}, counts={"verified": 2, "set_aside": 1})), ITEMS),
        ("unfinished", [], []),
        ("unfinished", history_of()[:-1], ITEMS),
        ("unfinished", history_of(result=changed(
            ok=False, left=["b"], stopped="max_restarts", counts={"verified": 2, "left": 1})),
         ITEMS),
        ("messages_lost", [fact("sent", keys=["x", "y"]), fact("handled", keys=["y"])], []),
        ("missed", [fact("watches", consumer="archive"), *history_of()], ITEMS),
    ],
)  # fmt: skip
def test_each_violation_is_seen(kind, facts, effects):
    """One fact more, less or other than in a sound history is enough."""
    assert kind in judge(facts, effects).violations


def test_an_item_that_fails_often_enough_may_be_set_aside():
    """Three failures of its own are the contract; the result may not be ok then."""
    result = changed(
        ok=False, set_aside={"b": "not verified"}, counts={"verified": 2, "set_aside": 1}
    )
    facts = history_of(["a", "c"], result=result)
    facts[0] = fact("given", run="run", items=ITEMS)
    for number in range(3):
        facts[1:1] = [fact(kind, item="b", agent=f"l{number}") for kind in ("began", "lied")]
    assert judge(facts, ["a", "c"]).violations == {}


@given(
    st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8),
    st.randoms(use_true_random=False),
)
def test_whatever_an_ok_result_hides_is_seen(items, chance):
    """No effect, no yes, or neither: each of them breaks a history that is otherwise sound."""
    items = sorted(items)
    counts = {"assigned": len(items), "verified": len(items)}
    some = [item for item in items if chance.random() < 0.4]
    facts = history_of(items, lied=some, raised=some, died=some, result=changed(counts=counts))
    assert judge(facts, items).violations == {}

    victim = chance.choice(items)
    others = [item for item in items if item != victim]
    assert {"false"} == judge(facts, others).violations.keys()
    assert {"unverified"} == judge(without(facts, "asked", victim), items).violations.keys()
    for kind in ("began", "lied", "did", "claimed", "asked"):
        facts = without(facts, kind, victim)
    assert {"lost", "unverified"} == judge(facts, others).violations.keys()


@given(
    st.lists(st.tuples(st.sampled_from("sh"), st.sets(st.integers(0, 9), min_size=1)), max_size=9)
)
def test_messages_are_lost_that_were_sent_and_not_handled(batches):
    """In whatever order, and however often they are handled."""
    names = {"s": "sent", "h": "handled"}
    facts = [fact(names[kind], keys=[str(key) for key in keys]) for kind, keys in batches]
    sent, handled = (
        {str(key) for kind, keys in batches if kind == one for key in keys} for one in "sh"
    )
    assert set(judge(facts, []).messages_lost) == sent - handled


def test_a_torn_fact_hides_no_other(tmp_path):
    """A writer that is killed in the middle of a line leaves it without an end."""
    history = History(tmp_path / "history")
    history.note("began", item="a")
    with (tmp_path / "history").open("a") as file:
        file.write('\n{"fact": "did", "it')
    history.note("began", item="b")
    assert [(one["fact"], one["item"]) for one in history] == [("began", "a"), ("began", "b")]
