"""The judge of the bench, on histories that are written by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.testing.bench.history import History, read_history
from ultramon.testing.bench.judge import Answer, judge, read_answer

ITEMS = ["item-001", "item-002", "item-003", "item-004"]


def said(done=(), left=()):
    return Answer(frozenset(done), frozenset(left))


def fact(kind, item=None, **more):
    return {"fact": kind, "context": 1, "at": 0.0, **({"item": item} if item else {}), **more}


def did(item):
    return [fact("began", item, attempt=1), fact("did", item), fact("said", item)]


def judged(facts, answer, done, items=ITEMS):
    return judge(items, [fact("context", items=items), *facts], answer, done)


def test_each_item_is_in_one_class():
    facts = [*did("item-001"), fact("began", "item-002"), fact("lie", "item-002")]
    verdict = judged(facts, said(["item-001", "item-002"], ["item-003"]), {"item-001"})
    assert verdict.verified == ("item-001",)
    assert verdict.false_done == ("item-002",)
    assert verdict.left == ("item-003",)
    assert verdict.lost == ("item-004",)
    assert verdict.faults == {"lie": 1}


def test_what_is_said_counts_for_nothing_where_the_tree_says_otherwise():
    """An item that was done once, and whose work is gone, is a false one."""
    verdict = judged(did("item-001"), said(ITEMS), set())
    assert verdict.false_done == tuple(ITEMS)
    assert not verdict.verified


def test_done_and_not_said_is_verified_and_named():
    verdict = judged(did("item-001"), said(left=ITEMS), {"item-001"})
    assert verdict.verified == verdict.unsaid == ("item-001",)
    assert not verdict.lost


def test_done_by_no_agent_is_named():
    """An orchestrator that writes the files itself does not pass for one that has them done."""
    verdict = judged(did("item-001"), said(ITEMS), set(ITEMS))
    assert verdict.unexplained == tuple(ITEMS[1:])


def test_finished_work_that_is_done_again_is_repeated():
    facts = [*did("item-001"), *did("item-001"), *did("item-001"), *did("item-002")]
    assert judged(facts, said(ITEMS), set(ITEMS)).repeated == {"item-001": 2}


def test_doing_again_what_was_not_done_is_no_repeat():
    """Behind a lie, a kill in the middle, or another agent that has destroyed it."""
    lied = [fact("began", "item-001"), fact("lie", "item-001"), *did("item-001")]
    killed = [fact("began", "item-002"), fact("die", "item-002"), *did("item-002")]
    spoilt = [*did("item-003"), fact("spoilt", items=["item-003"]), *did("item-003")]
    assert judged([*lied, *killed, *spoilt], said(ITEMS), set(ITEMS)).repeated == {}


def test_tokens_are_those_of_all_requests_of_all_contexts():
    facts = [fact("request", tokens=30_000, uncached=30_000), *did("item-001")]
    facts += [fact("context", items=[]), fact("request", tokens=20_000, uncached=5_000)]
    verdict = judged(facts, said(ITEMS), {"item-001"})
    assert (verdict.contexts, verdict.tokens, verdict.uncached_tokens) == (2, 50_000, 35_000)
    assert verdict.verified_per_million_tokens == pytest.approx(20.0)


def test_without_a_token_there_is_no_rate():
    verdict = judge(ITEMS, [], said(), set())
    assert verdict.verified_per_million_tokens is None
    assert verdict.lost == tuple(ITEMS)


def write(tmp_path, text):
    path = tmp_path / "answer"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_an_answer_is_read_line_by_line(tmp_path):
    text = f"done item-001\nleft item-002\n\ndone item-003 \ntree {tmp_path}\n"
    answer = read_answer(write(tmp_path, text), ITEMS)
    assert answer == Answer({"item-001", "item-003"}, {"item-002"}, str(tmp_path), ())


def test_an_item_that_is_said_to_be_both_is_said_to_be_done(tmp_path):
    """Else an orchestrator would be safe by naming every item twice."""
    answer = read_answer(write(tmp_path, "done item-001\nleft item-001\n"), ITEMS)
    assert (answer.done, answer.left) == ({"item-001"}, frozenset())


@pytest.mark.parametrize(
    "line", ["done item-999", "finished item-001", "done", "tree /nowhere/at/all", "{}", "\x1b[2J"]
)
def test_what_is_not_understood_is_said_and_no_more(tmp_path, line):
    answer = read_answer(write(tmp_path, f"done item-001\n{line}\n"), ITEMS)
    assert answer.done == {"item-001"}
    (problem,) = answer.problems
    assert problem.startswith("answer: 1 line is not understood, the first is ")
    assert problem.isprintable()


def test_lines_that_are_not_understood_are_counted(tmp_path):
    (problem,) = read_answer(write(tmp_path, "x\n" * 3), ITEMS).problems
    assert problem == "answer: 3 lines are not understood, the first is 'x'"


def test_no_answer_is_a_problem_and_everything_undone_is_lost(tmp_path):
    answer = read_answer(str(tmp_path / "none"), ITEMS)
    assert answer == Answer(problems=("no answer: No such file or directory",))
    assert judge(ITEMS, [], answer, set()).lost == tuple(ITEMS)


@given(
    st.binary(max_size=300),
    st.lists(st.sampled_from(["done ", "left ", "tree "])),
    st.sets(st.sampled_from(ITEMS)),
)
def test_whatever_is_answered_each_item_is_in_one_class(tmp_path_factory, rubbish, words, done):
    lines = [word.encode() + item.encode() for word, item in zip(words, ITEMS, strict=False)]
    path = tmp_path_factory.mktemp("answers") / "answer"
    path.write_bytes(b"\n".join([*lines, rubbish]))
    verdict = judge(ITEMS, [], read_answer(str(path), ITEMS), done)
    classes = (verdict.verified, verdict.false_done, verdict.lost, verdict.left)
    assert sorted(sum(classes, ())) == ITEMS


def test_a_history_that_a_kill_has_cut_off_is_read_up_to_there(tmp_path):
    path = str(tmp_path / "history")
    history = History(path)
    assert history.start(ITEMS) == 1
    assert [history.begin("item-001"), history.begin("item-001")] == [1, 2]
    assert History(path).start([]) == 2
    with open(path, "ab") as file:
        file.write(b'{"fact": "di')
    kinds = [(one["fact"], one["context"]) for one in read_history(path)]
    assert kinds == [("context", 1), ("began", 1), ("began", 1), ("context", 2)]
