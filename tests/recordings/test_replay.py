import pytest
from helpers import ROOT
from helpers.gemini_session import RECORDED as GEMINI
from helpers.program import CAPTURES, run
from helpers.qwen_session import NEW, plant_run
from helpers.recordings import timeline, written
from helpers.transcript_lines import prompt, reply
from hypothesis import given
from hypothesis import strategies as st

from ultramon import ConfigurationError, Ladder, Rung
from ultramon.recordings.recordings import find_recordings
from ultramon.recordings.replay import ReplayClock, replay
from ultramon.recordings.series import Series
from ultramon.recordings.timeline import MAX_EVENTS, MAX_POINTS

CLAUDE = CAPTURES / "claude-code-2.1.330"
CODEX = CAPTURES / "codex-0.169.0"
SESSION = ROOT / "tests" / "data" / "replay" / "session.jsonl"


def usage(tokens, output=0):
    """What a provider counted."""
    return {"input_tokens": 10, "cache_read_input_tokens": tokens - 10, "output_tokens": output}


# Every number below was read off the recording itself: reports are input + cache read + cache
# creation of a message, once per message id.
RECORDED = {
    "r1 main": (
        CLAUDE / "transcript_r1_main.jsonl",
        "6f6361b3-1922-4905-86fa-32179dd59161",
        {"reports": 5, "peak": 150_516, "epochs": 1, "limit": 200_000},
        [("warning", 140_515), ("critical", 150_516)],
        [],
    ),
    "r1 subagent": (
        CLAUDE / "transcript_r1_subagent.jsonl",
        "6f6361b3-1922-4905-86fa-32179dd59161.a1e58397a453a09b2",
        {"reports": 2, "peak": 170_311, "epochs": 1, "limit": 200_000},
        [("critical", 170_311)],
        [],
    ),
    "r3 main": (
        CLAUDE / "transcript_r3_main.jsonl",
        "e7f5a154-f9f8-4d38-b75f-34b022a61794",
        {"reports": 5, "peak": 196_014, "epochs": 3, "limit": 200_000},
        [("critical", 196_014)],
        [("boundary", "auto", 2_760), ("boundary", "auto", 2_761)],
    ),
    "r6 main": (
        CLAUDE / "transcript_r6_3af70d39_main.jsonl",
        "3af70d39-b23a-4db8-9937-376e8b93056a",
        {"reports": 5, "peak": 150_516, "epochs": 3, "limit": 200_000},
        [("warning", 140_515), ("critical", 150_516)],
        [("fall", None, 12_718), ("boundary", "manual", 3_073)],
    ),
    "r6 subagent": (
        CLAUDE / "transcript_r6_subagent.jsonl",
        "3af70d39-b23a-4db8-9937-376e8b93056a.af6998b0130708aa9",
        {"reports": 2, "peak": 170_311, "epochs": 1, "limit": 200_000},
        [("critical", 170_311)],
        [],
    ),
    "codex": (
        CODEX / "rollout_c1_user.jsonl",
        "01a1ffcf-40b5-7480-93ab-5556befda115",
        {"reports": 3, "peak": 160_000, "epochs": 1, "limit": 258_400},
        [],
        [],
    ),
    "codex compaction": (
        CODEX / "rollout_compact.jsonl",
        "01a20330-66a9-7962-92ee-9efb7404527b",
        {"reports": 6, "peak": 151_000, "epochs": 2, "limit": 190_000},
        [("critical", 151_000)],
        [("boundary", None, None)],
    ),
    "codex overflow": (
        CODEX / "rollout_overflow.jsonl",
        "01a203fe-b01a-7ed2-b6af-af8897ba1471",
        {"reports": 2, "peak": 240_000, "epochs": 1, "limit": 258_400},
        [("critical", 240_000)],
        [],
    ),
}
GEMINI_RUNS = {
    "plain": [22_000, 130_000, 301_000, 470_000, 512_000],
    "compress": [15_000, 31_000, 45_000, 7_300, 9_100],
    "resume": [18_000, 77_000, 199_000, 243_000],
    "subagent": [33_000, 52_000, 61_000],
}
"""Of each run the readings of its session, as the scripted model served them."""


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_session_replays_to_its_own_numbers(name):
    """Peak, limit, epochs, rungs and compactions are those of the recording."""
    path, agent_id, facts, crossings, compactions = RECORDED[name]
    shown = timeline(path)
    assert shown.id == agent_id
    # The table knows the windows of one client, the rollouts of the other name them.
    source = "observed" if name.startswith("codex") else "model"
    assert (shown.limit_source, shown.peak_source) == (source, "reported")
    assert facts == {
        "reports": shown.reports,
        "peak": shown.peak_tokens,
        "epochs": shown.epochs,
        "limit": shown.context_limit,
    }
    assert [(one.level, one.tokens) for one in shown.crossings] == crossings
    assert [(one.reason, one.trigger, one.tokens_after) for one in shown.compactions] == compactions
    assert shown.broken_lines == 0
    assert shown.peak_tokens in shown.points


