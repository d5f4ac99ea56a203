"""When a fall of the tokens means that the window was emptied."""

import pytest

from ultramon.context.epochs import FALL_RATIO, has_fallen
from ultramon.context.tracker import ContextTracker


@pytest.mark.parametrize(
    ("tokens", "last", "fallen"),
    [(70_000, 100_000, False), (69_999, 100_000, True), (100_000, 100_000, False),
     (200_000, 100_000, False), (0, 1, True), (0, 0, False), (1, 1, False)],
)  # fmt: skip
def test_below_seven_tenths_is_a_fall(tokens, last, fallen):
    """The border itself is none: clients also drop single old results."""
    assert FALL_RATIO == 0.70
    assert has_fallen(tokens, last) is fallen
    tracker = ContextTracker()
    tracker.report(last)
    assert tracker.report(tokens) is fallen
