"""A survey without the names that its user gave."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from ultramon.hosts.transcripts.records import MCP, MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.recordings.survey_models import SessionFacts, Share, Survey

# A UUID; an id of OpenCode; that of a subagent of Claude Code.
_RANDOM_ID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[0-9a-f]{12}[0-9A-Za-z]{14}|[0-9a-f]{16,}"
)


def anonymous(found: Survey) -> Survey:
    """Return a survey without paths and names that its user gave.

    Projects, files and tools of other makers are numbered, largest first; of a file the suffix
    stays. Ids stay where a host has drawn them at random; others are numbered, as a file's name may
    be one.
    """
    ids = _Ids()
    projects = {one.name: f"project {at}" for at, one in enumerate(found.by_project, 1) if one.name}
    return found.model_copy(
        update={
            "by_source": _numbered(found.by_source, _hidden_source),
            "by_standing": tuple(
                one.model_copy(update={"source": one.source and _hidden_part(one.source, number)})
                for number, one in enumerate(found.by_standing, 1)
            ),
            "by_file": _numbered(found.by_file, _hidden_file),
            "by_project": tuple(
                one.model_copy(update={"name": one.name and projects[one.name], "path": None})
                for one in found.by_project
            ),
            "worst_sessions": tuple(
                _hidden_session(one, projects, ids) for one in found.worst_sessions
            ),
            "dearest_sessions": tuple(
                _hidden_session(one, projects, ids) for one in found.dearest_sessions
            ),
            "unreadable": tuple(
                one.model_copy(update={"path": None, "reason": "cannot be read"})
                for one in found.unreadable
            ),
        }
    )


class _Ids:
    """Ids as they may be shown: random ones as they are, others numbered in their order."""

    def __init__(self) -> None:
        self._numbered: dict[str, str] = {}

    def shown(self, own: str) -> str:
        if _RANDOM_ID.fullmatch(own):
            return own
        return self._numbered.setdefault(own, f"id {len(self._numbered) + 1}")


def _hidden_session(one: SessionFacts, projects: dict[str, str], ids: _Ids) -> SessionFacts:
    # A path as the target would name what the other fields hide.
    is_id = one.replay_target is not None and ids.shown(one.id).startswith(one.replay_target)
    return one.model_copy(
        update={
            "id": ids.shown(one.id),
            "dearest_subagents": tuple(
                each.model_copy(update={"id": ids.shown(each.id)}) for each in one.dearest_subagents
            ),
            "project": one.project and projects.get(one.project, "another project"),
            "path": None,
            "first_prompt": None,
            "replay_target": one.replay_target if is_id else None,
        }
    )


def _numbered(
    shares: tuple[Share, ...], hide: Callable[[str, int], str | None]
) -> tuple[Share, ...]:
    shown, count = [], 0
    for one in shares:
        hidden = None if one.name is None else hide(one.name, count + 1)
        if hidden is None:
            shown.append(one)
        else:
            count += 1
            shown.append(one.model_copy(update={"name": hidden}))
    return tuple(shown)


def _hidden_source(name: str, number: int) -> str | None:
    """Hide what is not a plain word: tools of servers carry the names that their users chose."""
    if name.startswith((MCP, MEMORY)):
        return _hidden_part(name, number)
    kind, _, tool = name.partition(":")
    # Tools of MCP servers are named `mcp__server__tool`, by their users.
    if tool.isascii() and tool.replace("_", "").isalnum() and "__" not in tool:
        return None
    return f"{kind}:other {number}" if tool else None


def _hidden_part(source: str, number: int) -> str:
    """Hide servers and files, which carry the names that their users chose."""
    kind, mark, _ = source.partition(":")
    return f"{kind}:other {number}" if mark else source


def _hidden_file(path: str, number: int) -> str:
    suffix = os.path.splitext(path)[1]
    # A suffix is kept where it can only be the kind of a file.
    is_plain = len(suffix) <= 6 and suffix[1:].isascii() and suffix[1:].isalnum()
    return f"file {number}{suffix if is_plain else ''}"
