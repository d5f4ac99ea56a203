"""One number: every face says the same percent, limit, rung, filling and word of one state."""

import json
import os
import re
import subprocess
import sys

import pytest
from helpers.hooked_session import SESSION, HookedSession

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.context.config import ContextConfig
from ultramon.hosts.status_line.program import write_line
from ultramon.monitor.monitor import create_context_monitor
from ultramon.notices import texts
from ultramon.notices.levels import decide
from ultramon.pictures.elements import to_html
from ultramon.state.event_words import event_words
from ultramon.state.observed import observe
from ultramon.system.processes import this_machine
from ultramon.web.pages import agent

TOKENS = 169_000
"""84.5 % of 200,000: a face that rounded otherwise would say 84."""


def run(*arguments, **environ):
    """The output of a command."""
    done = subprocess.run(
        [sys.executable, "-m", "ultramon", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "160", "ULTRAMON_LEVELS": "65,75", **environ},
    )
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.fixture
def session(tmp_path):
    session = HookedSession(tmp_path)
    for tokens in (110_000, 140_000, TOKENS):
        session.tool(tokens)
    return session


@pytest.fixture
def faces(session):
    """What each face says of the session, by the face."""
    directory = session.state
    record = StateDirectory(str(directory)).read(SESSION)
    now = record.last_activity + 1
    one = observe(record, now, now, this_machine())
    where = ("--state-dir", directory)
    decision = decide(None, record, None)
    facts = texts.level_facts(record, decision, record.usage_ratio, rounds=True)
    events = LocalBackend(str(directory)).events().events
    (reached,) = [
        event
        for event in events
        if event["type"] == "context_threshold_reached" and event["level"] == "critical"
    ]
    content = agent.agent_content(agent.AgentFacts(one, (), (), None, now))
    return {
        "status": run("status", *where).splitlines()[-1],
        "watch": run("watch", "--once", *where).splitlines()[-1],
        "tmux": run("watch", "--format", "tmux", *where),
        "explain": run("explain", SESSION, *where),
        "check": run("check", "--session", SESSION, *where),
        "status line": write_line(record, color=False),
        "web, agent": re.sub("<[^>]+>", " ", to_html(content)),
        "notice": texts.render(facts, "boss", name="agent", now=now),
        "event": event_words(reached),
    }


def test_every_face_says_the_same_percent_limit_rung_filling_and_word(faces):
    """Alerts call the level of monitors *caution*; its share and what it is of are the same."""
    for face, text in faces.items():
        assert re.search(r"(?<![\d.,])85 ?%", text), (face, text)
        assert not re.search(r"(?<![\d.,])84(\.\d+)? ?%", text), (face, text)
        assert re.search(r"200,000|200k|200000", text), (face, text)
        assert re.search(r"(?<![\d.,])75 ?%", text), (face, text)
        word = "caution" if face == "check" else "critical"
        assert word in text.lower(), (face, text)
        if face != "tmux":
            assert re.search(r"169,000|169k|169000", text), (face, text)


def test_json_has_the_same_numbers(session):
    """Programs get the ratio itself, which no face rounds away."""
    where = ("--state-dir", session.state)
    (one,) = json.loads(run("status", "--json", *where))["agents"]
    explained = json.loads(run("explain", SESSION, "--json", *where))["state"]
    checked = json.loads(run("check", "--session", SESSION, "--json", *where))
    for state in (one, explained):
        assert (state["usageRatio"], state["contextLimit"]) == (TOKENS / 200_000, 200_000)
        assert (state["estimatedTokens"], state["thresholdStatus"]) == (TOKENS, "critical")
    assert (checked["percentage"], checked["tokens"], checked["limit"]) == (84.5, TOKENS, 200_000)
    assert checked["status"] == "caution"


def test_a_report_of_the_transcript_has_the_same_percent(session):
    """It reads the files of the client, not the state, and comes to the same peak."""
    said = run("report", session.transcript)
    assert re.search(r"(?<!\d)85 %", said), said


def test_check_sees_what_a_monitor_just_counted(tmp_path):
    """From 70 % up it does not wait for the next save of the interval."""
    config = ContextConfig(context_limit_tokens=100_000, save_interval_seconds=3600)
    backend = LocalBackend(str(tmp_path))
    with create_context_monitor("scout-1", config, backend=backend) as monitor:
        monitor.report_usage(input_tokens=70_000)
        monitor.report_usage(input_tokens=78_000)
        said = ""
        for _ in range(20):  # each starts a program, which takes longer than the save
            said = run("check", "--session", "scout-1", "--state-dir", tmp_path)
            if "78%" in said:
                break
    assert "78% (78000/100000 tokens)" in said


def test_a_limit_without_a_model_is_called_assumed(tmp_path):
    """Programs read `default`; people read why it is that number."""
    backend = LocalBackend(str(tmp_path))
    with create_context_monitor("scout-1", ContextConfig(), backend=backend) as monitor:
        monitor.report_usage(input_tokens=150_000)
        monitor.update_heartbeat()
        where = ("--state-dir", tmp_path)
        (one,) = json.loads(run("status", "--json", *where))["agents"]
        assert one["limitSource"] == "default"
        assert "200,000 assumed: no model named" in run("explain", "scout-1", *where)
        assert "The limit is assumed: no model named." in monitor.get_threshold_action().note
