"""Agents as a look at a store finds them, without one."""

import time

from ultramon.state.observed import observe
from ultramon.state.record import StateRecord
from ultramon.system.processes import this_machine

ACTIONS = {"warning": "prepare_handoff", "critical": "force_return"}
NOW = time.time()
SESSION = "e26fbb3a-1111-4222-8333-444455556666"


def observed(agent_id, **values):
    """An agent that beats on another machine, by default."""
    values.setdefault("action", ACTIONS.get(values.get("threshold_status"), "none"))
    fields = {
        "run": "default",
        "session_id": "s",
        "host": "sdk",
        "active": True,
        "phase": "working",
        "started_at": NOW - 300,
        "last_heartbeat": NOW,
        "heartbeat_interval_seconds": 15.0,
        "epoch": 1,
        "hostname": "elsewhere",
        "usage_ratio": 0.1,
        "context_limit": 200_000,
        "estimated_tokens": 20_000,
        **values,
    }
    return observe(StateRecord(agent_id, **fields), None, NOW, this_machine(), whole=False)


def session(session_id=SESSION, child="", memory=None, **values):
    """A session of a coding agent, or a subagent of one."""
    own = f"{session_id}.{child}" if child else session_id
    parent = session_id if child else None
    hosted = {"host": "claude-code", "run": "claude-code", "cwd": "/home/a/api-server"}
    hosted |= {"session_id": session_id, "parent_id": parent, "extra": {"claudeCode": memory or {}}}
    return observed(own, **hosted | values)
