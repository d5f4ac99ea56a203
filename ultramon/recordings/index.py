"""Summaries of transcripts, kept so that a file is read once, and where it grew from there on.

One SQLite file in the user's cache directory. It holds nothing that the transcripts do not, so that
a broken one is made anew.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from ultramon.errors import ConfigurationError, StateError
from ultramon.hosts.registry import find_host
from ultramon.hosts.transcripts.jsonl import bounded_lines, read_lines, whole_lines
from ultramon.hosts.transcripts.stored import file_of
from ultramon.recordings.copies import copied_keys
from ultramon.recordings.database import open_database
from ultramon.recordings.packed import damage_of, is_read_on, open_recording, plain_name
from ultramon.recordings.recordings import HEAD_BYTES, host_of
from ultramon.recordings.stored import stamp_of
from ultramon.recordings.summary import Summarizer
from ultramon.recordings.transcript_summary import FilledWindow, TranscriptSummary
from ultramon.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ultramon.hosts.port import Host
    from ultramon.hosts.transcripts.jsonl import TranscriptReader

_FORMAT = 11
# Another version of ultramon may read more out of the same lines.
_VERSION = zlib.crc32(f"{_FORMAT} {__version__}".encode()) & 0x7FFFFFFF
_SCHEMA = """
    CREATE TABLE files (
        path BLOB PRIMARY KEY, inode INTEGER, size INTEGER, mtime_ns INTEGER, summary TEXT
    ) WITHOUT ROWID;
    CREATE TABLE memories (
        path BLOB PRIMARY KEY, offset INTEGER, check_sum INTEGER, memory BLOB
    ) WITHOUT ROWID;
    CREATE TABLE results (key TEXT PRIMARY KEY, result BLOB);
