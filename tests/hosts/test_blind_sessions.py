"""A session that reported and then goes blind is found: it replies, and no hook says so."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing

import pytest
from helpers.hooked_session import SESSION, HookedSession
from helpers.program import run

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.backends.toolkit import observe_stored
from ultramon.hosts.blind_sessions import BLIND_AFTER_SECONDS, BlindSessions
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.doctor_context import DoctorContext
from ultramon.hosts.examine.doctor import check_blind
from ultramon.web.agent_reader import AgentReader

HOOKED_SECONDS_AGO = 600.0


@pytest.fixture
def session(tmp_path):
    """A session whose last hook was ten minutes ago."""
    session = HookedSession(tmp_path)
    session.freeze()
    session.tool(60_000)
    age(session)
    return session


def age(session, seconds=HOOKED_SECONDS_AGO, agent=None):
    """Let the last hook of an agent be so long ago."""
    directory = StateDirectory(str(session.state))
    name = SESSION if agent is None else f"{SESSION}.{agent}"
    with directory.locked(name, 1.0):
        record = directory.read_to_replace(name)
        for field in ("last_heartbeat", "last_activity", "measured_at", "started_at"):
            setattr(record, field, time.time() - seconds)
        directory.replace(record, durable=False)


def reply_after(session, seconds, agent=None):
    """The model replies so long after the last hook."""
    session.reply(90_000, at=time.time() - HOOKED_SECONDS_AGO + seconds, agent=agent)


def cli(session, *arguments):
    return run(*arguments, ULTRAMON_STATE_DIR=str(session.state))


def liveness(session, name=SESSION):
    """Verdict and reason, as programs read them."""
    agents = json.loads(cli(session, "status", "--json").stdout)["agents"]
    (found,) = [one for one in agents if one["agentId"] == name]
    return found["liveness"], found["livenessReason"]


def findings(session):
    context = DoctorContext(str(session.project), str(session.state), time.time())
    return [one.message for one in check_blind(context, CLAUDE_CODE)]


def test_every_face_says_it(session):
    """In JSON, in the table, for one agent, in the explanation, on the page and by the doctor."""
    reply_after(session, 300)
    verdict, reason = liveness(session)
    assert verdict == "stale"
    assert reason.startswith("blind: no hook since ")
    assert reason.endswith("Z, though it replies")
    assert "STALE: blind: no hook" in cli(session, "status").stdout.replace("\n", " ")
    (alone,) = json.loads(cli(session, "status", SESSION, "--json").stdout)["agents"]
    assert (alone["liveness"], alone["livenessReason"]) == (verdict, reason)
    assert f"liveness  stale: {reason}" in cli(session, "explain", SESSION, "--details").stdout
    assert '"stale"' in cli(session, "watch", "--once", "--json").stdout
    with closing(LocalBackend(str(session.state))) as backend:
        found = AgentReader(backend).look(None, 10, with_ended=False)
    assert [one.liveness.reason for one in found.shown] == [reason]
    assert found.summary.blind == 1
    (message,) = findings(session)
    assert message.startswith(f"went blind, their readings are old: {SESSION} (last hook ")


def test_a_blind_session_is_not_offered_for_resumption(session):
    """It is alive: only what is known of it is old."""
    reply_after(session, 300)
    assert cli(session, "resume").stderr == "no session was cut off\n"


@pytest.mark.parametrize("agent", [None, "sub"])
def test_its_next_hook_ends_it(session, agent):
    """Of a subagent its own transcript decides."""
    session.tool(60_000, agent)
    age(session, agent=agent)
    name = SESSION if agent is None else f"{SESSION}.{agent}"
    reply_after(session, 300, agent=agent)
    assert liveness(session, name)[0] == "stale"
    session.tool(91_000, agent)
    assert liveness(session, name)[0] == "alive"


def test_a_reply_within_two_minutes_is_none(session):
    """Long thinking comes before many a reply."""
    reply_after(session, BLIND_AFTER_SECONDS - 1)
    assert liveness(session)[0] == "alive"
    assert findings(session) == []


def test_a_reply_whose_hook_may_still_come_is_none(session):
    """Some clients do not report that a tool begins."""
    session.reply(90_000, at=time.time() - 5)
    assert liveness(session)[0] == "alive"
    assert findings(session) == []


def test_what_the_client_writes_without_a_reply_is_none(session):
    """A title, a summary, the progress of a tool; a transcript that is gone says nothing."""
    session.write({"type": "progress", "isSidechain": False, "sessionId": SESSION})
    assert liveness(session)[0] == "alive"
    session.transcript.unlink()
    assert liveness(session)[0] == "alive"
    assert findings(session) == []


def test_one_look_at_the_file_is_enough_and_a_changed_one_is_read_anew(session, monkeypatch):
    """A transcript is read when it was written to long after the last hook, once."""
    read = []
    files = CLAUDE_CODE.transcripts
    whole = files.read_last_reading

    def read_last_reading(path, **how):
        read.append(path)
        return whole(path, **how)

    monkeypatch.setattr(files, "read_last_reading", read_last_reading)
    blind, backend = BlindSessions(), LocalBackend(str(session.state))
    with closing(backend):

        def look():
            (one,) = observe_stored([backend.load(SESSION)], time.time())
            return blind.mark(one, time.time()).liveness.verdict

        os.utime(session.transcript, (time.time() - 590, time.time() - 590))
        assert (look(), read) == ("alive", [])
        reply_after(session, 300)
        assert [look(), look(), look()] == ["stale"] * 3
        assert len(read) == 1
        reply_after(session, 310)
        assert look() == "stale"
        assert len(read) == 2


def test_an_agent_of_another_machine_is_not_looked_at(session):
    """Its transcript lies there."""
    reply_after(session, 300)
    directory = StateDirectory(str(session.state))
    with directory.locked(SESSION, 1.0):
        record = directory.read_to_replace(SESSION)
        record.hostname = "elsewhere"
        directory.replace(record, durable=False)
    assert liveness(session)[0] == "alive"
    assert findings(session) == []