@pytest.mark.parametrize("run", GEMINI_RUNS)
def test_a_recorded_run_of_gemini_replays_to_its_own_numbers(run):
    """The window is that of the model's table; only compressions begin epochs."""
    path = max((GEMINI / run / "chats").glob("*.jsonl"), key=lambda file: file.stat().st_size)
    session, *_ = find_recordings([str(path)]).recordings
    shown, tokens = replay(session), GEMINI_RUNS[run]
    assert (shown.reports, shown.peak_tokens) == (len(tokens), max(tokens))
    assert set(tokens) <= set(shown.points)
    assert shown.epochs == (3 if run == "compress" else 1)
    assert [one.reason for one in shown.compactions] == ["boundary"] * (shown.epochs - 1)
    assert (shown.context_limit, shown.broken_lines) == (1_048_576, 0)


def test_with_a_session_of_gemini_comes_its_subagent():
    """It is named after its session, which only the folder of its file says."""
    (path,) = (GEMINI / "subagent" / "chats").glob("*.jsonl")
    main, sub = find_recordings([str(path)]).recordings
    assert sub.id == f"{main.id}.3358df89-c3ac-4a35-91cb-db56b63eb22a"
    assert timeline(sub.paths[0]).peak_tokens == 444_000


def test_with_a_session_of_qwen_code_come_its_subagents(tmp_path):
    """They lie in a folder beside that of all sessions."""
    path = plant_run(tmp_path, NEW, "subagents")
    found = [replay(one) for one in find_recordings([str(path)]).recordings]
    assert [shown.peak_tokens for shown in found] == [61_000, 114_000, 8_000]


def test_a_session_without_replies_has_only_an_estimate():
    """The cleared session of r6 holds no report: the peak is the highest estimate, and says so."""
    shown = timeline(CLAUDE / "transcript_r6_7d20f82f_main.jsonl")
    assert (shown.reports, shown.peak_source, shown.epochs) == (0, "estimated", 1)
    assert 0 < shown.peak_tokens < 1_000
    assert (shown.context_limit, shown.limit_source) == (200_000, "default")
    assert "unrecorded" not in shown.by_source


def test_a_fall_is_dated_between_the_reports_that_show_it():
    """The fall of r6 goes from the last high report, with what came after it, to the low one."""
    fall, boundary = timeline(CLAUDE / "transcript_r6_3af70d39_main.jsonl").compactions
    assert fall.tokens_before in range(150_516, 151_000)
    assert (fall.tokens_after, boundary.tokens_before) == (12_718, 12_718)
    assert f"{fall.at:%H:%M:%S}" == "20:30:26"


def test_crossings_carry_the_recordings_times_and_the_runway():
    """r1 warned at the third report, when perhaps no further turn fitted under the next rung."""
    crossing, _ = timeline(CLAUDE / "transcript_r1_main.jsonl").crossings
    assert crossing.at.isoformat() == "2026-11-21T20:27:43.509000+00:00"
    assert (crossing.usage_ratio, crossing.tokens_source) == (0.702575, "reported")
    assert (crossing.previous_level, crossing.next_rung, crossing.turns_low) == (
        "normal",
        "critical",
        0,
    )


def test_a_recording_is_judged_by_the_rungs_of_its_host():
    """Those of coding agents lie at 65 and 75 %; where one is moved the other stays."""
    path = RECORDED["r1 main"][0]

    def rungs(path, **config):
        return [one.usage_ratio for one in timeline(path, **config).rungs]

    assert rungs(path) == [0.65, 0.75]
    assert timeline(path).rungs[0].tokens == 129_000
    assert rungs(path, critical_threshold=0.9) == [0.65, 0.9]
    assert rungs(path, ladder=Ladder([Rung("half", 0.5)])) == [0.5]
    assert rungs(RECORDED["codex"][0]) == [0.65, 0.75]
    assert rungs(SESSION) == [0.7, 0.85]


