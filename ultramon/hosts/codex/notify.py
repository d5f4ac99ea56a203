"""Turns that Codex reports to its `notify` program, which needs no trust. Not a hook's path.

One call comes behind each turn that ended well. It says nothing of tokens: the rollout does.
An answer is not read. Where hooks report a session, such a call changes nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from ultramon.errors import UltramonError
from ultramon.hosts import port
from ultramon.hosts.calls.handling import HookCall
from ultramon.hosts.calls.payload import checked_text, decode_payload
from ultramon.hosts.calls.store import HookStore
from ultramon.hosts.calls.switches import is_left_to_relay, is_off, state_directory
from ultramon.hosts.codex.dialect import CodexDialect
from ultramon.hosts.codex.host import CODEX
from ultramon.hosts.codex.last_reading import is_last_turn, read_last_replies
from ultramon.hosts.codex.rollouts import find_thread
from ultramon.hosts.failure_log import record as record_failure
from ultramon.hosts.port import HookEvent, Host

EVENT = "agent-turn-complete"


class _NotifiedDialect(CodexDialect):
    """Codex without a process: the host does not wait for the program that it notifies."""

    def process_id(self, environ: Mapping[str, str]) -> int | None:
        """Return None: the caller may be gone, and another process in its place."""
        return None


def take_turn(data: bytes, choices_path: str, environ: Mapping[str, str] = os.environ) -> None:
    """Take a finished turn into the state of its session; failures go to the failure log.

    Args:
        data: What the host has added to the command, a JSON object.
        choices_path: The installed choices, ``codex.json``; without the file the defaults hold.
        environ: The host's environment.
    """
    if is_off(environ) or is_left_to_relay(environ, choices_path):
        return
    directory, agent_id = state_directory(environ, choices_path), ""
    host = Host(CODEX.name, CODEX.package)
    host.dialect = _NotifiedDialect()
    try:
        for event in _events(decode_payload(data), environ):
            agent_id = event.session_id
            now = time.time()
            store = HookStore(host, directory, choices_path, environ, event=EVENT, now=now)
            known = store.find(agent_id)
            if known is not None and known.pid is not None:
                return  # its hooks report it
            HookCall(event, store).answer()
    except (UltramonError, OSError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        record_failure(directory, CODEX.name, EVENT, agent_id, problem, now=time.time())


def _events(payload: dict[str, Any], environ: Mapping[str, str]) -> Iterator[HookEvent]:
    """Yield what hooks would have reported of the turn: its prompt, and its end.

    A thread without a rollout is not a person's: one of them finds the session's title.

    Raises:
        OSError: The rollout cannot be opened.
        ValueError: It is no regular file, or a member that names something is no text, or too long
            for a name.
    """
    thread_id = checked_text(payload, "thread-id")
    if payload.get("type") != EVENT or thread_id is None:
        return
    path = find_thread(environ, thread_id)
    if path is None:
        return
    replies = read_last_replies(path, is_subagent=False)
    end = port.SESSION_ENDED if is_last_turn(path) else port.WAITING
    for kind in (port.PROMPT, end):
        event = HookEvent(kind, EVENT, thread_id)
        event.model = replies[0][0].model if replies else None
        event.transcript_path, event.cwd = path, checked_text(payload, "cwd")
        event.can_answer, event.error, event.reason = False, "", "turn completed"
        prompts = payload.get("input-messages")
        if isinstance(prompts, list) and prompts and isinstance(prompts[-1], str):
            event.prompt = prompts[-1]
        yield event
