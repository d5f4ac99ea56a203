"""Finds sessions that have become blind: they reply, and no hook reports it any more.

Never on a hook's path. Hooks can be taken out, or switched off, under a session that runs; its last
reading then looks like the present one for ever.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError, StateError
from ultramon.state.liveness import ALIVE, STALE, Liveness
from ultramon.state.record import SDK_HOST, host_memory
from ultramon.system.processes import this_machine
from ultramon.system.timestamps import clock_time

if TYPE_CHECKING:
    from ultramon.state.observed import ObservedAgent
    from ultramon.state.record import StateRecord

BLIND_AFTER_SECONDS = 120.0
"""A reply so long after the last hook should have been reported by one."""
_GRACE_SECONDS = 60.0
"""A hook may still come: a tool runs whose start the host does not report."""
_PATH = b'"transcriptPath":"'
_MOST_KNOWN = 10_000


class BlindSessions:
    """Marks the agents of one store that are blind, at the price of one `stat` a row.

    A transcript is read only where it was written to long after the last hook, and again when it
    or the state has changed.
    """

    def __init__(self) -> None:
        self._hostname = this_machine().hostname  # to ask costs more than the rest of a mark
        self._known: dict[str, tuple[object, float | None]] = {}

    def mark(self, one: ObservedAgent, now: float) -> ObservedAgent:
        """Return an agent with the verdict ``stale`` where it is blind, else as it is.

        Args:
            one: The agent.
            now: Epoch seconds.
        """
        record = one.record
        if one.liveness.verdict != ALIVE or not _may_be_blind(record, now, self._hostname):
            return one
        replied_at = self._replied_at(record)
        if not _is_blind(record, replied_at, now):
            return one
        last = record.last_heartbeat
        words = f"blind: no hook since {clock_time(last, now)}, though it replies"
        return one._replace(liveness=Liveness(STALE, words, last, now, beats=False))

    def _replied_at(self, record: StateRecord) -> float | None:
        """Return when the last reply was written, where that may be long after the last hook."""
        path = _transcript_of(record)
        if path is None:
            return None
        try:
            found = os.stat(path, follow_symlinks=False)
        except (OSError, ValueError):
            return None
        # Reading every transcript would cost a list a millisecond a row.
        if found.st_mtime - record.last_heartbeat <= BLIND_AFTER_SECONDS:
            return None
        mark = (found.st_ino, found.st_mtime_ns, found.st_size, record.last_heartbeat)
        known = self._known.get(record.agent_id)
        if known is None or known[0] != mark:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[record.agent_id] = mark, read_reply_at(record, path)
        return known[1]


def find_blind(record: StateRecord, now: float) -> float | None:
    """Return when an active agent replied last, if that is long after its last hook; else None.

    Reads its transcript.

    Args:
        record: The agent's state.
        now: Epoch seconds.
    """
    if not record.active or not _may_be_blind(record, now, this_machine().hostname):
        return None
    path = _transcript_of(record)
    if path is None:
        return None
    replied_at = read_reply_at(record, path)
    return replied_at if _is_blind(record, replied_at, now) else None


def read_reply_at(record: StateRecord, path: str) -> float | None:
    """Return the time of the last reply in an agent's transcript; None where it says none."""
    from ultramon.hosts.registry import find_host

    is_subagent = record.agent_id != record.session_id
    try:
        files = find_host(record.host).transcripts
        report = files.read_last_reading(path, is_subagent=is_subagent).report
    except (ConfigurationError, OSError, ValueError):
        return None
    return None if report is None else report.at


def _may_be_blind(record: StateRecord, now: float, hostname: str) -> bool:
    """Return whether the head of a state leaves it open: most answer without a look at a file."""
    return (
        record.heartbeat_interval_seconds is None
        and now - record.last_heartbeat > BLIND_AFTER_SECONDS
        and record.hostname == hostname
    )


def _is_blind(record: StateRecord, replied_at: float | None, now: float) -> bool:
    return (
        replied_at is not None
        and replied_at - record.last_heartbeat > BLIND_AFTER_SECONDS
        and now - replied_at > _GRACE_SECONDS
    )


def _transcript_of(record: StateRecord) -> str | None:
    """Return the path of an agent's transcript; a record that is not decoded stays so."""
    body = record.undecoded_body
    if body:
        _, found, rest = body.partition(_PATH)
        text = rest.partition(b'"')[0]
        if not found:
            return None
        if b"\\" not in text:
            return text.decode("ascii", "replace")
    try:
        path = None if record.host == SDK_HOST else host_memory(record).get("transcriptPath")
    except StateError:
        return None
    return path if isinstance(path, str) else None
