"""Which item the subject of a task names."""

import pytest

from ultramon.relay.item_names import ItemNames

ITEMS = ["part 1", "part 10", "a.py", "src/a.py", 'say "x".py', "é", "parser"]


@pytest.mark.parametrize(
    ("subject", "item"),
    [
        ("part 1", "part 1"),
        ("Write the note for part 1.", "part 1"),
        ("Write the note for part 10", "part 10"),
        ("Port src/a.py", "src/a.py"),
        ("Port a.py: the last one", "a.py"),
        ('Read say "x".py', 'say "x".py'),
        ("Look at “é”", "é"),
        ("Port a.py, and test a.py", "a.py"),
    ],
)
def test_a_name_in_other_words_is_the_item(subject, item):
    """The longest name counts, and a full stop may end the sentence."""
    names = ItemNames(ITEMS)
    assert [names.find(subject), names.find(subject)] == [item, item]


@pytest.mark.parametrize(
    "subject",
    ["", "Read everything", "Compare part 1 with part 10", "part 100", "lib/a.py", "a.py.bak",
     "parsers", "the_parser", "re-parser"],
)  # fmt: skip
def test_what_names_no_item_or_two_is_none(subject):
    """Part of a longer word or path is no name."""
    assert ItemNames(ITEMS).find(subject) is None
