"""The sessions of Goose: in which database they are, and what it says of them.

Standard library only.
"""

from __future__ import annotations

import os

from ultramon.hosts.goose import reader
from ultramon.hosts.transcripts.session_databases import DatabaseTranscripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ultramon.hosts.transcripts.session_databases import Queries

_PATH = os.path.join("sessions", "sessions.db")


class GooseTranscripts(DatabaseTranscripts):
    """Databases of schemas 1 to 17."""

    host = "goose"
    looks_like_transcript = staticmethod(reader.looks_like_transcript)
    identify = staticmethod(reader.identify)
    read_transcript = staticmethod(reader.read_transcript)

    @property
    def queries(self) -> Queries:
        """What is asked of a database."""
        from ultramon.hosts.goose import database

        return database

    def databases(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None
    ) -> Iterator[str]:
        """Yield the database of the user; sessions of versions that kept files are in it too."""
        if moved := environ.get("GOOSE_PATH_ROOT"):
            folder = os.path.join(moved, "data")
        else:
            root = environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
            folder = os.path.join(root, "goose")
        path = os.path.join(folder, _PATH)
        if os.path.isfile(path):
            yield path


TRANSCRIPTS = GooseTranscripts()
