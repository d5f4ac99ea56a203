"""Where a host compacts by itself is learned from what it did, and forgotten when it is wrong."""

from __future__ import annotations

import json

import pytest
from helpers import DATA
from helpers.hooked_session import HookedSession, tokens_at
from helpers.program import run

from ultramon.hosts.calls.invocation import COMPACTIONS_SUFFIX
from ultramon.hosts.calls.learned_compactions import LearnedCompactions
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.codex import last_reading as codex
from ultramon.hosts.qwen.host import QWEN
from ultramon.state.models import AgentState

VERSION = "2.1.40"
FULL = 150_000
WORDS = "likely compaction near 150,000, seen twice"


class Session(HookedSession):
    """A session whose transcript names the client's version, as the real one does."""

    version = VERSION

    def reply_line(self, tokens, *calls, **entry):
        return super().reply_line(tokens, *calls, **({"version": self.version} | entry))

    def fill(self, *tokens):
        """Call tools at so many tokens; return the last answer."""
        for one in tokens:
            answer = self.tool(one)
        return answer

    def compact(self, trigger="auto"):
        """The events of a compaction, in the order of the real client."""
        self.call("PreCompact", trigger=trigger)
        self.call("SessionStart", source="compact")
        self.call("PostCompact", trigger=trigger)
        self.boundary()

    def likely(self):
        """The rung of the forecast, or None."""
        forecast = self.record().forecast
        return None if forecast is None else forecast["rungs"].get("compaction")


@pytest.fixture
def session(tmp_path):
    """A session whose ladder is far above where its client compacts."""
    session = Session(tmp_path)
    session.freeze(ladder=session_ladder(0.9))
    return session


def session_ladder(ratio):
    from ultramon.context.ladder import FORCE_RETURN, Ladder, Rung

    return Ladder([Rung("full", ratio, action=FORCE_RETURN)])


def lives(session, *ends, trigger="auto"):
    """The windows of a session, each compacted at so many tokens."""
    for end in ends:
        session.fill(20_000, end)
        session.compact(trigger)


def test_after_two_that_agree_a_forecast_knows_the_next(session):
    """A rung with turns, the tokens and how often it was seen; percent and limit stay."""
    lives(session, FULL)
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is None
    session.fill(FULL + 1_000)
    session.compact()
    session.fill(20_000, 40_000, 60_000)
    likely = session.likely()
    assert (likely["tokens"], likely["seen"]) == (FULL + 1_000, 2)
    # Steps of 20,000: four end below it.
    assert (likely["turnsLow"], likely["turnsHigh"]) == (1, None)
    record = session.record()
    assert (record.context_limit, record.usage_ratio) == (200_000, 0.3)
    assert [one["name"] for one in record.limit_candidates] == ["window"]
    assert AgentState.from_record(record).forecast.rungs["compaction"].seen == 2


def test_another_session_of_the_same_client_knows_it_too(session, tmp_path):
    """Its runway, too, ends there; one of another version, model or window does not know it."""
    lives(session, FULL, FULL)
    others = {"same": {}, "version": {"version": "2.1.41"}, "model": {"model": "claude-opus-5-5"}}
    found = {}
    for name, entry in others.items():
        other = Session(tmp_path, session_id=name)
        for tokens in (20_000, 40_000, 60_000):
            other.reply(tokens, f"toolu_{tokens}", **entry)
            other.call("PostToolUse", tool_name="Bash", tool_use_id=f"toolu_{tokens}")
        found[name] = other.likely() is not None
    assert found == {"same": True, "version": False, "model": False}


def test_the_warning_names_it(session):
    """Before the next rung, and above the last one in the place of the limit."""
    session.freeze(ladder=session_ladder(0.3))
    lives(session, FULL, FULL)
    text = session.fill(20_000, 40_000, 60_000).text
    assert f"At the recent pace at least 1 turn remains before a {WORDS}." in text
    assert "turns remain before the limit" not in text
    session.freeze(ladder=session_ladder(0.9), installed_at=1.0)
    assert session.likely()["turnsLow"] == 1


def test_it_is_said_behind_a_rung_that_comes_first(session):
    """Two rungs: one is reached, the next lies below the compaction."""
    from ultramon.context.ladder import PREPARE_HANDOFF, Ladder, Rung

    session.freeze(ladder=Ladder([Rung("half", 0.25, action=PREPARE_HANDOFF), Rung("most", 0.5)]))
    lives(session, FULL, FULL)
    text = session.fill(20_000, 40_000, 60_000).text
    assert f"before 50 %. {WORDS.capitalize()}." in text


@pytest.mark.parametrize("trigger", ["manual", ...])
def test_a_compaction_that_a_person_asked_for_is_not_noted(session, trigger):
    """Nor one whose reason is not known."""
    lives(session, FULL, FULL, trigger=trigger)
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is None
    assert not (session.state / f"claude-code{COMPACTIONS_SUFFIX}").exists()


