"""Thinking and images as parts of their own of what fills a window."""

import base64
import json

import pytest
from helpers import DATA
from helpers.transcript_lines import line, prompt, reply
from hypothesis import given
from hypothesis import strategies as st

from ultramon.context.estimator import estimate_tokens, family_for_model
from ultramon.context.tracker import REPLY
from ultramon.hosts.registry import find_host
from ultramon.hosts.transcripts.records import IMAGES, THINKING, Content, Image, Report
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import UNRECORDED, TranscriptSummary

MODEL = "claude-opus-5-5"
PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x03\x20\0\0\x02\x58\x08\x02\0\0\0" + bytes(20)
).decode()
"""Of 800 x 600 pixels: 29 x 22 squares."""
IMAGE_TOKENS = 638


def report(name, tokens, output=0, thinking=None, model=MODEL, **more):
    """A count of the provider."""
    return Report(name, model, model, tokens, 0, 0, output, 1.0, thinking_tokens=thinking, **more)


def said(text, source="user", **more):
    """A text."""
    return Content(text, source, 1.0, **more)


def window_of(*records, model=MODEL):
    """What fills the window behind some records, and what they add up to."""
    summarizer = Summarizer(TranscriptSummary("claude-code", "s", model=model))
    for at, record in enumerate(records):
        summarizer.feed(record)
        if at % 3 == 0:  # as a report that reads only what is new
            memory = json.loads(json.dumps(summarizer.memory()))
            summary = TranscriptSummary(**json.loads(json.dumps(summarizer.to_json())))
            summarizer = Summarizer(summary, memory)
    return summarizer.present_window(), summarizer.finish()


def test_thinking_that_is_stated_is_measured():
    """Of the output, as the provider says; the rest of it is the reply."""
    window, summary = window_of(
        said("Go."), report("a", 10_000, 500, 420), said("", THINKING, counted=True)
    )
    assert (window.by_source[THINKING], window.by_source[REPLY]) == (420, 80)
    assert window.provenance == {
        "user": "estimated", REPLY: "measured", THINKING: "measured", UNRECORDED: "unknown",
    }  # fmt: skip
    assert sum(window.by_source.values()) == 10_500
    assert summary.tokens_by_source[THINKING] == summary.measured_by_source[THINKING] == 420


def test_thinking_that_is_not_stated_is_what_the_reply_does_not_show():
    """Hidden or summarised: it was billed as output all the same."""
    shown = "word " * 100
    seen = sum(estimate_tokens(text, family_for_model(MODEL)) for text in (shown, "x"))
    window, _ = window_of(
        said("Go."), report("a", 10_000, 700), said("", THINKING, counted=True),
        said(shown, "assistant", counted=True), report("a", 10_000, 900, update=True),
        said("x", "assistant", counted=True), said("ok", "tool:Bash"),
    )  # fmt: skip
    assert window.by_source[THINKING] == 900 - seen
    assert window.by_source[THINKING] + window.by_source[REPLY] == 900
    assert window.provenance[THINKING] == window.provenance[REPLY] == "estimated"


def test_a_reply_without_thinking_has_none():
    """All of its output is measured as the reply."""
    window, _ = window_of(report("a", 10_000, 700), said("word", "assistant", counted=True))
    assert THINKING not in window.by_source
    assert window.provenance[REPLY] == "measured"


@pytest.mark.parametrize(
    ("between", "next_tokens", "held"),
    [
        # A person wrote, and the next request is smaller by what was thought.
        ([said("And now?")], 10_250, 0),
        # Models that keep it, as the count shows.
        ([said("And now?")], 13_250, 3_000),
        # Within a turn the provider drops nothing: fewer tokens have another reason.
        ([said("ok", "tool:Bash")], 10_250, 3_000),
        ([said("Reminder.", by_host=True)], 10_250, 3_000),
    ],
)
def test_thinking_of_earlier_turns_is_held_as_long_as_the_count_holds_it(
    between, next_tokens, held
):
    """No line says whether a provider drops it, which differs by model and by idle time."""
    window, summary = window_of(
        report("a", 10_000, 3_200, 3_000), *between, report("b", next_tokens, 50, 0)
    )
    assert window.by_source.get(THINKING, 0) == held
    assert sum(window.by_source.values()) == max(next_tokens + 50, 3_000 + 250)
    assert summary.tokens_by_source[THINKING] == 3_000, "it has entered the window"
    assert summary.measured_by_source[THINKING] == 3_000


def test_an_image_has_the_tokens_of_its_provider_s_formula():
    """Until the next count, as any text; by the file that a call named."""
    window, summary = window_of(
        report("a", 10_000, 100), said("ok", "tool:Read"), Image(PNG, 1.0, None, "/a.png")
    )
    assert window.by_source[IMAGES] == window.by_file["/a.png"] == IMAGE_TOKENS
    assert window.provenance[IMAGES] == "estimated"
    assert sum(window.by_source.values()) == 10_100 + IMAGE_TOKENS + 1
    assert summary.tokens_by_file == {"/a.png": IMAGE_TOKENS}


@pytest.mark.parametrize(
    ("image", "model"),
    [(Image("", 1.0, None, "/a.pdf"), MODEL), (Image(PNG, 1.0), "qwen3-vl-plus")],
)
def test_an_image_of_unknown_size_is_what_the_next_count_has_more(image, model):
    """Such as a document, and of a model whose formula is not known."""
    first, text = report("a", 10_000, 100, model=model), "word " * 200
    before, _ = window_of(first, said(text), image, model=model)
    assert IMAGES not in before.by_source
    window, _ = window_of(first, said(text), image, report("b", 12_500, model=model), model=model)
    grown = 12_500 - 10_100 - before.by_source["user"]
    assert window.by_source[IMAGES] == pytest.approx(grown)
    assert window.by_source[UNRECORDED] == pytest.approx(10_000)
    files = {} if image.file is None else {image.file: pytest.approx(grown)}
    assert window.by_file == files


