"""`ultramon explain`: what fills an agent's window."""

import json
import re

import pytest
from helpers.hooked_session import SESSION, HookedSession
from helpers.planted_transcripts import held_beside, prompt, read_file
from helpers.program import run, run_process
from helpers.transcript_lines import line

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.context.forecast import COMPACTION

CELLS = 76


@pytest.fixture
def session(tmp_path):
    """A session of Claude Code that has read a file."""
    session = HookedSession(tmp_path)
    own = {"sessionId": SESSION, "isSidechain": False}
    beside = held_beside("/home/dev/shop", "2026-11-21T20:28:51Z", servers=("github",))
    for entry in (prompt("Look into it."), *beside):
        session.write(line(entry | own))
    session.tool(10_400)
    for entry in read_file("/home/dev/shop/a.py", chars=300_000):
        session.write(line(entry | own))
    session.tool(90_000)
    return session


def explained(session, *options, **environ):
    """What the command prints."""
    environ |= {"XDG_CACHE_HOME": f"{session.state}-cache"}
    done = run("explain", SESSION, *options, "--state-dir", session.state, **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_bar_one_sentence_and_three_facts(session):
    """The bar is as long as the window, and its parts are named below it."""
    lines = explained(session, COLUMNS="80").splitlines()
    assert lines[0].startswith("project: session  claude-code  claude-sonnet-4-5")
    assert len(lines[1]) == CELLS
    shares = {cell: lines[1].count(cell) / CELLS for cell in "▓█▒░·"}
    assert shares["·"] == pytest.approx(0.55, abs=0.02)
    assert 0.03 < shares["▓"] < 0.06
    assert shares["█"] > 0.3
    assert re.match(
        r"45 %: 90,000 of 200,000 tokens; the largest part is Read with \d\d\.\d %, and "
        r"10k stand in every request\.$",
        lines[2],
    )
    facts = [text.split()[0] for text in lines[4:7]]
    assert facts == ["tokens", "limit", "next"]
    assert "warning at 65 %, 129,000 tokens" in lines[6]
    text = "\n".join(lines)
    for name in ("system prompt", "built-in tools", "MCP github", "/home/dev/shop/CLAUDE.md"):
        assert name in text
    assert lines[-1].startswith("limits, levels, settings and history: ")
    assert lines[-1].endswith(f"ultramon explain {SESSION} --details")


def test_an_agent_that_has_ended_expects_no_compaction(session):
    """Where its host was seen to compact by itself it comes to no more."""
    directory = StateDirectory(str(session.state))
    ahead = {"turns": 4, "turnsLow": 2, "turnsHigh": 9, "seconds": 60.0}
    likely = {
        "tokensPerTurn": 15_000.0,
        "secondsPerTurn": 15.0,
        "limit": ahead,
        "rungs": {COMPACTION: ahead | {"tokens": 150_000, "seen": 2}},
    }

    def expect(record):
        record.forecast = likely
        record.seq += 1
        directory.replace(record, durable=False)

    expect(session.record())
    assert "likely compaction near 150,000" in explained(session)
    session.call("SessionEnd", reason="prompt_input_exit")
    record = session.record()
    assert not record.active
    expect(record)
    shown = explained(session)
    assert "ended" in shown
    assert "likely compaction" not in shown


def test_the_parts_are_in_the_json_too(session):
    """They are as many tokens as the window holds."""
    document = json.loads(explained(session, "--json"))
    assert sum(document["filledBy"].values()) == pytest.approx(90_000, rel=0.05)
    assert {"system", "tools", "mcp:github", "tool:Read"} <= document["filledBy"].keys()
    sure = document["provenance"]
    assert sure.keys() == document["filledBy"].keys()
    assert (sure["reply"], sure["tool:Read"], sure["unrecorded"]) == (
        "measured", "estimated", "unknown",
    )  # fmt: skip


def test_details_are_asked_for(session):
    """Limits considered, rungs and history."""
    text = explained(session, "--details")
    assert text.startswith(f"agent {SESSION}  ")
    assert "\nladder    warning\n" in text or "\nladder    " in text
    assert "\nhistory   " in text


def test_a_terminal_without_unicode_gets_plain_characters(session):
    """No character of the bar is lost."""
    environ = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "COLUMNS": "80"}
    text = run_process("explain", SESSION, "--state-dir", session.state, **environ).stdout
    assert text.isascii()
    assert re.fullmatch(r"[%#=?.]{76}", text.splitlines()[1])


def test_an_agent_of_the_sdk_names_its_parts_itself(tmp_path):
    """And one of which nothing is known says only how full it is."""
    config = ContextConfig(context_limit_tokens=100_000, model="claude-sonnet-4-5")
    backend = LocalBackend(str(tmp_path))
    with create_context_monitor("scout-1", config, backend=backend) as monitor:
        monitor.track_content("word " * 4_000, source="tool:read")
        monitor.track_content("word " * 1_000, source="plan")
        monitor.update_heartbeat()
        named = run("explain", "scout-1", "--state-dir", tmp_path).stdout
    with create_context_monitor("scout-2", config, backend=backend) as monitor:
        monitor.report_usage(input_tokens=40_000)
        monitor.update_heartbeat()
        bare = run("explain", "scout-2", "--state-dir", tmp_path).stdout
    assert "the largest part is read with 80.0 %" in named
    assert "40 %: 40,000 of 100,000 tokens.\n" in bare
    assert "standing" not in bare
