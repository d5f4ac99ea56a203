"""The sessions of opencode and its forks: in which database they are, and what it says of them.

Standard library only: every hook call loads it. A transcript is named ``<database>/<session>``.
"""

from __future__ import annotations

import os

from ultramon.hosts.opencode import configuration, last_reading, reader
from ultramon.hosts.transcripts.session_databases import DatabaseTranscripts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.records import SessionEnd
    from ultramon.hosts.transcripts.session_databases import Queries


class OpencodeTranscripts(DatabaseTranscripts):
    """Databases as version 1.18.33 writes them.

    Args:
        store: Where the host keeps them.
    """

    def __init__(self, store: configuration.Store = configuration.OPENCODE) -> None:
        self._store = store
        self.host = store.host

    def transcript_path(
        self, event: HookEvent, subagent_id: str | None, session_id: str
    ) -> str | None:
        """Return the name of a session: a subagent has one of its own in the same database."""
        path = event.transcript_path
        if path is None:
            return None
        return os.path.join(os.path.dirname(path), subagent_id or session_id)

    def find_transcript(self, environ: Mapping[str, str], agent_id: str) -> str | None:
        """Return the name of a session in the database that the environment means."""
        database = self._store.database_path(environ)
        return None if database is None else os.path.join(database, agent_id)

    def read_session_end(self, path: str, environ: Mapping[str, str]) -> SessionEnd | None:
        """Return how a session ended, by its last message."""
        return last_reading.read_session_end(path)

    read_last_reading = staticmethod(last_reading.read_last_reading)
    read_last_replies = staticmethod(last_reading.read_last_replies)
    new_requests = staticmethod(last_reading.read_new_requests)
    identify = staticmethod(reader.identify)
    read_transcript = staticmethod(reader.read_transcript)

    def looks_like_transcript(self, head: bytes) -> bool:
        """Return whether lines are those of a session of this host."""
        return reader.looks_like_transcript(head, self.host)

    def sizes_and_changes(self, path: str) -> dict[str, tuple[int, int]]:
        """Return the size and the change of all sessions in a database."""
        from ultramon.hosts.opencode import database

        return database.sizes_and_changes(path) if database.host_of(path) == self.host else {}

    @property
    def queries(self) -> Queries:
        """What is asked of a database."""
        from ultramon.hosts.opencode import database

        return database

    def databases(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None
    ) -> Iterator[str]:
        """Yield every database in the host's folder, as builds of it have own ones.

        Sessions of versions that kept them as files are not read.
        """
        folder = self._store.data_directory(environ)
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            names = []
            if on_error is not None and not isinstance(error, FileNotFoundError):
                on_error(error)
        paths = [os.path.join(folder, name) for name in names if self._is_database(name)]
        chosen = self._store.database_path(environ)
        if chosen is not None and chosen not in paths and os.path.isfile(chosen):
            paths.append(chosen)
        yield from paths

    def _is_database(self, name: str) -> bool:
        return name.startswith(self._store.folder) and name.endswith(".db")


TRANSCRIPTS = OpencodeTranscripts()
