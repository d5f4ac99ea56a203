"""The turns before a rung, as a state stores them and as texts say them."""

import pytest

from ultramon.state.runway import Runway


@pytest.mark.parametrize(
    ("turns", "low", "high", "cell", "sentence"),
    [
        (7, 4, 12, "4-12 turns", "about 4 to 12 turns remain before 75 %."),
        (7, 4, None, "4+ turns", "at least 4 turns remain before 75 %."),
        (2, 1, None, "1+ turns", "at least 1 turn remains before 75 %."),
        (2, 0, 5, "0-5 turns", "about 0 to 5 turns remain before 75 %."),
        (1, 1, 1, "1 turn", "about 1 turn remains before 75 %."),
        (3, 3, 3, "3 turns", "about 3 turns remain before 75 %."),
        (0, 0, 2, "next turn", "the next turn may reach 75 %."),
        (3, 0, None, "next turn", "the next turn may reach 75 %."),
        (0, 0, 0, "next turn", "the next turn may reach 75 %."),
    ],
)
def test_texts_say_the_range_or_the_low_end_alone(turns, low, high, cell, sentence):
    """The next turn is named only where the low end is no turn at all."""
    runway = Runway(turns, low, high)
    assert str(runway) == cell
    assert runway.sentence("75 %") == f"At the recent pace {sentence}"
    assert runway.is_next == (cell == "next turn")
    assert runway.before("critical").lstrip("~") in (f"{cell} to critical", f"{cell}: critical")


@pytest.mark.parametrize(
    ("stored", "ends"),
    [
        ({"turns": 7, "turnsLow": 4, "turnsHigh": 12}, (7, 4, 12)),
        ({"turns": 7, "turnsLow": 4, "turnsHigh": None}, (7, 4, None)),
        ({"turns": 7, "seconds": 1.0}, (7, 7, 7)),
        ({"turns": "7"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_stored_rung_is_read(stored, ends):
    """A state of an earlier version has one number, and is shown as it was."""
    runway = Runway.of(stored)
    assert (runway and (runway.turns, runway.low, runway.high)) == ends
