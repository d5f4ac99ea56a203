"""Items with what they touch and wait for: files of them, and which may be out at once."""

import pytest

from ultramon.errors import ConfigurationError
from ultramon.relay.item_plan import ItemPlan, read_rows


def test_a_table_and_json_lines_say_the_same():
    table = ["item\tafter\tpaths\n", "parser\t\tsrc/parse, src/lex.py\n", "\n", "printer\tparser\n"]
    lines = [
        '{"item": "parser", "paths": ["src/parse", "src/lex.py"]}',
        '{"item": "printer", "after": ["parser"]}',
    ]
    expected = [
        {"item": "parser", "paths": ["src/parse", "src/lex.py"], "after": []},
        {"item": "printer", "paths": [], "after": ["parser"]},
    ]
    assert read_rows(table, "items.tsv") == expected
    assert read_rows(lines, "items.jsonl") == expected


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("i.tsv", ["a\tb\n"], "a first line that names the columns: item, paths, after"),
        ("i.tsv", ["item\towner\n"], "a first line that names the columns"),
        ("i.tsv", ["item\n", "a\tb\n"], "at most 1 columns in line 2"),
        ("i.jsonl", ["a\n"], "in line 1 an object"),
        ("i.jsonl", ["[]"], "in line 1 an object"),
        ("i.jsonl", ['{"item": "a"}', '{"item": 3}'], "in line 2 an object"),
        ("i.jsonl", ['{"item": "a", "paths": "src"}'], "in line 1 an object"),
        ("i.jsonl", ['{"item": "a", "path": ["src"]}'], "in line 1 an object"),
    ],
)
def test_a_line_that_is_none_is_named(name, lines, words):
    with pytest.raises(ConfigurationError, match=words):
        read_rows(lines, name)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("src/a.py", "src/a.py", True),
        ("src", "./src/a.py", True),
        ("src/", "src", True),
        ("src/a", "src/a.py", False),
        ("src", "tests", False),
        (".", "src/a.py", True),
        ("src//a/../b.py", "src/b.py", True),
    ],
)
def test_paths_touch_where_one_holds_the_other(one, other, expected):
    for held, name in ((one, other), (other, one)):
        plan = ItemPlan({"held": (held,), "open": (name,)})
        assert plan.gate(["held"], [])("open") is not expected


def test_an_item_begins_behind_what_it_waits_for_and_beside_what_it_does_not_touch():
    plan = ItemPlan({"a": ("src",), "b": ("src/x.py",), "c": ("docs",)}, {"c": ("a",)})
    assert plan.gate([], [])("b") is True
    assert plan.gate(["a"], [])("b") is False
    assert plan.gate(["b"], [])("c") is False
    assert plan.gate(["b"], ["a"])("c") is True
    assert plan.gate(["a", "b", "c"], [])("without") is True


def test_what_waits_for_a_given_up_item_is_stuck_by_way_of_others():
    plan = ItemPlan(after={"b": ("a",), "c": ("b",), "d": ("x",)})
    assert plan.stuck({"a"}) == {"b": "a", "c": "b"}
    assert plan.stuck(()) == {}


def test_circles_and_unknown_items_are_refused_by_name():
    names = [f"item {number}" for number in range(5_000)]
    chain = {one: (other,) for one, other in zip(names[1:], names, strict=False)}
    ItemPlan(after=chain).check(names)
    with pytest.raises(ConfigurationError, match="b after nothing"):
        ItemPlan(after={"b": ("nothing",)}).check(["b"])
    with pytest.raises(ConfigurationError, match="a after c after b after a"):
        ItemPlan(after={"a": ("c",), "b": ("a",), "c": ("b",)}).check(["a", "b", "c"])
    with pytest.raises(ConfigurationError, match="a after a"):
        ItemPlan(after={"a": ("a",)}).check(["a"])