def test_an_interrupted_compaction_is_not_noted(session):
    session.fill(20_000, FULL)
    session.call("PreCompact", trigger="auto")
    session.fill(FULL + 100)
    session.call("PreCompact", trigger="manual")
    session.call("PostCompact", trigger="manual")
    assert not (session.state / f"claude-code{COMPACTIONS_SUFFIX}").exists()


def test_two_that_differ_say_nothing(session):
    """More than 3 % apart."""
    lives(session, FULL, 156_000)
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is None


def test_a_session_that_passes_it_has_disproved_it(session):
    """By more than the 3 % in which two agree: then all sessions forget it."""
    lives(session, FULL, FULL)
    session.fill(20_000, 154_000)
    assert session.memory()["likelyTokens"] == FULL
    session.fill(155_000)
    assert session.likely() is None
    session.compact()
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is None


def test_a_configured_trigger_is_learned_apart(session):
    """The environment moves the compaction; sessions without it compact elsewhere."""
    other = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "190000"}
    session.environ |= other
    lives(session, FULL, FULL)
    session.fill(20_000, 40_000, 60_000)
    assert session.likely()["tokens"] == FULL
    assert session.record().context_limit == 157_000
    session.environ = {name: v for name, v in session.environ.items() if name not in other}
    session.freeze(ladder=session_ladder(0.9), installed_at=1.0)
    session.fill(62_000)
    assert session.record().context_limit == 200_000
    assert session.likely() is None


def test_forgetting_takes_effect_with_the_next_reading(session):
    """Of one host or all; what was noted is counted."""
    lives(session, FULL, FULL)
    environ = {"ULTRAMON_STATE_DIR": str(session.state)}
    done = run("context", "forget", "--host", "codex", "--json", **environ)
    assert json.loads(done.stdout) == {"forgotten": {}}
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is not None
    done = run("context", "forget", **environ)
    assert done.stdout == "claude-code: 2 compactions forgotten\n"
    session.fill(61_000)
    assert session.likely() is None
    assert run("context", "forget", **environ).stdout == "nothing to forget\n"


def test_explain_says_it(session):
    lives(session, FULL, FULL)
    session.fill(20_000, 40_000, 60_000)
    shown = run(
        "explain", session.session_id, "--details", ULTRAMON_STATE_DIR=str(session.state)
    ).stdout
    assert f"\n  {WORDS}\n" in shown


def test_a_damaged_file_says_nothing_and_stops_no_hook(session):
    """What is no whole number above 0 is passed over; what cannot be replaced is logged."""
    path = session.state / f"claude-code{COMPACTIONS_SUFFIX}"
    for text in ("", "[]", '{"a": 1}', "\x00", "[" * 10_000):
        path.write_text(text)
        path.chmod(0o600)
        session.fill(20_000)
        assert session.likely() is None
    assert session.failures() == []
    path.unlink()
    path.mkdir()
    lives(session, FULL)
    (problem,) = session.failures()
    assert problem.startswith("a compaction is not noted: ")


def test_the_last_three_decide(tmp_path):
    """One that differs takes the number away until three agree again."""
    compactions = LearnedCompactions(str(tmp_path / "c.json"))
    said = []
    for tokens in (100, 101, 130, 130, 130, 131):
        compactions.learn("key", tokens)
        said.append(LearnedCompactions(str(tmp_path / "c.json")).near("key"))
    assert said == [None, (101, 2), None, None, (130, 3), (130, 3)]
    assert compactions.near("another") is None


def test_a_rollout_names_the_version_that_began_it(tmp_path):
    """In its first line, or not at all."""
    path = tmp_path / "rollout.jsonl"
    head = {"type": "session_meta", "payload": {"id": "a", "cli_version": "0.169.0"}}
    path.write_text(json.dumps(head) + "\n")
    assert codex.client_version(str(path)) == "0.169.0"
    path.write_text('{"type":"event_msg","payload":{}}\n')
    assert codex.client_version(str(path)) is None


def test_the_last_line_names_the_version_of_claude_code_and_qwen_code(tmp_path):
    """Another version may continue a session; a line that is cut names none."""
    path = tmp_path / "session.jsonl"
    path.write_text('{"version": "1"}\n{"version": "2"}\n{"a": {"version": "3"}}\n{"version": "4')
    for host in (CLAUDE_CODE, QWEN):
        assert host.transcripts.client_version(str(path)) == "2"
    (recorded,) = {
        QWEN.transcripts.client_version(str(one))
        for one in (DATA / "hooks" / "qwen-0.24.4").glob("*/*-*-*-*-*.jsonl")
    }
    assert recorded == "0.24.4"


def test_nothing_is_likely_at_the_limit_itself(session):
    """The limit says it already."""
    session.freeze(ladder=session_ladder(0.9), context_limit_tokens=FULL)
    lives(session, FULL, FULL)
    session.fill(20_000, 40_000, 60_000)
    assert session.likely() is None
    assert tokens_at(25) == FULL
