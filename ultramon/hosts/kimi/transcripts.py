"""The wire files of Kimi CLI and Kimi Code: where they are, and whose they are.

Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress

from ultramon.hosts.kimi import reader
from ultramon.hosts.port import Transcripts
from ultramon.hosts.transcripts.files import transcripts_below
from ultramon.hosts.transcripts.jsonl import decode_object, text_or_none
from ultramon.hosts.transcripts.records import TranscriptIdentity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ultramon.hosts.transcripts.jsonl import JsonObject

_NAME = "wire.jsonl"
_SUBAGENTS, _AGENTS, _MAIN = "subagents", "agents", "main"
# Variables that move the folders, and their names in the home.
_FOLDERS = (("KIMI_SHARE_DIR", ".kimi"), ("KIMI_CODE_HOME", ".kimi-code"))
_MARK, _MARK_BYTES = b'"protocol_version"', 256
_MAX_BYTES = 1024 * 1024


class KimiTranscripts(Transcripts):
    """Files as Kimi CLI 1.51.0 and Kimi Code 2.1.0 write them."""

    read_transcript = staticmethod(reader.read_transcript)

    def looks_like_transcript(self, head: bytes) -> bool:
        """Return whether a file begins as those of these clients do, of whatever version."""
        return _MARK in head[:_MARK_BYTES] and reader.version_of(head) is not None

    def identify(self, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return None: only a file's place says whose it is.

        Raises:
            ValueError: It is of a version that is not known.
        """
        reader.check_version(next(iter(lines), b""))
        return None

    def identify_file(self, path: str, lines: Iterable[bytes]) -> TranscriptIdentity | None:
        """Return whose file it is, by the folders it lies in, and what is kept there."""
        client = reader.check_version(next(iter(lines), b""))
        folder = os.path.dirname(os.path.abspath(path))
        above, name = os.path.split(folder)
        if client == reader.CODE and os.path.basename(above) == _AGENTS:
            session = os.path.dirname(above)
            project = text_or_none(_json(session, "state.json").get("cwd"))
            agent_id = None if name == _MAIN else name
            return TranscriptIdentity(os.path.basename(session), agent_id, project=project)
        if client != reader.CLI:
            return None
        session, agent_id = folder, None
        if os.path.basename(above) == _SUBAGENTS:
            session, agent_id = os.path.dirname(above), name
        place, session_id = os.path.split(session)
        return TranscriptIdentity(session_id, agent_id, project=_project(place))

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the files of a session's subagents."""
        folder = os.path.dirname(os.path.abspath(path))
        above, name = os.path.split(folder)
        is_code = os.path.basename(above) == _AGENTS
        if is_code and name != _MAIN:
            return
        beside = above if is_code else os.path.join(folder, _SUBAGENTS)
        for found in _wires_below(beside, None):
            if os.path.dirname(found) != folder:
                yield found

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the wire files of both clients."""
        for variable, name in _FOLDERS:
            home = environ.get(variable) or os.path.join(os.path.expanduser("~"), name)
            yield from _wires_below(os.path.join(home, "sessions"), on_error)


TRANSCRIPTS = KimiTranscripts()


def _wires_below(folder: str, on_error: Callable[[OSError], None] | None) -> Iterator[str]:
    for path in transcripts_below(folder, on_error):
        if os.path.basename(path) == _NAME:
            yield path


def _project(place: str) -> str | None:
    """Return the project whose sessions lie in a folder: the folder is named by a sum of it."""
    from hashlib import md5

    wanted = os.path.basename(place).rpartition("_")[2]
    found = _json(os.path.dirname(os.path.dirname(place)), "kimi.json").get("work_dirs")
    for one in found if isinstance(found, list) else ():
        path = text_or_none(one.get("path")) if isinstance(one, dict) else None
        if path and md5(path.encode("utf-8", "surrogatepass")).hexdigest() == wanted:
            return path
    return None


def _json(folder: str, name: str) -> JsonObject:
    with suppress(OSError, ValueError), open(os.path.join(folder, name), "rb") as stream:
        return decode_object(stream.read(_MAX_BYTES))
    return {}
