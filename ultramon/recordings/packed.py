"""Recordings that a host or a person has compressed, or that lie in one file with others.

Codex packs rollouts that were not used for days. Zstandard comes with Python from 3.14 on, before
that with the extra ``zstd``.
"""

from __future__ import annotations

import io
import os
from typing import BinaryIO, cast

from ultramon.hosts.transcripts.files import PACKED_SUFFIXES
from ultramon.hosts.transcripts.jsonl import open_transcript
from ultramon.hosts.transcripts.stored import file_of
from ultramon.recordings.stored import find_stored

_MAX_WINDOW_BYTES = 128 * 1024 * 1024
"""Of memory for one file, whatever it asks for."""


class PackedError(ValueError):
    """A packed file that cannot be read; its message says why, and what to do."""


def is_packed(path: str) -> bool:
    """Return whether a file's name says that it is compressed."""
    return path.endswith(PACKED_SUFFIXES)


def is_read_on(path: str) -> bool:
    """Return whether a recording can only be read from its beginning on, as one that is packed."""
    return is_packed(path) or file_of(path) is not None


def plain_name(path: str) -> str:
    """Return the name of a recording without its folder and without what its packing added."""
    name = os.path.basename(path)
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return os.path.splitext(name)[0]


def open_recording(path: str) -> BinaryIO:
    """Open a recording for reading from its beginning; see `is_read_on`.

    Raises:
        OSError: It is not there, or not readable.
        ValueError: It is no regular file, or is packed in a way that cannot be read here.
    """
    stored = find_stored(path)
    if stored is not None:
        return stored.open()
    fd, _ = open_transcript(path)
    stream = open(fd, "rb")  # noqa: SIM115 - the caller closes it
    if not is_packed(path):
        return stream
    try:
        return _Unpacked(_raw(path, stream), stream)
    except PackedError:
        stream.close()
        raise


class _Unpacked(io.BufferedReader):
    """What a packed file holds; closing it closes the file, which not every unpacker does."""

    def __init__(self, raw: object, source: BinaryIO) -> None:
        super().__init__(cast("io.RawIOBase", raw))
        self._source = source

    def close(self) -> None:
        super().close()
        self._source.close()


def _raw(path: str, stream: BinaryIO) -> object:
    if path.endswith(".gz"):
        import gzip

        return gzip.GzipFile(fileobj=stream)
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return _zstandard(stream)
    return zstd.ZstdFile(stream)


def _zstandard(stream: BinaryIO) -> object:
    try:
        import zstandard
    except ImportError as error:
        from ultramon.installed import install_command

        raise PackedError(f"compressed: {install_command('zstd')} to read it") from error
    unpacker = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    return unpacker.stream_reader(stream, read_across_frames=True)


def damage_of(error: BaseException) -> str | None:
    """Return what is wrong with a packed file, where that is what an error says; else None."""
    # By name: the error's class belongs to one of two libraries, of which one is installed at most.
    name = type(error).__name__
    is_damage = name in ("ZstdError", "BadGzipFile") or isinstance(error, EOFError)
    return "compressed, and damaged" if is_damage else None
