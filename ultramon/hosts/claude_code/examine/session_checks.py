"""Whether sessions that began after the installation report themselves."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from ultramon.hosts.claude_code.examine.examination import Examination
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.claude_code.install.settings import USER, config_directory
from ultramon.hosts.examine import sessions
from ultramon.system.findings import Finding

_CURE = (
    "start it anew; if it stays silent, look at /hooks in the host, at who sets its settings, and"
    " at ULTRAMON_DISABLED and ULTRAMON_STATE_DIR where it is started"
)


def check_sessions(seen: Examination) -> Iterator[Finding]:
    """Sessions that began after the installation and of which no hook has written anything."""

    def find(since: float) -> dict[str, float]:
        return sessions.begun_since(_transcripts(seen), since, _session_of)

    if seen.installed_at is not None:
        yield sessions.check_sessions(
            seen, CLAUDE_CODE.name, seen.installed_at, find, name="sessions", cure=_CURE
        )


def _session_of(path: str, lines: list[bytes]) -> str | None:
    # Earlier hosts keep the transcripts of subagents beside those of sessions. Not by the lines:
    # those of a session that was resumed under another id may be the ones of the first.
    name = os.path.basename(path).removesuffix(".jsonl")
    return None if name.startswith("agent-") else name


def _transcripts(seen: Examination) -> list[str]:
    """Return the transcripts of sessions that run the hooks: all, or those of some projects."""
    projects = os.path.join(glob.escape(config_directory()), "projects")
    if any(layer.name == USER for layer in seen.installed):
        folders = ["*"]
    else:
        # Which sessions load a plugin is not known: its folder is no project's.
        places = [os.path.split(os.path.dirname(layer.path)) for layer in seen.installed]
        folders = [re.sub("[^A-Za-z0-9]", "-", root) for root, name in places if name == ".claude"]
    return [path for one in folders for path in glob.glob(os.path.join(projects, one, "*.jsonl"))]
