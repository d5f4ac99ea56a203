"""Finds the recordings below a path, and reads them record by record. Nothing is guessed."""

from __future__ import annotations

import codecs
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ultramon.context.provider_usage import usage_from_response
from ultramon.hosts.transcripts.files import files_below
from ultramon.hosts.transcripts.jsonl import (
    bounded_lines,
    decode_object,
    read_lines,
    text_or_none,
    token_count,
)
from ultramon.hosts.transcripts.records import Content, Record, Report
from ultramon.recordings.packed import is_read_on, open_recording, plain_name
from ultramon.recordings.stored import stamp_of, transcripts_in
from ultramon.system.timestamps import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ultramon.hosts.port import Host

JSON_LINES = "json-lines"
TEXT = "text"

HEAD_BYTES = 64 * 1024
"""Enough of a file to know what wrote it."""
_TEXT_CHUNK_BYTES = 16 * 1024
_JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
_MAX_FILE_SOURCES = 24


class Recording(NamedTuple):
    """The files of one agent.

    Attributes:
        id: ``<session>`` or ``<session>.<agent>`` where the recording says so, else its name;
            free text.
        kind: Name of the host that wrote it, `JSON_LINES` or `TEXT`.
        paths: The files in the order they are read; several only for a directory of text.
        model: The model as asked for, None when the beginning does not say.
    """

    id: str
    kind: str
    paths: tuple[str, ...]
    model: str | None = None


class Skipped(NamedTuple):
    """A file that is no recording."""

    path: str
    reason: str


class Found(NamedTuple):
    """The files below some paths."""

    recordings: list[Recording]
    skipped: list[Skipped]


def find_recordings(paths: Iterable[str]) -> Found:
    """Find the recordings in files and directories, sorted by path within each.

    With a session come its subagents. A directory that holds recordings gives each of
    them; one that holds none is taken as text which one agent reads, file by file. Hidden files
    and symbolic links in a directory are passed over.

    Args:
        paths: Existing files and directories.
    """
    found = Found([], [])
    seen: set[str] = set()
    for path in paths:
        is_directory = os.path.isdir(path)
        files = files_of(path)
        recognised = {file: _recognise(file) for file in files}
        texts = []
        for file, one in recognised.items():
            # One file may be named twice, or lie below two of the paths.
            real = os.path.realpath(file)
            if real in seen:
                continue
            seen.add(real)
            if isinstance(one, Skipped):
                found.skipped.append(one)
            elif is_directory and one.kind == TEXT:
                texts.append(file)
            else:
                found.recordings.append(one)
        if any(isinstance(one, Recording) and one.kind != TEXT for one in recognised.values()):
            reason = "text beside recordings: name it to replay it"
            found.skipped.extend(Skipped(file, reason) for file in texts)
        elif texts:
            name = os.path.basename(os.path.abspath(path)) or path
            found.recordings.append(Recording(name, TEXT, tuple(texts)))
    return found


