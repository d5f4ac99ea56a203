"""What the real Codex told its hooks, replayed in its order through the real hook process."""

import json

import pytest
from helpers.codex_session import RecordedRun

PLAIN = "01a20330-6723-72e3-ba49-0b404e343445"
COMPACT = "01a20330-66a9-7962-92ee-9efb7404527b"
CODEMODE = "01a20353-3944-7c52-97ef-49bc82cbe3fd"
RESUME = "01a20341-8f30-77d1-b22e-ec259569f883"
SUBAGENTS = "01a20330-9584-7a10-aff8-81fb9a155624"
SUBA = f"{SUBAGENTS}.01a20330-9cf3-71a1-9dae-1a1f63ef3963"
SUBB = f"{SUBAGENTS}.01a20330-a197-7363-a42e-92d73e9417ac"


def replayed(run):
    """Replay a run; yield after each call the payload, the answer and the state of its agent."""
    while len(run.answers) < len(run.calls):
        payload, answer = run.step()
        agent_id, sub = payload["session_id"], payload.get("agent_id")
        yield payload, answer, run.record(f"{agent_id}.{sub}" if sub else agent_id)


def readings(run):
    """The readings of each agent, in order, and the calls of each answer with a text."""
    seen, told = {}, {}
    for payload, answer, record in replayed(run):
        found = seen.setdefault(record.agent_id, [])
        value = (record.epoch, record.estimated_tokens)
        if record.measured_at is not None and value not in found:
            found.append(value)
        if answer.text:
            told.setdefault(record.agent_id, []).append((payload["hook_event_name"], answer.text))
    assert run.failures() == []
    return seen, told


def in_epoch(number, *tokens):
    return [(number, one) for one in tokens]


def test_a_plain_run(tmp_path):
    """Every reading is that of the reply that made the call; each rung is told once, to the hook
    whose answer reaches the next request."""
    run = RecordedRun(tmp_path, "plain")
    seen, told = readings(run)
    assert seen == {PLAIN: in_epoch(1, 21_000, 64_000, 118_000, 171_000, 205_000)}
    ((event, text),) = told[PLAIN]
    assert event == "PostToolUse" and "66 %" in text and "258,400" in text
    record = run.record(PLAIN)
    assert (record.host, record.model, record.context_limit) == ("codex", "gpt-5.2", 258_400)
    assert (record.active, record.outcome) == (False, "completed")
    assert record.label == "project: [[MAIN]] do the work"
    (level, critical) = run.events("context_threshold_reached")
    assert (level["level"], critical["level"]) == ("warning", "critical")


def test_an_answer_has_the_known_members_only(tmp_path):
    """One more, and the client drops the whole answer."""
    run = RecordedRun(tmp_path, "plain")
    (answer,) = [json.loads(a.stdout) for _, a, _ in replayed(run) if a.stdout]
    assert answer.keys() == {"hookSpecificOutput"}
    assert answer["hookSpecificOutput"].keys() == {"hookEventName", "additionalContext"}
    assert answer["hookSpecificOutput"]["hookEventName"] == "PostToolUse"


def test_a_compaction_begins_one_epoch_and_the_summary_is_no_reading(tmp_path):
    """Of PostCompact and SessionStart one counts; 151,500 was the request for the summary."""
    run = RecordedRun(tmp_path, "compact")
    seen, told = readings(run)
    assert seen[COMPACT] == [
        *in_epoch(1, 30_000, 96_000, 151_000),
        *in_epoch(2, 12_000, 40_000, 52_000),
    ]
    (warning, compacted) = told[COMPACT]
    assert warning[0] == "PostToolUse" and "190,000" in warning[1]
    assert compacted[0] == "SessionStart" and compacted[1].startswith("Context window compacted")
    assert len(run.events("context_epoch_started")) == 1


def test_in_code_mode_a_reply_with_two_calls_is_told_once(tmp_path):
    """Their ids are nowhere in the rollout, and nothing waits for them."""
    run = RecordedRun(tmp_path, "codemode")
    seen, told = readings(run)
    assert seen[CODEMODE] == in_epoch(1, 24_000, 139_000, 171_000)
    assert told == {}
    assert run.record(CODEMODE).threshold_status == "warning"


def test_a_resumed_session_is_the_same_agent(tmp_path):
    """Same state, same epoch; the process is another one, and what was last read still holds."""
    run = RecordedRun(tmp_path, "resume")
    seen, told = readings(run)
    assert seen[RESUME] == in_epoch(1, 18_000, 77_000, 99_000, 143_000)
    record = run.record(RESUME)
    assert (record.generation, record.epoch, run.ids()) == (2, 1, [RESUME])
    assert told == {}


def test_subagents_have_readings_of_their_own(tmp_path):
    """Each by its own rollout, told apart from parent and sibling, and told nothing of theirs."""
    run = RecordedRun(tmp_path, "subagents")
    seen, told = readings(run)
    assert seen == {
        SUBAGENTS: in_epoch(1, 31_000, 42_000, 55_000, 61_000),
        SUBA: in_epoch(1, 7_000, 140_000, 188_000),
        SUBB: in_epoch(1, 9_000, 23_000),
    }
    assert told == {}
    for agent_id in (SUBA, SUBB):
        record = run.record(agent_id)
        assert (record.parent_id, record.active, record.outcome) == (SUBAGENTS, False, "completed")


@pytest.mark.parametrize("run", ["plain", "compact", "codemode", "resume", "subagents"])
def test_every_call_says_what_it_does_in_the_answer_or_nothing(tmp_path, run):
    """Replayed without a rollout: no call fails, none is answered but with JSON."""
    replay = RecordedRun(tmp_path, run)
    for call in replay.calls:
        replay.run(call["stdin"])
    assert all("no transcript" in problem for problem in replay.failures())