"""
# A sum over the whole file would take as long as reading it.
_CHECKED_BYTES = 4096
# A commit waits for the disk, so files share one.
_FILES_PER_TRANSACTION = 32
_MOST_RESULTS = 8


class Unreadable(NamedTuple):
    """A file that could not be read."""

    path: str
    reason: str


class Summarized(NamedTuple):
    """A transcript and what it adds up to."""

    path: str
    summary: TranscriptSummary


def index_path() -> str:
    """Return where the index of this user is.

    Raises:
        ConfigurationError: This user has no home directory.
    """
    from platformdirs import user_cache_dir

    try:
        return os.path.join(user_cache_dir("ultramon", appauthor=False), "transcripts.sqlite3")
    except RuntimeError as error:
        allowed = "an absolute path where the user has no home directory"
        raise ConfigurationError("XDG_CACHE_HOME", None, allowed, "environment") from error


class TranscriptIndex:
    """Summaries by path; a context manager.

    Any number of processes may use one index at the same time: each transaction stores whole rows,
    and two that read the same file store the same facts.

    Args:
        path: The file; made, with its directory, where it is missing. None = keep nothing.
        of_few: Whether only few of its files will be asked for: what is known of each is then
            looked up by itself, instead of all at once.

    Attributes:
        problem: Why nothing is kept, or None.
    """

    def __init__(self, path: str | None, *, of_few: bool = False) -> None:
        self.problem: str | None = None
        self._of_few = of_few
        self._window: FilledWindow | None = None
        """Of the file that was read last."""
        self._waiting: list[tuple[_Stamp, _Read]] = []
        self._connection: sqlite3.Connection | None = None
        if path is not None:
            try:
                self._connection = open_database(path, _VERSION, _SCHEMA, replaces=True)
            except StateError as error:
                self.problem = f"{error.path}: {error.reason}"
            except (OSError, sqlite3.Error) as error:
                self.problem = f"{path}: {error}"
        # Of few, the known ones are asked for one by one.
        self._files: dict[str, tuple[_Stamp, str]] | None = {} if of_few else None

    @property
    def _known(self) -> dict[str, tuple[_Stamp, str]]:
        if self._files is None:
            self._files = self._load()
        return self._files

    def __enter__(self) -> TranscriptIndex:
        return self

    def __exit__(self, *_error: object) -> None:
        self._store()
        if self._connection is not None:
            self._connection.close()

    def summarize(
        self,
        paths: Iterable[str],
        on_read: Callable[[str], None] = lambda path: None,
        *,
        names_others: bool = False,
    ) -> Iterator[Summarized | Unreadable]:
        """Yield the summary of every file that is a transcript of a known host.

        A last line without its end is not read before it is whole.

        Args:
            paths: Files; those that are no transcripts are passed over.
            on_read: Called before a file is read, which takes time.
            names_others: Whether a file that is no transcript counts as one that cannot be read:
                where a host keeps nothing else.
        """
        for path in paths:
            try:
                found = stamp_of(path)
                if found is None:
                    continue
                stamp = _Stamp(path, *found)
                summary = self._kept(stamp)
                if summary is _UNKNOWN:
                    on_read(path)
                    summary = self._read(stamp)
            except OSError as error:
                yield Unreadable(path, error.strerror or str(error))
                continue
            except ValueError as error:
                yield Unreadable(path, str(error))
                continue
            if isinstance(summary, TranscriptSummary):
                yield Summarized(path, summary)
            elif names_others:
                yield Unreadable(path, _UNKNOWN_FORM if stamp.size else "empty")

    def count_copies_once(
        self,
        found: Iterable[Summarized],
        beside: Iterable[Summarized] = (),
        known: Callable[[TranscriptSummary], int] = lambda summary: 0,
    ) -> Iterator[Summarized | Unreadable]:
        """Yield the same transcripts, each without what it has copied from another one.

        Args:
            found: Transcripts as `summarize` yields them.
            beside: Others that they may be copied from, which are not yielded.
            known: Returns how many of its first replies a transcript is known to have copied from
                one that may be gone.
        """
        found = list(found)
        copied = copied_keys((one.path, one.summary) for one in (*beside, *found))
        for one in found:
            count = max(copied.get(one.path, 0), known(one.summary))
            if count == one.summary.copied:
                yield one
                continue
            try:
                # The size is taken anew: the file may have grown since it was summed up.
                found_now = stamp_of(one.path)
                summary = (
                    None if found_now is None else self._read(_Stamp(one.path, *found_now), count)
                )
            except (OSError, ValueError) as error:
                yield Unreadable(one.path, str(error))
                continue
            if summary is not None:
                yield Summarized(one.path, summary)

    def kept(self, paths: Iterable[str]) -> Iterator[Summarized]:
        """Yield what is known of files without reading any."""
        for path in paths:
            known = self._known_of(path)
            summary = None if known is None else self._kept(known[0])
            if isinstance(summary, TranscriptSummary):
                yield Summarized(path, summary)

    def result(self, key: str) -> bytes | None:
        """Return what was kept under a key, None without."""
        if self._connection is None:
            return None
        try:
            row = self._connection.execute(
                "SELECT result FROM results WHERE key = ?", (key,)
            ).fetchone()
            return None if row is None else zlib.decompress(row[0])
        except (sqlite3.Error, zlib.error):
            return None

    def keep_result(self, key: str, result: bytes) -> None:
        """Keep what was made of the transcripts; of a few the oldest is forgotten."""
        if self._connection is None:
            return
        with suppress(sqlite3.Error), self._connection:
            run = self._connection.execute
            run("REPLACE INTO results VALUES (?, ?)", (key, zlib.compress(result, 1)))
            kept = "SELECT rowid FROM results ORDER BY rowid DESC LIMIT ?"
            run(f"DELETE FROM results WHERE rowid NOT IN ({kept})", (_MOST_RESULTS,))

    def present_window(self, path: str, max_bytes: int) -> FilledWindow | None:
        """Return what fills a transcript's window now; None = it is no transcript.

        Args:
            path: The transcript.
            max_bytes: Of a longer one nothing is read.

        Raises:
            OSError: It cannot be read.
            ValueError: It is packed, and damaged.
        """
        found = stamp_of(path)
        if found is None or found[1] > max_bytes:
            return None
        stamp, known = _Stamp(path, *found), self._known_of(path)
        self._read(stamp)
        if known is not None and known[0] == stamp:
            # Kept already: a screen that asks each second must not wait for the disk.
            self._waiting.pop()
        return self._window

    def forget_missing(self) -> None:
        """Forget the files that are no longer there."""
        gone = [
            (os.fsencode(path),)
            for path in self._known
            # A transcript within a database is there as long as the database is.
            if not os.path.lexists(file_of(path) or path)
        ]
        if gone and self._connection is not None:
            self._store()
            with suppress(sqlite3.Error), self._connection:
                for table in ("files", "memories"):
                    self._connection.executemany(f"DELETE FROM {table} WHERE path = ?", gone)

    def _load(self) -> dict[str, tuple[_Stamp, str]]:
        if self._connection is None:
            return {}
        query = "SELECT path, inode, size, mtime_ns, summary FROM files"
        try:
            rows = self._connection.execute(query).fetchall()
            stamps = [_Stamp(os.fsdecode(path), *stamp) for path, *stamp, _ in rows]
            return {stamp.path: (stamp, row[-1]) for stamp, row in zip(stamps, rows, strict=True)}
        except sqlite3.Error as error:
            self._give_up(error)
            return {}

    def _known_of(self, path: str) -> tuple[_Stamp, str] | None:
        """Return the stamp and summary that are known of a file; None = nothing."""
        if self._of_few and path not in self._known and self._connection is not None:
            query = "SELECT inode, size, mtime_ns, summary FROM files WHERE path = ?"
            try:
                row = self._connection.execute(query, (os.fsencode(path),)).fetchone()
            except sqlite3.Error as error:
                self._give_up(error)
                return None
            if row is not None:
                self._known[path] = _Stamp(path, *row[:3]), row[3]
        return self._known.get(path)

    def _give_up(self, error: sqlite3.Error) -> None:
        """Continue without an index."""
        self.problem = f"the index is not kept: {error}"
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _kept(self, stamp: _Stamp) -> TranscriptSummary | object | None:
        known = self._known_of(stamp.path)
        if known is None or known[0] != stamp:
            return _UNKNOWN
        try:
            kept = json.loads(known[1])
            return None if kept is None else TranscriptSummary(**kept)
        except (ValueError, TypeError):
            return _UNKNOWN

    def _read(self, stamp: _Stamp, copied: int = 0) -> TranscriptSummary | None:
        if is_read_on(stamp.path):
            read = _read_packed(stamp.path, copied)
        else:
            with open_recording(stamp.path) as stream:
                # With another number of copied replies each sum is another one.
                grown = None if copied else self._read_on(stamp, stream)
                read = grown or _read_whole(stamp.path, stream, copied)
        self._window = read.window
        self._waiting.append((stamp, read))
        if len(self._waiting) >= _FILES_PER_TRANSACTION:
            self._store()
        return read.summary

    def _read_on(self, stamp: _Stamp, stream: BinaryIO) -> _Read | None:
        """Read what was added to a file; None = it is not the file that was read, grown."""
        known = self._known_of(stamp.path)
        if known is None or self._connection is None:
            return None
        before = known[0]
        if before.inode != stamp.inode or before.size > stamp.size:
            return None
        query = "SELECT offset, check_sum, memory FROM memories WHERE path = ?"
        try:
            row = self._connection.execute(query, (os.fsencode(stamp.path),)).fetchone()
        except sqlite3.Error as error:
            self._give_up(error)
            return None
        if row is None or row[1] != _check_sum(stream, row[0]):
            return None
        try:
            kept = json.loads(zlib.decompress(row[2]))
            host = find_host(kept["host"])
            reader = host.transcripts.open_reader(kept["reader"])
            # Texts before the first reply are weighed anew once it names the model.
            if reader is None or kept["summary"]["model"] is None:
                return None
            summarizer = Summarizer(TranscriptSummary(**kept["summary"]), kept["summarizer"])
        except (zlib.error, ValueError, TypeError, LookupError, ConfigurationError):
            return None
        stream.seek(row[0])
        return _continue(host, reader, summarizer, stream)

    def _store(self) -> None:
        waiting, self._waiting = self._waiting, []
        if self._connection is None or not waiting:
            return
        files, memories = [], []
        for stamp, read in waiting:
            path = os.fsencode(stamp.path)
            summary = None if read.summary is None else read.summary.to_json()
            files.append((path, *stamp[1:], json.dumps(summary)))
            memory = None if read.memory is None else zlib.compress(read.memory, 1)
            memories.append((path, read.offset, read.check_sum, memory))
        try:
            with self._connection:
                self._connection.executemany("REPLACE INTO files VALUES (?, ?, ?, ?, ?)", files)
                self._connection.executemany("REPLACE INTO memories VALUES (?, ?, ?, ?)", memories)
        except sqlite3.Error as error:
            self._give_up(error)


class _Stamp(NamedTuple):
    """What changes when a file does."""

    path: str
    inode: int
    size: int
    mtime_ns: int


class _Read(NamedTuple):
    """What reading a file to its last whole line gave."""

    summary: TranscriptSummary | None
    offset: int
    check_sum: int
    memory: bytes | None
    window: FilledWindow | None = None


_UNKNOWN = object()
_UNKNOWN_FORM = "of a form that ultramon does not know"


def _read_whole(path: str, stream: BinaryIO, copied: int) -> _Read:
    stream.seek(0)
    host = host_of(stream.read(HEAD_BYTES))
    if host is None:
        return _Read(None, 0, 0, None)
    stream.seek(0)
    summary = _summary_of(host, path, stream)
    summary.copied = copied
    stream.seek(0)
    reader = host.transcripts.open_reader()
    summarizer = Summarizer(summary)
    if reader is not None:
        return _continue(host, reader, summarizer, stream)
    for record in host.transcripts.read_transcript(whole_lines(stream)):
        summarizer.feed(record)
    return _finish(summarizer)


def _summary_of(host: Host, path: str, stream: BinaryIO) -> TranscriptSummary:
    """Return a summary that says whose transcript it is, and nothing else yet."""
    identity = host.transcripts.identify_file(path, bounded_lines(stream))
    if identity is None:
        return TranscriptSummary(host.name, plain_name(path))
    return TranscriptSummary(
        host.name,
        identity.session_id,
        identity.agent_id,
        identity.project,
        identity.model,
        copied_from=identity.copied_from,
        began_at=identity.began_at,
    )


def _read_packed(path: str, copied: int) -> _Read:
    """Read a transcript as a whole that cannot be read from the middle on."""
    try:
        with open_recording(path) as stream:
            host = host_of(stream.read(HEAD_BYTES))
        if host is None:
            return _Read(None, 0, 0, None)
        with open_recording(path) as stream:
            summary = _summary_of(host, path, stream)
        summary.copied = copied
        summarizer = Summarizer(summary)
        with open_recording(path) as stream:
            for record in host.transcripts.read_transcript(bounded_lines(stream)):
                summarizer.feed(record)
    except Exception as error:
        if (damage := damage_of(error)) is None:
            raise
        raise ValueError(damage) from error
    return _finish(summarizer)


def _continue(
    host: Host, reader: TranscriptReader, summarizer: Summarizer, stream: BinaryIO
) -> _Read:
    for record in read_lines(whole_lines(stream), reader.read, reader.is_ignorable):
        summarizer.feed(record)
    offset = stream.tell()
    # Kept before the held records are added: a later line may still correct them.
    kept = {
        "host": host.name,
        "reader": reader.memory(),
        "summary": summarizer.to_json(),
        "summarizer": summarizer.memory(),
    }
    memory = json.dumps(kept).encode()
    for record in reader.held:
        summarizer.feed(record)
    return _finish(summarizer, offset, _check_sum(stream, offset), memory)


def _finish(
    summarizer: Summarizer, offset: int = 0, check_sum: int = 0, memory: bytes | None = None
) -> _Read:
    window = summarizer.present_window()
    return _Read(summarizer.finish(), offset, check_sum, memory, window)


def _check_sum(stream: BinaryIO, offset: int) -> int:
    """Return a sum over the bytes before an offset, by which a file is known again."""
    start = max(0, offset - _CHECKED_BYTES)
    stream.seek(start)
    # With the offset: equal bytes at another place are another file.
    return zlib.crc32(stream.read(offset - start), offset & 0xFFFFFFFF)