def files_of(path: str, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
    """Yield the files below a directory; of a session's transcript also those of its subagents.

    A file that holds several transcripts gives each of them.

    Args:
        path: A file or a directory.
        on_error: Called for each folder that cannot be listed, and each file that holds several
            transcripts and is of a version that is not known.
    """
    if os.path.isdir(path):
        for file in files_below(path, on_error=on_error):
            yield from _several_in(file, on_error) or [file]
    else:
        several = _several_in(path, on_error)
        yield from several or [path]
        with suppress(OSError, ValueError):  # reading the session's own says what is wrong
            if not several and stamp_of(path, follow_links=True) is not None:
                with _open(path) as stream:
                    host = host_of(stream.read(HEAD_BYTES))
                if host is not None:
                    yield from host.transcripts.subagent_transcripts(path)


def _several_in(path: str, on_error: Callable[[OSError], None] | None) -> list[str]:
    try:
        return transcripts_in(path) if stamp_of(path, follow_links=True) else []
    except OSError:
        return []  # reading the file itself says what is wrong
    except ValueError as error:
        if on_error is not None:
            on_error(OSError(errno.EIO, str(error), path))
        return []


def _recognise(path: str) -> Recording | Skipped:
    try:
        # Asked before opening: a pipe without a writer would block for ever.
        if stamp_of(path, follow_links=True) is None:
            return Skipped(path, "not a regular file")
        with _open(path) as stream:
            head = stream.read(HEAD_BYTES)
            return _recognise_head(path, head)
    except OSError as error:
        return Skipped(path, f"cannot be read: {error.strerror}")
    except ValueError as error:
        return Skipped(path, str(error))


def _open(path: str) -> BinaryIO:
    # A recording that somebody names may be a link; one that cannot be read at once may not.
    return open_recording(path) if is_read_on(path) else open(path, "rb")


def _recognise_head(path: str, head: bytes) -> Recording | Skipped:
    if not head:
        return Skipped(path, "empty")
    name = plain_name(path)
    host = host_of(head)
    if host is not None:
        with _open(path) as stream:
            identity = host.transcripts.identify_file(path, bounded_lines(stream))
        if identity is None:
            return Recording(name, host.name, (path,))
        return Recording(identity.qualified_id, host.name, (path,), identity.model)
    first = _first_objects(head)
    if first and (isinstance(first[0].get("text"), str) or isinstance(first[0].get("usage"), dict)):
        return Recording(name, JSON_LINES, (path,), text_or_none(first[0].get("model")))
    if len(first) > 1 or path.endswith(_JSON_LINES_SUFFIXES):
        keys = ", ".join(key[:40] for key in list(first[0])[:5]) if first else "none"
        return Skipped(path, f"JSON lines of an unknown kind (keys of the first: {keys})")
    if b"\0" in head:
        transcripts_in(path)  # says so where a database is of a version that is not known
        return Skipped(path, "not text")
    try:
        # The head may end within a character, which an incremental decoder allows.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return Skipped(path, "not UTF-8 text")
    return Recording(os.path.basename(path), TEXT, (path,))


def host_of(head: bytes) -> Host | None:
    """Return the host whose transcripts begin like this; None = no host knows it.

    Args:
        head: The first `HEAD_BYTES` of a file, or all of it.
    """
    from ultramon.hosts.registry import find_hosts

    return next(
        (host for host in find_hosts().usable if host.transcripts.looks_like_transcript(head)), None
    )


def _first_objects(head: bytes) -> list[dict[str, Any]]:
    """Return up to two objects that open a file of JSON lines; a long first line may be cut."""
    objects: list[dict[str, Any]] = []
    lines = [line for line in head.split(b"\n") if line.strip()]
    for line in lines[:2]:
        try:
            objects.append(decode_object(line))
        except ValueError:
            break
    # A first line longer than the head cannot be decoded; its first key says what it is.
    is_cut = not objects and lines and len(lines[0]) >= HEAD_BYTES - 1
    if is_cut and lines[0].lstrip().startswith((b'{"text":"', b'{"text": "')):
        return [{"text": ""}]
    return objects


def read_records(recording: Recording) -> Iterator[Record]:
    """Yield the records of one recording, holding no more than one line or piece of text.

    Raises:
        OSError: A file vanished or cannot be read on.
    """
    if recording.kind == TEXT:
        yield from _read_texts(recording.paths)
        return
    with _open(recording.paths[0]) as stream:
        lines = bounded_lines(stream)
        if recording.kind == JSON_LINES:
            yield from read_lines(lines, _read_json_line, lambda line: False)
        else:
            from ultramon.hosts.registry import find_host

            yield from find_host(recording.kind).transcripts.read_transcript(lines)


def _read_texts(paths: tuple[str, ...]) -> Iterator[Record]:
    for path in paths:
        # A window that is full of hundreds of files is better understood by their kinds.
        by_name = len(paths) <= _MAX_FILE_SOURCES
        source = os.path.basename(path) if by_name else os.path.splitext(path)[1] or "no suffix"
        # A character may lie across two pieces.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with open(path, "rb") as stream:
            while chunk := stream.read(_TEXT_CHUNK_BYTES):
                text = decoder.decode(chunk)
                if text:
                    yield Content(text, f"file:{source}", None)


def _read_json_line(entry: dict[str, Any]) -> Iterable[Record]:
    at = _time(entry)
    records: list[Record] = []
    if isinstance(entry.get("usage"), dict):
        records.append(_report(entry, at))
    text = entry.get("text")
    if isinstance(text, str) and text:
        records.append(Content(text, text_or_none(entry.get("source")) or "text", at))
    elif not records and text != "":
        raise ValueError("neither text nor usage")
    return records


def _report(entry: dict[str, Any], at: float | None) -> Report:
    usage = usage_from_response(entry)
    if usage is None:
        raise ValueError("its usage has no tokens of one response")
    counts = usage._asdict()
    return Report(
        message_id=None,
        model=usage.model,
        requested_model=usage.model,
        input_tokens=token_count(counts, "input_tokens"),
        cache_read_tokens=token_count(counts, "cache_read_tokens"),
        cache_creation_tokens=token_count(counts, "cache_creation_tokens"),
        output_tokens=token_count(counts, "output_tokens"),
        at=at,
        cache_in_input=usage.cache_in_input,
    )


def _time(entry: dict[str, Any]) -> float | None:
    given = entry.get("at", entry.get("timestamp"))
    if isinstance(given, int | float) and not isinstance(given, bool):
        # Larger numbers are milliseconds, which are not guessed at.
        return float(given) if 0 <= given < 1e11 else None
    return parse_time(given)
