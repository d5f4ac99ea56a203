"""The transcripts of a host that keeps many sessions in one database: each is ``<file>/<id>``.

Standard library only: a hook may load it, without SQLite.
"""

from __future__ import annotations

import errno
import os

from ultramon.hosts.port import Transcripts
from ultramon.hosts.transcripts.jsonl import bounded_lines, last_reading_in
from ultramon.hosts.transcripts.stored import StoredTranscript, file_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Protocol

    from ultramon.hosts.transcripts.records import LastReading

    class Queries(Protocol):
        """What is asked of a database; each raises as `ultramon.hosts.transcripts.database`."""

        def host_of(self, path: str) -> str | None:
            """Return the name of the host whose database a file is; None = no known one."""

        def session_ids(self, path: str) -> list[str]:
            """Return all sessions, the oldest first, those of subagents included."""

        def subagent_ids(self, path: str, session_id: str) -> list[str]:
            """Return the subagents of a session and theirs, the oldest first."""

        def size_and_change(self, path: str, session_id: str) -> tuple[int, int] | None:
            """Return what grows with a session, and when it changed, milliseconds; None = none."""

        def session_lines(self, path: str, session_id: str) -> Iterator[bytes]:
            """Yield a session as lines."""


class DatabaseTranscripts(Transcripts):
    """Sessions in databases."""

    host = ""
    """The name of the host."""

    @property
    def queries(self) -> Queries:
        """What is asked of a database of this host: a module that is loaded late."""
        raise NotImplementedError

    def databases(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None
    ) -> Iterator[str]:
        """Yield the files that lie where the host keeps its databases."""
        raise NotImplementedError

    def transcripts_in(self, path: str) -> list[str] | None:
        """Return the sessions of a database, those of subagents included."""
        if self.queries.host_of(path) != self.host:
            return None
        return [os.path.join(path, session_id) for session_id in self.queries.session_ids(path)]

    def find_stored(self, path: str) -> StoredTranscript | None:
        """Return a session of a database."""
        file, session_id = split(path)
        if self.queries.host_of(file) != self.host:
            return None
        found = self.queries.size_and_change(file, session_id)
        if found is None:
            return None
        return StoredTranscript(self.queries.session_lines(file, session_id), *found)

    def subagent_transcripts(self, path: str) -> Iterator[str]:
        """Yield the sessions that a session, or a subagent of it, has launched."""
        if file_of(path) is None:
            return
        file, session_id = split(path)
        try:
            found = self.queries.subagent_ids(file, session_id)
        except ValueError:
            return
        for subagent_id in found:
            yield os.path.join(file, subagent_id)

    def read_last_reading(
        self, path: str, *, is_subagent: bool, call_id: str | None = None
    ) -> LastReading:
        """Return what the end of a session says, by reading all of it."""
        lines = self.queries.session_lines(*split(path))
        with StoredTranscript(lines, 0, 0).open() as stream:
            return last_reading_in(self.read_transcript(bounded_lines(stream)))

    def transcript_files(
        self, environ: Mapping[str, str], on_error: Callable[[OSError], None] | None = None
    ) -> Iterator[str]:
        """Yield the sessions of every database; one of an unknown form is an error."""
        for path in self.databases(environ, on_error):
            problem: OSError | ValueError
            try:
                found = self.transcripts_in(path)
            except (OSError, ValueError) as error:
                found, problem = None, error
            else:
                problem = ValueError(f"its format is no known one of {self.host}: nothing was read")
            if found is None and on_error is not None:
                if not isinstance(problem, OSError):
                    problem = OSError(errno.EIO, str(problem), path)
                on_error(problem)
            yield from found or ()


def split(path: str) -> tuple[str, str]:
    """Return the database and the session of a transcript's name.

    Raises:
        ValueError: It names none.
    """
    database, session_id = os.path.split(path)
    if not database or not session_id:
        raise ValueError(f"{path} names no session in a database")
    return database, session_id
