"""What a monitor says about readings: levels, actions, limits. Real monitors, fake clock."""

import math
from datetime import UTC, datetime

import anthropic.types
import openai.types.chat
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk

from ultramon import Action, ConfigurationError, Ladder, Level
from ultramon.context.provider_usage import UNDERSTOOD
from ultramon.errors import InvalidUsageError, UnknownResponseError
from ultramon.testing import fill
from ultramon.testing.clock import START

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def emitted(signals, *names):
    """The signals of these names, as (name, level or reason, epoch)."""
    return [
        (name, getattr(event, "level", None) or event.reason, event.epoch)
        for name, event in signals
        if name in names
    ]


CROSSED, RELAXED, EPOCH = "context_threshold_reached", "context_relaxed", "context_epoch_started"


@pytest.mark.parametrize(
    ("tokens", "level", "action"),
    [
        (1, Level.NORMAL, Action.NONE),
        (69_999, Level.NORMAL, Action.NONE),
        (70_000, Level.WARNING, Action.PREPARE_HANDOFF),
        (84_999, Level.WARNING, Action.PREPARE_HANDOFF),
        (85_000, Level.CRITICAL, Action.FORCE_RETURN),
        (130_000, Level.CRITICAL, Action.FORCE_RETURN),
    ],
)
def test_levels_are_inclusive(make, tokens, level, action):
    """A level begins exactly at its ratio; the ratio is not clamped at 1."""
    monitor = make("scout-1", **LIMIT)
    answer = monitor.report_usage(input_tokens=tokens)
    assert (answer.level, answer.action) == (level, action)
    assert (answer.should_prepare, answer.should_return) == (
        action is not Action.NONE,
        action is Action.FORCE_RETURN,
    )
    state = monitor.get_state()
    assert (state.usage_ratio, state.threshold_status) == (tokens / 100_000, level)
    assert monitor.get_threshold_action().level == level


def test_a_jump_fires_once_for_the_highest_rung(make, store, ultramon_signals):
    """A jump over two rungs is one event, with the level reached and the actual value."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=91_234)
    monitor.report_usage(input_tokens=92_000)
    assert emitted(ultramon_signals, CROSSED) == [(CROSSED, "critical", 1)]
    (event,) = [event for name, event in ultramon_signals if name == CROSSED]
    assert (event.previous_level, event.action) == ("normal", "force_return")
    assert (event.tokens, event.usage_ratio, event.context_limit) == (91_234, 0.91234, 100_000)
    assert (event.tokens_source, event.source) == ("reported", "agent:scout-1")
    (stored,) = [event for event in store.events().events if event["type"] == CROSSED]
    assert (stored["eventId"], stored["generation"]) == (event.event_id, 1)


def test_changed_is_true_for_the_one_call_that_changed_the_level(make):
    """Only the call that crosses a rung is marked, in either direction."""
    monitor = make("scout-1", **LIMIT)
    answers = [fill(monitor, ratio) for ratio in (0.5, 0.7, 0.72, 0.86, 0.9, 0.64, 0.64)]
    assert [answer.changed for answer in answers] == [
        False,
        True,
        False,
        True,
        False,
        True,
        False,
    ]


def test_messages_have_the_configured_numbers(make):
    """Each level has one line, with the thresholds that hold and not with the default ones."""
    monitor = make("scout-1", **LIMIT)
    assert [fill(monitor, ratio).message for ratio in (0.1, 0.7, 0.85)] == [
        "Context normal",
        "Context warning (70%+) - complete current task, prepare clean handoff",
        "Context critical (85%+) - initiating checkpoint return",
    ]
    other = make("scout-2", **LIMIT, warning_threshold=0.5, critical_threshold=0.625)
    assert fill(other, 0.5).message.startswith("Context warning (50%+) - ")
    assert fill(other, 0.625).message.startswith("Context critical (62.5%+) - ")


def test_a_note_states_facts_and_orders_nothing(make, ultramon_clock):
    """The text for an agent's context has numbers, the pace and the plan, and no imperative."""
    monitor = make("scout-1", context_window_tokens=200_000)
    monitor.plan(f"item {number}" for number in range(20))
    for number in range(7):
        monitor.complete_task(f"item {number}")
    for tokens in (100_000, 121_000, 142_300):
        ultramon_clock.advance(60)
        action = monitor.report_usage(input_tokens=tokens)
    assert action.note == (
        "Context window: 142,300 of 200,000 tokens (71 %), reported 00:03Z. "
        "At the limit requests are refused. "
        "At the recent pace about 0 to 5 turns remain before 85 %. "
        "7 of 20 items are recorded. Your instructions are unchanged."
    )


