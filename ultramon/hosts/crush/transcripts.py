"""The sessions of Crush: in which databases they are, and what these say of them.

Standard library only.
"""

from __future__ import annotations

import errno
import os

from ultramon.hosts.crush import reader
from ultramon.hosts.transcripts.jsonl import decode_object, text_or_none
from ultramon.hosts.transcripts.session_databases import DatabaseTranscripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ultramon.hosts.transcripts.session_databases import Queries

_NAME = "crush.db"
_PROJECTS = "projects.json"
_MAX_BYTES = 4 * 1024 * 1024


class CrushTranscripts(DatabaseTranscripts):
    """Databases up to migration 20260127000000."""

    host = "crush"
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)
    read_transcript = staticmethod(reader.read_transcript)

    @property
    def queries(self) -> Queries:
        """What is asked of a database."""
        from ultramon.hosts.crush import database

        return database

    def databases(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None
    ) -> Iterator[str]:
        """Yield the databases of the projects in which the client notes that it has worked."""
        folder = environ.get("CRUSH_GLOBAL_DATA")
        if not folder:
            root = environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
            folder = os.path.join(root, "crush")
        path = os.path.join(folder, _PROJECTS)
        try:
            with open(path, "rb") as stream:
                projects = decode_object(stream.read(_MAX_BYTES)).get("projects")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            if on_error is not None:
                found = error if isinstance(error, OSError) else None
                on_error(found or OSError(errno.EIO, str(error), path))
            return
        seen: set[str] = set()
        for project in projects if isinstance(projects, list) else ():
            one = project if isinstance(project, dict) else {}
            place = text_or_none(one.get("path")) or ""
            name = os.path.join(place, text_or_none(one.get("data_dir")) or ".crush", _NAME)
            real = os.path.realpath(name)
            if os.path.isabs(name) and real not in seen and os.path.isfile(name):
                seen.add(real)
                yield name


TRANSCRIPTS = CrushTranscripts()
