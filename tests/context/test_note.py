"""The note about an agent's own context window: facts, consequence, what is possible."""

import pytest

from ultramon.context.forecast import TurnHistory, forecast
from ultramon.context.ladder import (
    CLAUDE_CODE_LADDER,
    DEFAULT_LADDER,
    FORCE_RETURN,
    PREPARE_HANDOFF,
    Ladder,
    Rung,
)
from ultramon.context.note import (
    MAX_CRITICAL_NOTE_CHARS,
    check_critical_note,
    describe_pace,
    write_note,
)
from ultramon.errors import ConfigurationError

LIMIT = 200_000
AT = 1_700_000_000.0  # 22:13:20Z


def note(tokens=142_300, limit=LIMIT, **given):
    values = {"reading": ("reported", AT), "now": AT + 1, **given}
    return write_note(tokens, limit, **values)


def pace(tokens, level, ladder=DEFAULT_LADDER, per_turn=5_000, limit=LIMIT):
    history = TurnHistory()
    for turn in range(4):
        history.record(tokens - (3 - turn) * per_turn, AT + turn, reported=True)
    resolved = ladder.resolve(limit)
    ahead = forecast(history, tokens, limit, resolved)
    return describe_pace(ahead, resolved, level, tokens, limit)


def test_a_note_states_facts_and_gives_no_orders():
    """Numbers, their origin, what the limit means, pace and plan; the instructions still hold."""
    text = note(pace=pace(142_300, "warning"), tasks=(7, 20), action=PREPARE_HANDOFF)
    assert text == (
        "Context window: 142,300 of 200,000 tokens (71 %), reported 22:13Z."
        " At the limit requests are refused."
        " At the recent pace about 2 to 17 turns remain before 85 %."
        " 7 of 20 items are recorded. Your instructions are unchanged."
    )


def test_at_critical_a_note_says_what_is_possible():
    """An affordance and the owner's sentence, and the turns that are left to the limit itself."""
    text = note(
        172_000,
        compacts=True,
        limit_name="window",
        pace=pace(172_000, "critical"),
        action=FORCE_RETURN,
        critical_note="Progress belongs in NOTES.md.",
    )
    assert text == (
        "Context window: 172,000 of 200,000 tokens (86 %), reported 22:13Z."
        " At the limit earlier messages are replaced by a summary; files on disk stay."
        " At the recent pace about 2 to 17 turns remain before the limit."
        " What is only in this conversation can be kept by writing it to a file."
        " Progress belongs in NOTES.md. Your instructions are unchanged."
    )


def test_below_critical_the_owners_sentence_stays_out():
    """It is meant for the agent that is asked to return."""
    assert "NOTES.md" not in note(action=PREPARE_HANDOFF, critical_note="See NOTES.md.")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"compacts": True, "limit_name": "trigger", "window_tokens": 1_000_000},
         "At the limit earlier messages are replaced by a summary; files on disk stay."
         " The model itself holds 1,000,000."),
        ({"compacts": True, "limit_name": "limit"},
         "The limit was set by the user; at the model's own limit earlier messages are replaced"
         " by a summary; files on disk stay."),
        ({"limit_name": "limit"},
         "The limit was set by the user; at the model's own limit requests are refused."),
        ({"limit_name": "refusal"}, "At the limit requests are refused."),
    ],
)  # fmt: skip
def test_a_note_says_what_happens_at_this_limit(given, sentence):
    """A summary, a refusal, or at first nothing because the limit is the user's own."""
    assert f" {sentence} Your" in note(**given)


def test_a_token_budget_is_told_apart():
    """The client writes one into the conversation, a hundred times as large."""
    held = note(has_token_budget=True).partition(". ")[0]
    assert held.endswith("reported 22:13Z; the session's token budget is another number")


@pytest.mark.parametrize(
    ("age_seconds", "time"), [(0, "22:13Z"), (120, "22:13Z"), (121, "2023-11-14 22:13Z")]
)
def test_an_old_reading_shows_its_date(age_seconds, time):
    """Within two minutes the time of day says everything."""
    assert f", reported {time}." in note(now=AT + age_seconds)


def test_a_note_leaves_out_what_nobody_knows():
    """Without limit, pace and plan only the tokens are said, before a reading not even those."""
    assert note(10, None, tasks=(3, None)) == (
        "Context window: 10 tokens, the limit is unknown, reported 22:13Z."
        " Your instructions are unchanged."
    )
    unread = "Context window: usage not known yet, the limit is unknown."
    assert note(0, None, reading=None) == f"{unread} Your instructions are unchanged."
    assert note(0, reading=None).startswith(
        "Context window: usage not known yet, the limit is 200,000 tokens. At the limit"
    )


def test_a_lower_bound_is_said_to_be_one():
    """It has no percentage: that would look like usage."""
    text = note(12_300, is_lower_bound=True, reading=("estimated", AT))
    assert text.startswith("Context window: at least 12,300 of 200,000 tokens, estimated 22:13Z.")


@pytest.mark.parametrize(
    ("tokens", "level", "words"),
    [
        (169_000, "warning", "the next turn may reach 85 %."),
        (161_000, "warning", "about 1 to 6 turns remain before 85 %."),
        (198_000, "critical", "about 0 to 2 turns remain before the limit."),
        (199_500, "critical", "the next turn may reach the limit."),
    ],
)
def test_the_last_turns_read_like_sentences(tokens, level, words):
    """Neither 0 turns nor 1 turns."""
    assert pace(tokens, level) == f"At the recent pace {words}"


def test_beyond_the_limit_no_turns_are_left_to_tell():
    """Where the client is about to compact, or the limit was wrong, there is nothing ahead."""
    assert pace(200_000, "critical") == ""


def test_the_next_rung_lies_where_its_owner_put_it():
    """A ladder that rounds decides at 74.5 %; the text says 75 %, as the settings do."""
    assert pace(131_000, "warning", CLAUDE_CODE_LADDER).endswith("before 75 %.")


def test_any_ladder_ends_at_the_limit():
    """Above its highest rung the turns before the limit are said, whatever that rung asks."""
    ladder = Ladder([Rung("at-40", 0.4)])
    assert pace(100_000, "at-40", ladder).endswith("before the limit.")


def test_an_owners_sentence_is_one_printable_line():
    """White space collapses, control characters go, and nothing left is no sentence."""
    assert check_critical_note(" Write\nNOTES.md\x1b[31m\u202e now.\t") == (
        "Write NOTES.md [31m now."
    )
    assert check_critical_note(" \n\x00") is None


def test_an_owners_sentence_has_a_bound():
    """It stays in the conversation each time it is given."""
    assert len(check_critical_note("x" * MAX_CRITICAL_NOTE_CHARS)) == MAX_CRITICAL_NOTE_CHARS
    with pytest.raises(ConfigurationError, match="at most 500 characters"):
        check_critical_note("x" * (MAX_CRITICAL_NOTE_CHARS + 1))