def test_a_critical_note_ends_with_the_owners_sentence(make, monkeypatch):
    """Given to the monitor or to its environment; shown only to an agent that should return."""
    monkeypatch.setenv("ULTRAMON_CRITICAL_NOTE", "Progress\nbelongs in NOTES.md.")
    monitor = make("scout-1", **LIMIT)
    assert "NOTES.md" not in fill(monitor, 0.7).note
    assert fill(monitor, 0.85).note.endswith(
        " What is only in this conversation can be kept by writing it to a file."
        " Progress belongs in NOTES.md. Your instructions are unchanged."
    )
    with pytest.raises(ConfigurationError, match=r"critical_note.* at most 500 characters"):
        make("scout-2", **LIMIT, critical_note="x" * 501)


def test_where_something_compacts_a_note_says_so(make):
    """An agent whose conversation was summarised once does not end in a refusal."""
    monitor = make("scout-1", context_window_tokens=200_000)
    assert "At the limit requests are refused." in fill(monitor, 0.7).note
    monitor.record_compaction()
    assert "At the limit earlier messages are replaced by a summary" in fill(monitor, 0.7).note


def test_an_unknown_model_has_no_ratio_and_no_level(make, ultramon_signals):
    """Without a known limit nothing is guessed: ratio and level are null and nothing fires."""
    monitor = make("scout-1", model="nobody-knows-this-one")
    action = monitor.report_usage(input_tokens=900_000)
    assert (action.level, action.action, action.changed) == (Level.UNKNOWN, Action.NONE, False)
    assert "its window as context_window_tokens (ULTRAMON_CONTEXT_WINDOW_TOKENS)" in action.message
    assert action.note.startswith("Context window: 900,000 tokens, the limit is unknown, reported ")
    state = monitor.get_state()
    assert (state.usage_ratio, state.threshold_status, state.context_limit) == (None, None, None)
    assert (state.limit_source, state.action) == ("unknown", "none")
    assert emitted(ultramon_signals, CROSSED) == []


def test_an_unknown_model_is_warned_of_once(make, caplog):
    """One line in the log per monitor names the model and the cure, whatever is read later."""
    monitor = make("scout-1", model="nobody-knows-this-one")
    assert caplog.records == []
    for _ in range(3):
        monitor.track_content("some text")
        monitor.report_usage(input_tokens=900)
    monitor.set_model("nor-this-one")
    (line,) = [one.getMessage() for one in caplog.records]
    assert line.startswith("agent scout-1, model nobody-knows-this-one: Context limit unknown - ")


def test_before_the_first_reading_the_level_is_unknown(make, ultramon_signals):
    """Then usage is known; that the level is normal is no change and no event."""
    monitor = make("scout-1")
    state = monitor.get_state()
    assert (state.usage_ratio, state.threshold_status, state.context_limit) == (None, None, 200_000)
    action = monitor.get_threshold_action()
    assert (action.level, action.action) == (Level.UNKNOWN, Action.NONE)
    assert action.message == "Context usage unknown - report the next response"
    first = monitor.track_content("some text")
    assert (first.level, first.changed) == (Level.NORMAL, False)
    assert monitor.get_state().threshold_status == "normal"
    assert emitted(ultramon_signals, CROSSED) == []


