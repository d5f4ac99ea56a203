"""The status line as the client runs it: the real process, on recorded and on broken input."""

import json
import subprocess
import sys
import time

import pytest
from helpers.hooked_session import LIMIT_TOKENS, MODEL, RECORDED, HookedSession

from ultramon.hosts.claude_code import statusline
from ultramon.hosts.status_line.program import CHAINED_SECONDS, write_line
from ultramon.system.timestamps import format_time

OTHER = {"type": "command", "command": "cat >/dev/null; echo other line"}


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def show(session, payload, **environ):
    """Run the status line on a payload; return what it printed."""
    ran = subprocess.run(
        [sys.executable, "-I", "-S", statusline.__file__, str(session.installed)],
        input=payload if isinstance(payload, bytes) else json.dumps(payload).encode(),
        capture_output=True,
        env={"NO_COLOR": "1"} | session.environ | environ,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    return ran.stdout.decode()


def payload(session, tokens=0, model=MODEL, window=LIMIT_TOKENS):
    usage = {"input_tokens": tokens, "output_tokens": 7} if tokens else None
    return {
        "session_id": session.session_id,
        "transcript_path": str(session.transcript),
        "cwd": str(session.project),
        "model": {"id": model},
        "context_window": {"context_window_size": window, "current_usage": usage},
    }


def test_the_recorded_calls_show_what_the_client_showed(session):
    """Null at the start and zeros after a compaction are no reading; the rest agrees to 1 %."""
    lines = (RECORDED / "statusline.jsonl").read_text().splitlines()
    for number, line in enumerate(lines):
        told = json.loads(line)["stdin"]
        # One session a call: what was recorded is what the client said of that one moment.
        session.session_id = told["session_id"] = f"s{number}"
        shown = show(session, told)
        used = told["context_window"]["used_percentage"]
        context = shown.partition(" · host $")[0].rstrip("\n")
        assert (f" {used}% " in context) if used else context == "ctx –", (used, shown)


def test_the_window_it_tells_holds_for_headless_sessions_of_the_model_too(session):
    """Nothing else knows what the client works with; the table may be wrong."""
    show(session, payload(session, 20_000, window=123_000))
    other = HookedSession(session.path, "headless")
    other.tool(50_000)
    record = other.record()
    assert (record.context_limit, record.limit_source) == (123_000, "host")


def test_a_window_that_comes_back_warns_nobody_twice(session):
    """Disproved by 210,000 tokens, stated by the client: what the agent was warned of counts."""
    assert "80 %" in session.tool(160_000).text
    assert session.tool(210_000).text == ""
    assert (session.record().threshold_status, session.record().action) == (None, "none")
    show(session, payload(session, window=250_000))
    assert session.record().threshold_status == "critical"
    assert session.tool(211_000).text == ""
    assert len(session.events("context_threshold_reached")) == 1


def test_the_transcript_is_believed_before_the_clients_count(session):
    """The client's count bears no time, and may be that of a window that is gone."""
    session.reply(60_000)
    assert "30% 60k/200k" in show(session, payload(session, 190_000))


def test_without_a_transcript_the_clients_own_count_is_taken(session):
    assert "10% 20k/200k" in show(session, payload(session, 20_000))
    assert "70% 140k/200k" in show(session, payload(session, 140_000))
    assert session.record().threshold_status == "warning"


def test_nothing_new_writes_nothing(session):
    """The client calls it again and again."""
    session.reply(60_000)
    show(session, payload(session))
    seq = session.record().seq
    show(session, payload(session))
    assert session.record().seq == seq


def test_a_crossing_that_only_the_status_line_saw_is_an_event_and_told_by_the_next_hook(session):
    session.reply(140_000, "toolu_1")
    show(session, payload(session))
    assert len(session.events("context_threshold_reached")) == 1
    told = session.call("PostToolUse", tool_name="Bash", tool_use_id="toolu_1")
    assert "140,000 of 200,000 tokens (70 %)" in told.text
    assert len(session.events("context_threshold_reached")) == 1


@pytest.mark.parametrize(
    ("show_what", "expected"),
    [
        ("own", ["ctx ███░░░░░░░ 30% 60k/200k"]),
        ("chained", ["other line"]),
        ("both", ["other line", "ctx ███░░░░░░░ 30% 60k/200k"]),
        ("none", []),
    ],
)
def test_another_status_line_goes_on_as_chosen(session, show_what, expected):
    session.freeze(status_line_show=show_what, status_line_chained=OTHER)
    session.reply(60_000)
    assert show(session, payload(session)).splitlines() == expected


def test_the_chained_command_gets_the_same_input(session):
    session.freeze(
        status_line_show="chained", status_line_chained={"type": "command", "command": "cat"}
    )
    told = payload(session, 20_000)
    assert json.loads(show(session, told)) == told


def test_a_chained_script_that_runs_ours_does_not_go_round(session):
    ours = f"{sys.executable} -I -S {statusline.__file__} {session.installed}; echo end"
    session.freeze(
        status_line_show="chained", status_line_chained={"type": "command", "command": ours}
    )
    assert show(session, payload(session, 20_000)) == "end\n"


def test_a_chained_command_that_hangs_is_ended_and_noted(session):
    """It waits for something that never comes; ours is shown all the same."""
    assert CHAINED_SECONDS <= 5
    hangs = {"type": "command", "command": "tail -f /dev/null"}
    session.freeze(status_line_show="both", status_line_chained=hangs)
    session.reply(60_000)
    assert "30% 60k/200k" in show(session, payload(session))
    assert session.failures() == ["the chained status line is too slow"]


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"session_id": "../../evil"}',
        b'{"session_id": 7}',
        b'{"session_id":"s","context_window":{"current_usage":{"input_tokens":-1}}}',
        b'{"session_id":"s","context_window":{"current_usage":{"input_tokens":1e9}}}',
        b'{"session_id":"s","context_window":7,"model":[]}',
        b'{"session_id":"s","model":{"id":"m"},"context_window":{"context_window_size":-5}}',
    ],
)
def test_broken_input_shows_no_wrong_number(session, broken):
    assert "%" not in show(session, broken)
    assert not (session.path / "evil").exists()