def test_an_overflow_is_shown():
    """The last reading before it, its time, and in the words of the command."""
    path = RECORDED["codex overflow"][0]
    shown = timeline(path)
    (overflow,) = shown.overflows
    assert (shown.overflow_count, overflow.at.isoformat()) == (
        1,
        "2026-11-22T16:02:33.982000+00:00",
    )
    assert overflow.tokens in range(240_000, 241_000)
    text = run("replay", path, COLUMNS="120").stdout
    assert "; 0 compactions, 1 overflow" in text
    assert "the next request was refused as too large" in text


def test_what_filled_the_window_adds_up():
    """In r3 nearly everything is the system prompt and tools, which no transcript holds."""
    shown = timeline(CLAUDE / "transcript_r3_main.jsonl").by_source
    assert list(shown)[:2] == ["unrecorded", "summary"]
    assert shown["summary"] == 2_760 + 2_761
    assert shown["reply"] == 50 + 40 + 40 + 40 + 20  # the last one is in the window too
    # What stood in the three windows when they ended.
    assert abs(sum(shown.values()) - (121_104 + 196_104 + 9_516)) < 400


def test_json_lines_are_replayed_with_their_broken_lines_counted():
    """Both ways of counting caches, all spellings of time, falls and broken lines."""
    shown = timeline(SESSION)
    assert (shown.id, shown.kind, shown.model) == ("session", "json-lines", "claude-sonnet-4-5")
    assert (shown.reports, shown.broken_lines) == (6, 3)
    assert [(one.level, one.tokens) for one in shown.crossings] == [
        ("warning", 150_000),
        ("critical", 175_000),
    ]
    # 68,000 + 40,000 + 30,000 tokens over three turns: one more of 40,000 passes 170,000.
    assert shown.crossings[0].turns_low == 0
    assert [(one.reason, one.tokens_after) for one in shown.compactions] == [("fall", 40_000)]
    assert f"{shown.started_at:%H:%M:%S} {shown.ended_at:%H:%M:%S}" == "09:00:00 09:05:10"
    assert set(shown.by_source) == {"unrecorded", "user", "tool:read", "reply"}


def test_thresholds_limit_and_model_can_be_chosen():
    """The configuration outranks the recording."""
    path = RECORDED["r3 main"][0]
    chosen = timeline(
        path, context_window_tokens=500_000, warning_threshold=0.2, critical_threshold=0.3
    )
    assert (chosen.context_limit, chosen.limit_source) == (500_000, "explicit")
    assert [one.level for one in chosen.crossings] == ["warning", "critical"]
    assert timeline(path, context_limit_tokens=100_000).context_limit == 100_000
    assert timeline(path, model="claude-sonnet-4-5[1m]").context_limit == 1_000_000


def test_a_model_that_nobody_knows_has_the_window_of_its_client(tmp_path):
    """The client takes a million for it; that is labelled as the client's number."""
    path = written(
        tmp_path, "s.jsonl", reply("m1", usage(150_000), requestedModel="nobody-knows-this-one")
    )
    shown = timeline(path)
    assert (shown.context_limit, shown.limit_source) == (1_000_000, "host")


def test_a_model_that_changes_brings_its_own_window(tmp_path):
    """The window follows the model as it was asked for, with its suffix."""
    path = written(
        tmp_path,
        "s.jsonl",
        reply("m1", usage(150_000), requestedModel="claude-sonnet-4-5"),
        reply("m2", usage(160_000), requestedModel="claude-sonnet-4-5[1m]"),
    )
    shown = timeline(path)
    assert [(one.level, one.context_limit) for one in shown.crossings] == [("critical", 200_000)]
    assert (shown.context_limit, shown.model) == (1_000_000, "claude-sonnet-4-5[1m]")


def test_more_than_the_window_makes_the_limit_suspect(tmp_path):
    """A model cannot hold 300,000 tokens in 200,000: no level is made up from that."""
    path = written(
        tmp_path, "s.jsonl", reply("m1", usage(300_000), requestedModel="claude-opus-4-6")
    )
    shown = timeline(path)
    assert shown.limit_suspect
    assert "suspect" in run("replay", path).stdout


def test_one_message_of_many_lines_is_one_report(tmp_path):
    """Lines repeat a message's usage; a larger one at its end corrects it before it is taken."""
    path = written(
        tmp_path,
        "s.jsonl",
        reply("m1", usage(20_000, 1), [{"type": "text", "text": "a"}]),
        reply("m1", usage(20_000, 1), [{"type": "text", "text": "b"}]),
        reply("m1", usage(20_000, 700), [{"type": "tool_use", "id": "t", "name": "Bash"}]),
        prompt([{"type": "tool_result", "tool_use_id": "t", "content": "x" * 400}]),
    )
    shown = timeline(path)
    assert shown.reports == 1
    assert shown.by_source["reply"] == 700
    assert "assistant" not in shown.by_source