def test_a_rung_that_a_lower_bound_reaches_fires(make, ultramon_signals):
    """The event says at least how full the window is; nothing else is known after a compaction."""
    monitor = make("scout-1")
    fill(monitor, 0.9)
    unknown = monitor.record_compaction()
    assert (unknown.level, unknown.changed) == (Level.UNKNOWN, True)
    assert monitor.track_content("x" * 400).level == Level.UNKNOWN
    critical = monitor.track_content("some words " * 200_000)
    assert (critical.level, critical.should_return, critical.changed) == ("critical", True, True)
    event = [event for name, event in ultramon_signals if name == CROSSED][-1]
    assert (event.level, event.previous_level, event.tokens_source) == (
        "critical", "normal", "estimated",
    )  # fmt: skip
    assert event.usage_ratio > 1
    assert monitor.get_state().usage_ratio is None


@pytest.mark.parametrize("value", [True, False, math.nan, -1, 1.0, 1e30, 10**9 + 1, "12", [1]])
@pytest.mark.parametrize(
    "name",
    [
        "input_tokens",
        "cache_read_tokens",
        "cache_creation_tokens",
        "output_tokens",
        "context_window_tokens",
    ],
)
def test_impossible_usage_is_refused_and_changes_nothing(ultramon_monitor, name, value):
    """A number that no provider can have counted is named in the error; the reading stays."""
    monitor = ultramon_monitor("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=500, output_tokens=20)
    before = monitor.get_state()
    with pytest.raises(InvalidUsageError, match=name) as caught:
        monitor.report_usage(**{"input_tokens": 80_000, name: value})
    assert (caught.value.agent_id, caught.value.name) == ("scout-1", name)
    assert monitor.get_state() == before


def test_none_counts_as_nothing(make):
    """None is 0 for every number, and a report of nothing is no reading."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=500)
    monitor.report_usage(
        input_tokens=None, cache_read_tokens=None, cache_creation_tokens=None, output_tokens=None
    )
    assert monitor.get_state().estimated_tokens == 500
    monitor.report_usage(input_tokens=None, cache_read_tokens=600)
    assert monitor.get_state().estimated_tokens == 600


def test_cached_tokens_are_in_the_window(make):
    """Cached input is added to the input, unless the provider counted it in already."""
    usage = {"input_tokens": 7_000, "cache_read_tokens": 5_000, "cache_creation_tokens": 200}
    apart, within = make("scout-1", **LIMIT), make("scout-2", **LIMIT)
    apart.report_usage(**usage)
    within.report_usage(**usage, cache_in_input=True)
    assert apart.get_state().estimated_tokens == 12_200
    assert within.get_state().estimated_tokens == 7_000


def test_the_reply_joins_with_what_follows(make):
    """Output tokens are not in the window of their own request, but in that of the next."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=1_000, output_tokens=500)
    state = monitor.get_state()
    assert (state.estimated_tokens, state.tokens_source) == (1_000, "reported")
    monitor.track_content("x" * 400, source="tool:read")
    state = monitor.get_state()
    assert (state.estimated_tokens, state.tokens_source) == (1_600, "anchored")
    assert state.by_source == {"reply": 500, "tool:read": 100}


def test_a_first_report_names_what_was_there_before_the_first_word(make):
    """What it counts beyond the texts so far; a program that names none has only the sum."""
    monitor = make("scout-1", **LIMIT)
    monitor.track_content("x" * 4_000, source="user")
    monitor.report_usage(input_tokens=9_000)
    monitor.report_usage(input_tokens=12_000)
    assert monitor.get_state().by_source == {"user": 1_000, "standing": 8_000}
    other = make("scout-2", **LIMIT)
    other.report_usage(input_tokens=9_000)
    assert not other.get_state().by_source


def test_what_stands_in_every_window_is_counted_from_its_beginning(make):
    """By the names given; a compaction that says what it left has counted it."""
    monitor = make("scout-1", standing={"system": 3_000, "mcp:github": 6_000}, **LIMIT)
    monitor.track_content("x" * 4_000, source="user")
    state = monitor.get_state()
    assert (state.estimated_tokens, state.tokens_source) == (10_000, "estimated")
    assert state.by_source == {"system": 3_000, "mcp:github": 6_000, "user": 1_000}
    monitor.report_usage(input_tokens=11_000)
    assert monitor.get_state().estimated_tokens == 11_000
    monitor.record_compaction()
    assert monitor.get_state().estimated_tokens == 9_000
    monitor.record_compaction(12_000)
    state = monitor.get_state()
    assert state.estimated_tokens == 12_000
    assert state.by_source == {"system": 3_000, "mcp:github": 6_000}


def test_tracked_text_raises_the_level(make, ultramon_signals):
    """Without any report the estimate alone crosses the rungs; empty text counts nothing."""
    monitor = make("scout-1", **LIMIT)
    assert monitor.track_content("").level == Level.NORMAL
    assert monitor.track_content("x" * 279_996).level == Level.NORMAL
    action = monitor.track_content("xxxx")
    assert (action.level, action.changed) == (Level.WARNING, True)
    state = monitor.get_state()
    assert (state.cumulative_chars, state.tokens_source) == (280_000, "estimated")
    assert emitted(ultramon_signals, CROSSED) == [(CROSSED, "warning", 1)]


def test_content_must_be_text(make):
    """Bytes and None are refused by name, not counted as something."""
    monitor = make("scout-1", **LIMIT)
    with pytest.raises(TypeError, match="scout-1: content must be str, not bytes"):
        monitor.track_content(b"bytes")


@pytest.mark.parametrize("age_seconds", [0, 1, 60])
def test_an_older_report_changes_nothing(make, ultramon_clock, age_seconds):
    """A report as old as the last reading or older is dropped whole, its window too."""
    monitor = make("scout-1", **LIMIT)
    ultramon_clock.advance(90)
    monitor.report_usage(input_tokens=60_000, at=START + 70)
    before = monitor.get_state()
    monitor.report_usage(
        input_tokens=90_000, context_window_tokens=50_000, at=START + 70 - age_seconds
    )
    assert monitor.get_state() == before
    late = datetime.fromtimestamp(START + 71, UTC)
    assert monitor.report_usage(input_tokens=90_000, at=late).level == Level.CRITICAL


def test_a_report_of_an_earlier_epoch_changes_nothing(make, ultramon_clock):
    """What was counted before a compaction does not fill the window after it."""
    monitor = make("scout-1", **LIMIT)
    ultramon_clock.advance(100)
    monitor.record_compaction()
    monitor.report_usage(input_tokens=90_000, at=START + 50)
    assert monitor.get_state().usage_ratio is None


def test_a_report_from_the_future_counts_as_now(make, ultramon_clock):
    """A provider's clock that runs ahead does not make the next reports stale."""
    monitor = make("scout-1", **LIMIT)
    ultramon_clock.advance(10)
    monitor.report_usage(input_tokens=10_000, at=START + 9_999)
    ultramon_clock.advance(10)
    monitor.report_usage(input_tokens=20_000, at=START + 20)
    state = monitor.get_state()
    assert state.estimated_tokens == 20_000
    assert state.measured_at.timestamp() == START + 20


@pytest.mark.parametrize("at", [math.nan, math.inf, -math.inf])
def test_a_time_that_is_none_is_refused(make, at):
    """A report at no finite time is refused, and the state can still be stored."""
    monitor = make("scout-1", **LIMIT)
    with pytest.raises(ValueError, match="is not a time"):
        monitor.report_usage(input_tokens=10, at=at)
    monitor.update_heartbeat()


def test_the_observed_window_is_believed(make, ultramon_signals):
    """A window that the provider reports replaces the default one, and the level follows."""
    monitor = make("scout-1")
    monitor.report_usage(input_tokens=150_000)
    assert monitor.get_state().limit_source == "default"
    monitor.report_usage(input_tokens=150_000, context_window_tokens=1_000_000)
    state = monitor.get_state()
    assert (state.context_limit, state.limit_source) == (1_000_000, "observed")
    assert emitted(ultramon_signals, CROSSED, RELAXED) == [
        (CROSSED, "warning", 1),
        (RELAXED, "normal", 1),
    ]


def test_a_window_that_cannot_be_meant_is_not_believed(make):
    """A reported window smaller than the reserved output changes nothing and raises nothing."""
    monitor = make("scout-1", reserved_output_tokens=50_000)
    monitor.report_usage(input_tokens=10_000, context_window_tokens=40_000)
    state = monitor.get_state()
    assert (state.context_limit, state.limit_source) == (150_000, "default")


def anthropic_message(**usage):
    return anthropic.types.Message.model_validate(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": [],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"output_tokens": 50, **usage},
        }
    )