def test_disabled_still_shows_the_other_tools_line(session):
    session.freeze(status_line_show="both", status_line_chained=OTHER)
    told = payload(session, 20_000)
    assert show(session, told, ULTRAMON_DISABLED="1") == "other line\n"
    assert session.ids() == []


def test_the_line_says_what_is_asked_and_how_far_it_is_to_the_next_rung(session):
    for tokens in (100_000, 110_000, 120_000, 132_000):
        session.tool(tokens)
    record = session.record()
    assert write_line(record, color=False) == (
        "ctx ███████░░░ 66% 132k/200k · warning 65%+ · next turn: critical 75%"
    )
    assert "\x1b[33m███████░░░ 66%\x1b[0m" in write_line(record, color=True)


def test_the_line_says_that_the_next_turn_may_reach_a_rung(session):
    """Nobody counts to nought."""
    for tokens in (100_000, 120_000, 148_900):
        session.tool(tokens)
    assert write_line(session.record(), color=False).endswith(" · next turn: critical 75%")


def test_an_unknown_limit_shows_tokens_only(session):
    session.tool(20_000)
    record = session.record()
    record.context_limit = record.usage_ratio = None
    assert write_line(record, color=False) == "ctx 20k tokens"


def interruption(text="[Request interrupted by user for tool use]"):
    return {
        "type": "user",
        "timestamp": format_time(time.time()),
        "sessionId": "session",
        "isSidechain": False,
        "message": {"role": "user", "content": [{"type": "text", "text": text}]},
    }


def test_an_interruption_ends_the_tool_though_no_hook_is_called(session):
    """The client redraws its line after Escape, and that is all."""
    session.reply(60_000, "toolu_1")
    session.call("PreToolUse", tool_name="Bash", tool_use_id="toolu_1")
    show(session, payload(session))
    assert session.record().phase == "in_tool"
    session.write(interruption())
    show(session, payload(session))
    assert session.record().phase == "waiting"


def test_a_line_drawn_before_the_transcript_has_the_interruption_hides_it_from_none(session):
    """The client redraws at once and writes its transcript a moment later."""
    session.call("PreToolUse", tool_name="Bash", tool_use_id="toolu_1")
    interrupted = interruption()
    session.reply(60_000, "toolu_1")
    show(session, payload(session))
    record = session.record()
    assert (record.phase, record.estimated_tokens) == ("in_tool", 60_000)
    session.write(interrupted)
    show(session, payload(session))
    assert session.record().phase == "waiting"


def test_a_refused_request_ends_the_turn_though_no_hook_is_called(session):
    """The client says that the prompt is too long, redraws its line, and waits."""
    session.tool(176_000)
    session.refusal()
    show(session, payload(session))
    assert session.record().phase == "waiting"


def test_an_interruption_of_an_earlier_turn_ends_nothing(session):
    session.reply(60_000, "toolu_1")
    session.write(interruption())
    session.call("UserPromptSubmit", prompt="go on")
    show(session, payload(session))
    assert session.record().phase == "working"


@pytest.mark.parametrize("source", ["startup", "clear"])
def test_a_line_drawn_before_the_start_is_told_begins_no_second_epoch(session, source):
    """The client does not wait for one before the other; nothing is measured that could end."""
    show(session, payload(session))
    session.call("SessionStart", source=source)
    record = session.record()
    assert (record.epoch, record.phase, record.usage_ratio) == (1, "waiting", None)


def test_text_that_only_speaks_of_an_interruption_is_none(session):
    session.reply(60_000, "toolu_1")
    session.call("PreToolUse", tool_name="Bash", tool_use_id="toolu_1")
    session.write(interruption("what does [Request interrupted by user] mean?"))
    show(session, payload(session))
    assert session.record().phase == "in_tool"


def test_a_window_is_learnt_for_the_model_with_its_suffix(session):
    """The line's model may lack it, the transcript keeps it: both windows of a model are known."""
    session.reply(20_000, "toolu_1", model="claude-sonnet-4-5[1m]")
    session.call("PostToolUse", tool_name="Bash", tool_use_id="toolu_1")
    show(session, payload(session, window=1_000_000))
    other = HookedSession(session.path, "other")
    other.tool(20_000)
    assert session.record().context_limit == 1_000_000
    assert other.record().context_limit == 200_000


def test_it_stands_down_in_a_relay(session):
    """It shows nothing, runs no other line and stores nothing; the relay has no terminal anyway."""
    session.freeze(status_line_show="both", status_line_chained=OTHER)
    before = sorted(session.state.iterdir())
    told = payload(session, 100_000)
    assert show(session, told, ULTRAMON_RELAY="review") == ""
    assert sorted(session.state.iterdir()) == before
    assert "50%" in show(session, told)