def test_a_correction_after_other_text_shows_in_the_peak_only(tmp_path):
    """Text that followed the response stays counted."""
    path = written(
        tmp_path,
        "s.jsonl",
        reply("m1", usage(20_000, 1)),
        prompt("x" * 4_000),
        reply("m1", usage(21_000, 1)),
    )
    shown = timeline(path)
    assert (shown.reports, shown.peak_tokens) == (1, 21_000)
    assert shown.by_source["user"] > 500
    assert shown.points[-1] > 20_500


def test_the_order_of_lines_outranks_their_times(tmp_path):
    """Clocks that go back, and times that are none, change no reading."""
    times = ["2026-11-21T10:00:00Z", "2020-01-01T00:00:00Z", "never", "9999-12-31T23:59:59-10:00"]
    path = written(
        tmp_path,
        "s.jsonl",
        *(
            reply(f"m{number}", usage(20_000 * number + 50_000), timestamp=at)
            for number, at in enumerate(times)
        ),
    )
    shown = timeline(path)
    assert shown.peak_tokens == 110_000
    assert shown.points == (50_000, 70_000, 90_000, 110_000)
    assert shown.started_at == shown.ended_at


def test_a_recording_without_times_has_positions(tmp_path):
    """Nothing is dated that has no date."""
    path = tmp_path / "read.jsonl"
    path.write_text('{"text": "' + "word " * 4_000 + '"}\n')
    shown = timeline(path, context_limit_tokens=5_000)
    assert (shown.started_at, shown.crossings[0].at, shown.crossings[0].position) == (None, None, 0)
    assert "reading 1" in run("replay", path, "--limit", "5000").stdout


def test_hostile_names_stay_inside_the_recording(tmp_path):
    """Ids that name no file, endless models and sources, and escapes are only shown."""
    path = written(
        tmp_path,
        "s.jsonl",
        prompt("Go", sessionId="../../etc/\x1b]0;x\x07"),
        reply(
            "m1",
            usage(20_000),
            [{"type": "tool_use", "id": "t", "name": "N\x1b[31m" * 100_000}],
            sessionId="../../etc/\x1b]0;x\x07",
            requestedModel="m" * 2_000_000,
        ),
        prompt(
            [{"type": "tool_result", "tool_use_id": "t", "content": "text " * 500}],
            sessionId="../../etc/\x1b]0;x\x07",
        ),
    )
    done = run("replay", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(r"../../etc/\x1b]0;x\x07")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 1_000


def test_the_reserve_of_a_window_is_checked():
    """A configuration that leaves nothing of a recorded model's window is refused."""
    with pytest.raises(ConfigurationError, match="reserved_output_tokens"):
        timeline(RECORDED["r3 main"][0], reserved_output_tokens=500_000)


def test_events_beyond_a_thousand_are_counted_only(tmp_path):
    """A recording that does nothing but cross rungs cannot fill memory."""
    entries = [
        {"usage": usage(tokens)} for _ in range(MAX_EVENTS + 20) for tokens in (20_000, 190_000)
    ]
    shown = timeline(written(tmp_path, "s.jsonl", *entries))
    assert len(shown.crossings) == len(shown.compactions) == MAX_EVENTS
    assert shown.crossing_count == MAX_EVENTS + 20
    assert shown.compaction_count == MAX_EVENTS + 19
    assert len(shown.points) <= MAX_POINTS


def test_the_clock_follows_the_recording_and_never_goes_back():
    """Records without a time, from the past or beyond all calendars leave it where it is."""
    clock = ReplayClock()
    assert (clock.now(), clock.stamp()) == (0.0, None)
    for at, now in ((100.0, 100.0), (None, 100.0), (50.0, 100.0), (1e12, 100.0), (101.5, 101.5)):
        clock.advance_to(at)
        assert clock.now() == clock.monotonic() == now


@given(st.lists(st.integers(0, 10**9), max_size=3_000))
def test_a_series_is_bounded_and_keeps_the_highest_of_each_stretch(readings):
    """However many readings, at most 512 points; each is the highest of its readings."""
    series = Series(MAX_POINTS)
    for tokens in readings:
        series.add(tokens)
    assert series.count == len(readings)
    assert len(series.points) <= MAX_POINTS
    stretches = range(0, len(readings), series.stride)
    assert series.points == [max(readings[at : at + series.stride]) for at in stretches]
