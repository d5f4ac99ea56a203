"""Recordings that a client or a person has compressed, read as what they hold.

Codex packs rollouts that nobody has used for days. Zstandard comes with Python from 3.14 on, before
that with the extra ``zstd``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, cast

from ultramon.hosts.transcripts.files import PACKED_SUFFIXES
from ultramon.hosts.transcripts.jsonl import open_transcript

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_WINDOW_BYTES = 128 * 1024 * 1024
"""Of memory for one file, whatever it asks for."""


class PackedError(ValueError):
    """A packed file that cannot be read; its message says why, and what to do."""


def is_packed(path: str) -> bool:
    """Return whether a file's name says that it is compressed."""
    return path.endswith(PACKED_SUFFIXES)


def plain_name(path: str) -> str:
    """Return the name of a recording without its folder and without what its packing added."""
    name = os.path.basename(path)
    for suffix in PACKED_SUFFIXES:
        name = name.removesuffix(suffix)
    return os.path.splitext(name)[0]


def open_recording(path: str) -> BinaryIO:
    """Open a recording for reading from its beginning; a packed one can only be read on.

    Raises:
        OSError: It is not there, or not readable.
        ValueError: It is no regular file, or is packed in a way that cannot be read here.
    """
    fd, _ = open_transcript(path)
    stream = open(fd, "rb")  # noqa: SIM115 - the caller closes it
    if not is_packed(path):
        return stream
    try:
        return _unpacker(path)(stream)
    except PackedError:
        stream.close()
        raise


def _unpacker(path: str) -> Callable[[BinaryIO], BinaryIO]:
    if path.endswith(".gz"):
        import gzip

        return lambda stream: cast("BinaryIO", gzip.GzipFile(fileobj=stream))
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return _zstandard()
    return lambda stream: cast("BinaryIO", zstd.ZstdFile(stream))


def _zstandard() -> Callable[[BinaryIO], BinaryIO]:
    try:
        import zstandard
    except ImportError as error:
        raise PackedError("compressed: pip install 'ultramon[zstd]' to read it") from error
    import io

    def unpack(stream: BinaryIO) -> BinaryIO:
        reader = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).stream_reader(
            stream, read_across_frames=True
        )
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", reader)))

    return unpack


def damage_of(error: BaseException) -> str | None:
    """Return what is wrong with a packed file, where that is what an error says; else None."""
    name = type(error).__name__
    is_damage = name in ("ZstdError", "BadGzipFile") or isinstance(error, EOFError)
    return "compressed, and damaged" if is_damage else None