def openai_completion(**usage):
    return openai.types.chat.ChatCompletion.model_validate(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1795292931,
            "model": "gpt-5.2",
            "choices": [],
            "usage": usage,
        }
    )


@pytest.mark.parametrize(
    "response",
    [
        anthropic_message(
            input_tokens=12, cache_read_input_tokens=60_000, cache_creation_input_tokens=10_000
        ),
        openai_completion(
            prompt_tokens=70_012,
            completion_tokens=50,
            total_tokens=70_062,
            prompt_tokens_details={"cached_tokens": 60_000},
        ),
        AIMessage(
            content="Done.",
            usage_metadata={
                "input_tokens": 70_012,
                "output_tokens": 50,
                "total_tokens": 70_062,
                "input_token_details": {"cache_read": 60_000},
            },
        ),
    ],
    ids=["anthropic", "openai", "langchain"],
)
def test_a_provider_response_is_a_report(ultramon_monitor, response):
    """The response objects of the providers say themselves what is in the window."""
    monitor = ultramon_monitor("scout-1", **LIMIT)
    action = monitor.report_response(response)
    assert (action.level, action.changed) == (Level.WARNING, True)
    monitor.track_content("")
    assert monitor.get_state().estimated_tokens == 70_012 + 50


@pytest.mark.parametrize(
    "response",
    [None, object(), "text", anthropic_message(input_tokens=-5), AIMessage(content="no usage")],
)
def test_a_response_without_usage_changes_nothing(ultramon_monitor, response):
    """A response that tells nothing, or something impossible, never raises into the agent."""
    monitor = ultramon_monitor("scout-1", **LIMIT)
    fill(monitor, 0.72)
    before = monitor.get_state()
    assert monitor.report_response(response).level == Level.WARNING
    assert monitor.get_state() == before


