import json
import re
import subprocess
import sys
import unicodedata

import pytest
from helpers import ROOT
from helpers.observed_agents import NOW, session
from helpers.program import environment
from hypothesis import given
from hypothesis import strategies as st

from ultramon.cli import output
from ultramon.state.agent_rows import summarize

HARMLESS = st.characters(min_codepoint=0x20, max_codepoint=0x7E)


@given(st.text())
def test_nothing_that_moves_or_hides_text_survives(text):
    """No control, format, surrogate or unassigned character comes out of any text."""
    shown = output.sanitize(text)
    assert {unicodedata.category(char) for char in shown}.isdisjoint(
        {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
    )
    shown.encode()


@given(st.text(HARMLESS))
def test_ordinary_text_is_shown_as_it_is(text):
    """Printable ASCII is not changed."""
    assert output.sanitize(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", r"a\x1b[31mb"),
        ("\x1b]8;;http://x\x07link", r"\x1b]8;;http://x\x07link"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb\x08\x7f", r"a\x0db\x08\x7f"),
        ("two\nlines\ttab", r"two\x0alines\x09tab"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2066x\u2069", r"\u2066x\u2069"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("line\u2028paragraph\u2029", r"line\u2028paragraph\u2029"),
        ("\U000e0041tag\U000e0000", r"\U000e0041tag\U000e0000"),
        ("\ufe0fselector\U000e0100", r"\ufe0fselector\U000e0100"),
        ("\u3164filler", r"\u3164filler"),
        ("lone\ud800surrogate", r"lone\ud800surrogate"),
        ("naïve 漢字 🚀", "naïve 漢字 🚀"),
    ],
)
def test_each_kind_of_trick_becomes_a_visible_escape(text, shown):
    """An escape says which character was there; letters of every script stay."""
    assert output.sanitize(text) == shown


def test_a_tower_of_marks_is_cut():
    """Of 500 marks on one letter four are drawn, the others are escaped."""
    shown = output.sanitize("e" + "\u0301" * 500)
    assert shown.startswith("e" + "\u0301" * 4 + r"\u0301")
    assert shown.count("\u0301") == 4


def test_our_own_line_ends_can_be_kept():
    """Text that was laid out here keeps its lines and nothing else."""
    assert output.sanitize("one\ntwo\r\n", keep_lines=True) == "one\ntwo\\x0d\n"


def test_a_megabyte_of_label_is_cut():
    """A field takes at most 200 characters."""
    assert len(output.field("x" * 1_000_000)) == 200
    assert output.field("x" * 1_000_000).endswith("…")
    assert output.field(None) == ""


def test_values_inside_json_are_sanitised_at_every_depth():
    """Names and values of objects, and items of lists, are made harmless; numbers stay."""
    value = {"a\x1b": ["\x07", {"b": "\u202e", "n": 1.5, "none": None}]}
    assert output.sanitize_values(value) == {
        r"a\x1b": [r"\x07", {"b": r"\u202e", "n": 1.5, "none": None}]
    }


@given(st.dictionaries(st.text(), st.text()))
def test_json_is_printable_ascii_and_round_trips(value):
    """What is printed as JSON holds nothing but printable ASCII and line ends."""
    text = output.json_text(value)
    assert re.fullmatch(r"[\x20-\x7e\n]*", text)
    assert json.loads(text) == value


@pytest.mark.parametrize(
    ("ratio", "bar", "ascii_bar"),
    [
        (None, "          ", ".........."),
        (0.0, "          ", ".........."),
        (0.5, "█████     ", "#####....."),
        (0.7125, "███████▏  ", "#######..."),
        (1.0, "██████████", "##########"),
        (1.7, "██████████", "##########"),
    ],
)
def test_a_bar_shows_an_eighth_of_a_cell_and_never_overflows(ratio, bar, ascii_bar):
    """A bar has its width whatever the ratio, above the limit too."""
    assert output.usage_bar(ratio, 10, ascii_only=False) == bar
    assert output.usage_bar(ratio, 10, ascii_only=True) == ascii_bar


@given(st.floats(0, 5), st.integers(1, 40))
def test_a_bar_always_has_its_width(ratio, width):
    """No ratio makes a bar longer or shorter."""
    assert len(output.usage_bar(ratio, width, ascii_only=False)) == width
    assert len(output.usage_bar(ratio, width, ascii_only=True)) == width


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "?"),
        (950, "950"),
        (2_540, "2.5k"),
        (9_949, "9.9k"),
        (9_950, "10k"),
        (142_300, "142k"),
        (999_499, "999k"),
        (1_200_000, "1.2M"),
    ],
)
def test_short_token_counts_never_round_to_four_digits(count, shown):
    """9,950 is 10k, not 9.9k or 10.0k."""
    assert output.short_tokens(count) == shown


def test_numbers_are_written_for_people():
    """Unknown numbers are a question mark."""
    assert output.tokens(142300) == "142,300"
    assert output.tokens(None) == output.percent(None) == "?"
    assert output.percent(0.7125) == "71.2 %"


def test_styles_follow_what_a_level_asks_for():
    """A rung of one's own is coloured by its action, an unknown level is dim."""
    assert output.action_style("force_return") == "bold red"
    assert output.action_style("prepare_handoff", "orange") == "yellow"
    assert output.action_style("none", "normal") == "green"
    assert output.action_style("none", None) == "dim"


def test_a_part_that_does_not_fit_takes_no_place_from_the_next():
    """A long budget leaves the line to the limit of a plan."""
    summary, long, short = summarize([session()], NOW), "today $11.40 of 20", "5h 62 %"
    whole = output.summary_line(summary, 200, [long, short])
    assert whole.endswith(f" · {long} · {short}")
    narrow = output.summary_line(summary, len(whole) - 1, [long, short])
    assert narrow == whole.removesuffix(f" · {short}")
    brief = output.summary_line(summary, len(narrow) - 1, [long, short])
    assert brief == f"{output.summary_line(summary, 200)} · {short}"


def test_output_imports_nothing_heavy():
    """The print boundary is loaded by every command and by --version."""
    code = (
        "import sys; import ultramon.cli.output;"
        "print(sorted({'rich', 'pydantic', 'transitions', 'blinker'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        cwd=ROOT,
        check=True,
    )
    assert done.stdout == "[]\n"
