"""The event file of a session, and the subagents in it: each is named ``<file>/<id>``.

Standard library only: hooks import it.
"""

from __future__ import annotations

import errno
import os

from ultramon.hosts.copilot.reader import LAUNCHED, START, agent_of, looks_like_transcript
from ultramon.hosts.transcripts.jsonl import bounded_lines, decode_object, open_transcript
from ultramon.system import compact_json
from ultramon.system.ids import is_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_SUFFIX = ".jsonl"
_HEAD_BYTES = 64 * 1024
_MARK = LAUNCHED.encode()


def split(path: str) -> tuple[str, str | None]:
    """Return the file of a transcript's name, and the subagent; None = it names the session."""
    if path.endswith(_SUFFIX):
        return path, None
    file, agent_id = os.path.split(path)
    return file, agent_id


def is_of_host(path: str) -> bool:
    """Return whether a file is an event file of this host; raises as `open_transcript`."""
    if not path.endswith(_SUFFIX):
        return False
    fd, _ = open_transcript(path)
    with open(fd, "rb") as stream:
        return looks_like_transcript(stream.read(_HEAD_BYTES))


def subagent_ids(path: str) -> list[str]:
    """Return the subagents of a session and theirs, in the order of their beginning.

    Raises:
        OSError: The file cannot be opened.
        ValueError: It is no regular file.
    """
    found: dict[str, None] = {}
    fd, _ = open_transcript(path)
    with open(fd, "rb") as stream:
        for line in bounded_lines(stream):
            entry = _decoded(line) if _MARK in line else {}
            if entry.get("type") == LAUNCHED and is_agent_id(agent_id := agent_of(entry)):
                found[agent_id] = None
    return list(found)


def subagent_lines(path: str, agent_id: str) -> Iterator[bytes]:
    """Yield the lines of a subagent, behind one that says whose they are.

    Raises:
        OSError: The file cannot be opened, or has no such subagent.
        ValueError: It is no regular file.
    """
    own, is_found = f'"{agent_id}"'.encode(), False
    fd, _ = open_transcript(path)
    with open(fd, "rb") as stream:
        first = _decoded(stream.readline(_HEAD_BYTES))
        header = {"type": START, "data": first.get("data"), "agentId": agent_id}
        kept = {name: first.get(name) for name in ("id", "timestamp", "parentId")}
        for line in bounded_lines(stream):
            if own not in line and _MARK not in line:
                continue
            if not is_found and own in line and agent_of(_decoded(line)) == agent_id:
                is_found = True
                yield compact_json.dumps({**header, **kept}).encode() + b"\n"
            if is_found:
                yield line
    if not is_found:
        raise FileNotFoundError(errno.ENOENT, "no subagent of that name", path)


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        return decode_object(line)
    except ValueError:
        return {}