def test_an_unreadable_response_is_warned_about_once_per_type_and_agent(ultramon_monitor, caplog):
    """The warning names the type and what is understood; each agent says it for itself."""
    for agent_id in ("scout-1", "scout-2"):
        monitor = ultramon_monitor(agent_id, **LIMIT)
        for response in ("hello", "hello again", {"answer": 42}, AIMessage(content="no usage")):
            monitor.report_response(response)
    warned = [r.getMessage() for r in caplog.records if "no usage" in r.getMessage()]
    names = ("a str", "a dict", "a langchain_core.messages.ai.AIMessage")
    assert [text.partition(";")[0] for text in warned] == [
        f"agent {agent_id}: no usage of one response is found in {name}"
        for agent_id in ("scout-1", "scout-2")
        for name in names
    ]
    assert all(UNDERSTOOD in text for text in warned)


def test_parts_of_a_stream_are_passed_over_without_a_word(ultramon_monitor, caplog):
    """Most parts of a stream carry no usage, also where everything else is an error."""
    monitor = ultramon_monitor("scout-1", **LIMIT)
    monitor.report_response(AIMessageChunk(content="Do"), strict=True)
    monitor.report_response(AIMessageChunk(content="ne."))
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ("hello", UnknownResponseError),
        (None, UnknownResponseError),
        ({"num_turns": 3, "usage": {"input_tokens": 9, "output_tokens": 1}}, UnknownResponseError),
        (anthropic_message(input_tokens=-5), InvalidUsageError),
    ],
)
def test_a_strict_report_raises_what_is_logged_otherwise(ultramon_monitor, response, error):
    """Neither an unknown object nor an impossible number is passed over, and nothing changes."""
    monitor = ultramon_monitor("scout-1", **LIMIT)
    before = monitor.get_state()
    with pytest.raises(error, match="agent scout-1: "):
        monitor.report_response(response, strict=True)
    assert monitor.get_state() == before