def test_an_image_in_the_first_prompt_is_not_what_stood_before_it():
    """Else it would be listed as what to throw out."""
    _, alone = window_of(said("Look."), report("a", 10_000))
    _, summary = window_of(said("Look."), Image(PNG, 1.0), report("a", 10_000 + IMAGE_TOKENS))
    assert summary.standing == alone.standing


def test_estimates_that_are_above_the_count_are_scaled_to_it():
    """What the provider counted stays; the sum is the reading."""
    window, summary = window_of(
        report("a", 10_000, 3_000, 2_000), said("word " * 10_000, "tool:Read"),
        report("b", 14_000, 100, 0),
    )  # fmt: skip
    assert sum(window.by_source.values()) == pytest.approx(14_100)
    assert (window.by_source[THINKING], window.by_source[REPLY]) == (2_000, 1_100)
    assert sum(summary.tokens_by_source.values()) == pytest.approx(14_100)


RECORDED = {
    "hooks/codex-0.169.0/plain/rollout-*.jsonl": ("codex", 42),
    "hooks/qwen-0.15.10/plain/9f1e197f-*.jsonl": ("qwen", 30),
    "hooks/qwen-0.24.4/plain/0e190c8e-*.jsonl": ("qwen", 30),
    "hooks/gemini-0.61.0/plain/chats/session-*.jsonl": ("gemini", 0),
    "copilot/plain_then_continue/events.jsonl": ("copilot", 30),
    "images/claude_code.jsonl": ("claude-code", 1_000),
}
"""Of real clients: what they thought by the counts that they wrote down."""


@pytest.mark.parametrize(("name", "expected"), RECORDED.items())
def test_the_parts_of_recorded_sessions_add_up(name, expected):
    """To the last count of the provider, with the thinking that it states."""
    host, thinking = expected
    (path,) = DATA.glob(name)
    summarizer = Summarizer(TranscriptSummary(host, "s"))
    with path.open("rb") as file:
        for record in find_host(host).transcripts.read_transcript(file):
            summarizer.feed(record)
    window, last_tokens = summarizer.present_window(), summarizer.finish().last_tokens
    assert window.by_source.get(THINKING, 0) == thinking
    assert window.provenance.get(THINKING, "measured") == "measured"
    assert sum(window.by_source.values()) == pytest.approx(last_tokens)


RECORDS = st.one_of(
    st.builds(
        lambda tokens, output, thinking: report(None, tokens, output, thinking),
        st.integers(1, 50_000), st.integers(0, 5_000), st.none() | st.integers(0, 6_000),
    ),
    st.builds(
        lambda size, source, counted: said("word " * size, source, counted=counted),
        st.integers(1, 3_000), st.sampled_from(["user", "tool:Bash", "skills", THINKING]),
        st.booleans(),
    ),
    st.sampled_from([Image(PNG, 1.0), Image("", 1.0)]),
)  # fmt: skip


@given(st.lists(RECORDS, max_size=12))
def test_the_parts_add_up_to_the_reading(records):
    """Whatever comes, no part is negative, and none is measured beyond what it is."""
    summarizer = Summarizer(TranscriptSummary("claude-code", "s", model=MODEL))
    for record in records:
        summarizer.feed(record)
        window = summarizer.present_window()
        assert min(window.by_source.values(), default=0) >= 0
        for source, tokens in window.measured.items():
            assert tokens <= window.by_source[source] + 1e-6
        if isinstance(record, Report):
            held = record.tokens + record.output_tokens
            total = sum(window.by_source.values())
            assert total == pytest.approx(max(held, sum(window.measured.values())), abs=1e-3)


def test_a_tool_that_gives_nothing_but_an_image_was_called():
    """Else its server would be listed as never used."""
    call = {"type": "tool_use", "id": "t1", "name": "mcp__browser__screenshot", "input": {}}
    image = {"type": "image", "source": {"type": "base64", "data": PNG}}
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": [image]}]
    lines = [reply("a", {"input_tokens": 10_000}, [call]), prompt(result)]
    records = find_host("claude-code").transcripts.read_transcript(map(line, lines))
    assert window_of(*records)[1].tools == ["mcp__browser__screenshot"]


def test_a_recorded_image_is_in_no_text_of_a_report():
    """Claude Code writes it twice into one line."""
    source = {"type": "base64", "media_type": "image/png", "data": PNG * 2_000}
    result = [{"type": "tool_result", "tool_use_id": "t1",
               "content": [{"type": "image", "source": source}]}]  # fmt: skip
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "/a.png"}}
    lines = [
        prompt("Look."), reply("a", {"input_tokens": 10_000, "output_tokens": 30}, [call]),
        prompt(result, toolUseResult={"type": "image", "file": {"base64": PNG * 2_000}}),
    ]  # fmt: skip
    records = list(find_host("claude-code").transcripts.read_transcript(map(line, lines)))
    window, _ = window_of(*records)
    assert set(window.by_source) == {"user", REPLY, IMAGES, UNRECORDED}
    assert sum(window.by_source.values()) == pytest.approx(10_030 + IMAGE_TOKENS)
