import click
import pytest

from ultramon.cli.selection import time_span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0s", 0), ("90s", 90), ("1.5h", 5_400), ("1h30m", 5_400), ("7d", 604_800), ("1w", 604_800)],
)
def test_a_time_span_is_one_or_several_numbers_with_units(text, seconds):
    """Every command takes the same."""
    assert time_span(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "h", "-1d", "1h 30m", "1h30", "4x"])
def test_what_is_no_time_span_is_refused(text):
    """The answer names the units."""
    with pytest.raises(click.BadParameter, match="s, m, h, d or w"):
        time_span(text)