def test_set_model_changes_the_limit(make, ultramon_signals):
    """Another model is another window: the level is decided anew at once."""
    monitor = make("scout-1", model="claude-sonnet-4-5")
    monitor.report_usage(input_tokens=150_000)
    action = monitor.set_model("gpt-4.1")
    assert (action.level, action.changed) == (Level.NORMAL, True)
    state = monitor.get_state()
    assert (state.model, state.limit_source) == ("gpt-4.1", "model")
    assert emitted(ultramon_signals, RELAXED) == [(RELAXED, "normal", 1)]


def test_the_trigger_of_a_framework_is_the_limit(make):
    """Where the framework compacts is what counts, and the note says what happens there."""
    monitor = make("scout-1", model="claude-sonnet-4-5")
    monitor.report_usage(input_tokens=75_000)
    action = monitor.set_host_limits(trigger_tokens=100_000)
    assert (action.level, action.changed) == (Level.WARNING, True)
    assert "earlier messages are replaced by a summary" in action.note
    state = monitor.get_state()
    assert (state.context_limit, state.limit_source) == (100_000, "host")
    assert monitor.set_host_limits().level == Level.NORMAL
    assert monitor.config.model == "claude-sonnet-4-5"


def test_a_host_window_too_small_for_the_reserved_output_is_refused(make):
    """A refused window leaves the former limit in force."""
    monitor = make("scout-1", model="gpt-4.1", reserved_output_tokens=300_000)
    with pytest.raises(ConfigurationError, match="reserved_output_tokens"):
        monitor.set_host_limits(window_tokens=200_000)
    assert monitor.get_state().limit_source == "model"


def test_a_model_too_small_for_the_reserved_output_is_refused(make):
    """A refused model leaves the former one in force."""
    monitor = make("scout-1", model="gpt-4.1", reserved_output_tokens=300_000)
    with pytest.raises(ConfigurationError, match="reserved_output_tokens"):
        monitor.set_model("claude-sonnet-4-5")
    assert monitor.get_state().model == "gpt-4.1"
    assert monitor.get_state().limit_source == "model"


def test_from_seventy_percent_up_each_whole_percent_is_stored_at_once(make, store, ultramon_clock):
    """`ultramon check` reads the store: five seconds late it would answer for another window."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=69_000)
    for tokens in (70_000, 71_000, 71_999, 72_000, 80_100):
        ultramon_clock.advance(1)
        monitor.report_usage(input_tokens=tokens)
        ultramon_clock.advance(0)
        shown = store.load("scout-1").record.estimated_tokens
        assert shown // 1_000 == tokens // 1_000
    ultramon_clock.advance(1)
    monitor.track_content("x" * 4 * 1_000)
    ultramon_clock.advance(0)
    assert store.load("scout-1").record.estimated_tokens == monitor.get_state().estimated_tokens


def test_below_the_lower_of_seventy_percent_and_the_first_rung_nothing_is_hurried(
    make, store, ultramon_clock
):
    """There a save for each percent would cost, and nobody decides by it."""
    ladder = Ladder.default(0.5, 0.9)
    monitor = make("scout-1", **LIMIT, ladder=ladder)
    monitor.report_usage(input_tokens=20_000)
    first = store.load("scout-1").record.seq
    for tokens in range(21_000, 30_000, 1_000):
        ultramon_clock.advance(0.1)
        monitor.report_usage(input_tokens=tokens)
    assert store.load("scout-1").record.seq - first <= 1
    monitor.report_usage(input_tokens=50_000)
    ultramon_clock.advance(1)
    monitor.report_usage(input_tokens=51_000)
    ultramon_clock.advance(0)
    assert store.load("scout-1").record.estimated_tokens == 51_000


def test_whole_percents_are_stored_once_a_second_at_most(make, store, ultramon_clock):
    """An agent that reports a percent every hundredth of a second is no load for the disk."""
    monitor = make("scout-1", **LIMIT)
    monitor.report_usage(input_tokens=70_000)
    first = store.load("scout-1").record.seq
    for tokens in range(71_000, 84_000, 100):
        ultramon_clock.advance(0.01)
        monitor.report_usage(input_tokens=tokens)
    seconds = 1.3
    assert store.load("scout-1").record.seq - first <= math.ceil(seconds) + 1
