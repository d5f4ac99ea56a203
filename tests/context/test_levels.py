"""Levels, actions and notes: what a caller is answered."""

import json
import math

import pytest
from helpers import DATA

from ultramon.context.config import ContextConfig
from ultramon.context.ladder import Ladder, Rung
from ultramon.context.levels import (
    Action,
    Level,
    ThresholdAction,
    as_level,
    detect_threshold,
    get_threshold_action,
    should_emit_event,
)
from ultramon.errors import ConfigurationError

CASES = json.loads((DATA / "ultraplan.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["levels"], ids=lambda case: str(case["usage_ratio"]))
def test_a_ratio_has_the_level_and_action_of_the_design(case):
    """Thresholds are inclusive; below them is normal."""
    level = detect_threshold(case["usage_ratio"])
    assert level == case["level"]
    assert isinstance(level, Level)
    assert get_threshold_action(level).action == case["action"]


@pytest.mark.parametrize(("level", "message"), CASES["messages"].items())
def test_a_level_has_the_message_of_the_design(level, message):
    """The words are the design's."""
    assert get_threshold_action(level).message == message


@pytest.mark.parametrize("case", CASES["events"], ids=str)
def test_any_change_of_level_is_an_event(case):
    """Both directions count, and a level that becomes known."""
    assert should_emit_event(case["previous"], case["current"]) is case["emits"]


def test_messages_show_the_configured_numbers():
    """The percent in the text is the threshold in force, never a fixed one."""
    config = ContextConfig(warning_threshold=0.4, critical_threshold=0.625)
    assert detect_threshold(0.4, config) == "warning"
    assert "(40%+)" in get_threshold_action("warning", config).message
    assert "(62.5%+)" in get_threshold_action("critical", config).message


def test_a_ladder_of_ones_own_answers_with_its_names():
    """Names beyond the default ladder stay plain text."""
    ladder = Ladder([Rung("busy", 0.5, action="prepare_handoff")], base="calm")
    assert detect_threshold(0.1, ladder) == "calm"
    assert detect_threshold(0.5, ladder) == "busy"
    assert get_threshold_action("busy", ladder).should_prepare
    assert get_threshold_action("calm", ladder).action is Action.NONE
    assert as_level("warning") is Level.WARNING
    assert as_level("busy") == "busy"


@pytest.mark.parametrize("level", ["bogus", "", "Warning", "busy", 0.7])
def test_a_level_that_the_ladder_does_not_have_is_refused(level):
    """A misspelt level is no reason to do nothing."""
    with pytest.raises(ConfigurationError) as caught:
        get_threshold_action(level)
    assert (caught.value.name, caught.value.value) == ("level", level)
    assert caught.value.allowed == "one of normal, warning, critical, or None where it is unknown"


@pytest.mark.parametrize(
    "ratio", [math.nan, math.inf, -math.inf, -0.01, "0.7", True, [0.7]], ids=repr
)
def test_a_usage_ratio_that_is_none_is_refused(ratio):
    """What no division gives has no level: NaN would be normal, whatever the thresholds are."""
    with pytest.raises(ConfigurationError, match="must be a finite number >= 0"):
        detect_threshold(ratio)


@pytest.mark.parametrize("ladder", [None, Ladder([Rung("busy", 0.5)], base="calm")])
def test_an_unknown_usage_has_an_unknown_level_that_asks_for_nothing(ladder):
    """None goes in, unknown comes out, and the message names the cure."""
    assert detect_threshold(None, ladder) == "unknown"
    for level in (None, "unknown"):
        action = get_threshold_action(level, ladder)
        assert (action.level, action.action) == ("unknown", Action.NONE)
        assert "name the model, or its window as context_window_tokens" in action.message


def test_a_ladder_may_have_a_rung_called_unknown():
    """Then it is that rung."""
    ladder = Ladder([Rung("unknown", 0.5, action="force_return")])
    assert get_threshold_action("unknown", ladder).should_return


def test_tokens_left_count_where_the_configured_limit_is_known():
    """detect_threshold works tokens-left arms out against the configured cap."""
    config = ContextConfig(context_limit_tokens=100_000, warning_tokens_left=50_000)
    assert detect_threshold(0.5, config) == "warning"
    assert detect_threshold(0.5, ContextConfig(warning_tokens_left=50_000)) == "normal"


@pytest.mark.parametrize(
    ("action", "prepare", "leave"),
    [("none", False, False), ("prepare_handoff", True, False), ("force_return", True, True)],
)
def test_an_action_says_what_to_do(action, prepare, leave):
    """Who should return should also prepare."""
    told = ThresholdAction("any", action, "")
    assert (told.should_prepare, told.should_return) == (prepare, leave)
    assert told.note == ""


def test_actions_compare_by_what_they_say():
    """Two answers with equal fields are equal, and no other kind of value is."""
    one, same = get_threshold_action("warning"), get_threshold_action("warning")
    assert one == same
    assert hash(one) == hash(same)
    assert one != get_threshold_action("critical")
    assert one != "warning"
    assert repr(one).startswith("ThresholdAction(level='warning', action='prepare_handoff'")


def test_a_note_is_written_when_it_is_read():
    """A note may be given as a function, which is asked each time."""
    notes = iter(["first", "second"])
    action = ThresholdAction("normal", "none", "", note=lambda: next(notes))
    assert [action.note, action.note] == ["first", "second"]
