"""A session of the client for which others have queued something, and ways to look into that."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from helpers.hooked_session import SESSION, HookedSession, tokens_at
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.inbox_flags import flag_path
from ultramon.backends.local.journal import JOURNAL
from ultramon.notices.message import Draft
from ultramon.notices.texts import CONTEXT
from ultramon.routing import Inbox

TOLD_EVENTS = ("PostToolUse", "PostToolUseFailure", "PostToolBatch", "UserPromptSubmit")
ON_TERMINAL = {"CLAUDE_CODE_ENTRYPOINT": "cli"}
HEADLESS = {"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}


def level_facts(agent="scout-1", **values):
    return {
        "agentId": agent,
        "kind": "level",
        "level": "warning",
        "action": "prepare_handoff",
        "usageRatio": 0.75,
        "tokens": 150_000,
        "contextLimit": 200_000,
        "tokensSource": "reported",
        "measuredAt": "2026-11-21T14:02:59.000Z",
    } | values


LINE = (
    "[ultramon] Context window of {} is at 75% (warning), 150,000 of 200,000 tokens,"
    " reported 2026-11-21 14:02Z."
)


@pytest.fixture
def session(tmp_path):
    return begun(tmp_path)


def begun(path, **environ):
    """A session with a small state."""
    session = HookedSession(path, **(HEADLESS | environ))
    session.freeze()
    session.tool(tokens_at(90))
    return session


@pytest.fixture
def backend(session):
    with closing(LocalBackend(str(session.state))) as backend:
        yield backend


def notify(backend, recipient=SESSION, sender="scout-1", facts=None, **message):
    """Queue a notice as ultramon does."""
    facts = level_facts(sender) if facts is None else facts
    values = {"category": CONTEXT, "delivery": "urgent"} | message
    draft = Draft(recipient, "words of whoever wrote it", sender, facts=facts, **values)
    return backend.queue.queue_message(draft, now=time.time())


def flag(session, agent=None):
    name = session.session_id if agent is None else f"{session.session_id}.{agent}"
    return Path(flag_path(str(session.state), name))


def waiting(backend, recipient=SESSION):
    return [notice.agent_id for notice in Inbox(recipient, backend=backend).peek()]


def any_call(session, event="PostToolUse", agent=None, env=None):
    """Run the hook at an event that may tell something, with a window that is nearly empty."""
    if event == "UserPromptSubmit":
        return session.call(event, agent, env, prompt="go on")
    return session.tool(tokens_at(90), agent, event, env)


def lines(answer):
    return answer.text.split("\n") if answer.text else []


def lease_ends(session):
    """Let the lease of all that is claimed end now; the flag must be there for it."""
    with closing(sqlite3.connect(session.state / JOURNAL, isolation_level=None)) as journal:
        journal.execute("UPDATE messages SET claimed_until = 1 WHERE state IN (1, 3)")
    os.utime(flag(session), (1, 1))
