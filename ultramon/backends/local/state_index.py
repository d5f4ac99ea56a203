"""What a list read from the states, kept so that the next list reads only what changed since.

Files in the ``index`` folder of a state directory, which hold nothing that the states do not. An
entry counts only as long as its state file has the same times, inode, size and mode.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
from binascii import crc32
from operator import attrgetter
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon import __version__
from ultramon.backends.base import StoredAgent
from ultramon.errors import StateError
from ultramon.state.record import SCHEMA
from ultramon.state.record_head import HEAD_FIELDS, restore_head
from ultramon.system.files import (
    close_quietly,
    create_private,
    delete_quietly,
    make_private_directory,
    open_private_file,
)
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend
    from ultramon.backends.local.state_files import Mark, StateDirectory
    from ultramon.state.record import StateRecord

    Seen = Mapping[str, tuple[Any, bool]]
    # The mark, the head, and of the text its offset, length and checksum.
    Row = tuple[Mark, tuple[Any, ...] | None, int, int, int]

HEADS = "heads"
"""The name of the index for lists that show next to nothing of most agents."""
TEXTS = "texts"
"""The name of the index for lists that show whole states."""
FOLDER = "index"
MIN_AGENTS = 256
"""A smaller directory gets no index: reading it takes no longer than one looks."""
MAX_TEXT_BYTES = 1 << 28
_MAX_TABLE_BYTES = 1 << 26
# An index is written again when so large a share of the states is new to it: written each time it
# would cost more than it saves.
_MIN_SHARE = 1 / 16
# A state replaced twice within a tick of the file system's clock may look as before.
_RACY_NANOSECONDS = 2_000_000_000
_ORPHAN_SECONDS = 60.0
# Another version may read more out of a state; another Python has other tables.
_IDENTITY = f"ultramon index 1 {__version__} {sys.implementation.cache_tag}\n".encode()
_FOOTER = Struct("<QQI")
_UNWRITTEN = (-1, 0, 0)
_WITHOUT_TEXT = (-2, 0, 0)
_head_of = attrgetter(*HEAD_FIELDS)


class IndexedLook(NamedTuple):
    """The agents of a run, as a first look finds them."""

    marks: dict[str, tuple[Any, bool]]
    """For the next look, as `Backend.changes` keeps them."""
    agents: dict[str, StoredAgent]
    heartbeats: Mapping[str, float]
    """As in `Changes`."""
    restored: set[str]
    """The agents that were not read: only the heads of their records can be used."""


class StateIndex:
    """One index of a state directory; empty where there is none that can be used.

    Args:
        directory: The state directory; None = keep nothing.
        name: `HEADS` or `TEXTS`.
    """

    def __init__(self, directory: StateDirectory | None, name: str) -> None:
        self._path: str | None = None
        if directory is not None and hasattr(os, "pread"):  # not on Windows
            self._path = os.path.join(directory.path, FOLDER, name)
        self._settled_before_ns = time.time_ns() - _RACY_NANOSECONDS
        self._rows: dict[str, Row] = {}
        self._file: int | None = None
        self._writer: _Writer | None = None
        self._new: dict[str, tuple[Mark, StateRecord]] = {}
        self._texts: dict[str, tuple[int, int, int]] = {}
        if self._path is None:
            return
        try:
            self._load(self._path)
        except (OSError, StateError, StructError, EOFError, TypeError, ValueError):
            self.close()

    def __enter__(self) -> StateIndex:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _load(self, path: str) -> None:
        self._file, found = open_private_file(path)
        end = found.st_size - _FOOTER.size
        if end < 0 or os.pread(self._file, len(_IDENTITY), 0) != _IDENTITY:
            raise ValueError("no index of this version")
        offset, length, check_sum = _FOOTER.unpack(os.pread(self._file, _FOOTER.size, end))
        if length > _MAX_TABLE_BYTES or offset + length != end:
            raise ValueError("not whole")
        table = os.pread(self._file, length, offset)
        if crc32(table) != check_sum:
            raise ValueError("not what was written")
        self._rows = marshal.loads(table)

    def close(self) -> None:
        """Forget all entries, and what was not finished."""
        self._rows = {}
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
        if self._file is not None:
            close_quietly(self._file)
            self._file = None

    def look(
        self,
        backend: Backend,
        run: str | None,
        *,
        with_texts: bool = False,
        with_ended: bool = True,
    ) -> IndexedLook:
        """Look at the agents of a run; a state that has an entry is not read.

        Args:
            backend: The store of the state directory.
            run: As for `Backend.changes`.
            with_texts: The agents' texts will be asked for: an entry without one does not count.
            with_ended: Those of ended agents too.
        """
        marks, agents = self._restore(run, with_texts=with_texts, with_ended=with_ended)
        changes = backend.changes(run, marks)
        for agent_id in changes.removed:
            agents.pop(agent_id, None)
        fresh = {agent.agent_id: agent for agent in changes.changed}
        restored = agents.keys() - fresh.keys()
        agents.update(fresh)
        self._begin(marks, {key: agent.record for key, agent in fresh.items() if agent.record})
        return IndexedLook(marks, agents, changes.heartbeats, restored)

    def _restore(
        self, run: str | None, *, with_texts: bool, with_ended: bool
    ) -> tuple[dict[str, tuple[Mark, bool]], dict[str, StoredAgent]]:
        """Return what a look would have left behind when the index was written."""
        marks: dict[str, tuple[Mark, bool]] = {}
        agents: dict[str, StoredAgent] = {}
        for agent_id, (mark, values, offset, _, _) in self._rows.items():
            if values is None:
                continue
            record = restore_head(values)
            wanted = run is None or run == record.run
            if with_texts and wanted and offset < 0 and (with_ended or record.active):
                continue
            marks[agent_id] = mark, wanted
            if wanted:
                agents[agent_id] = StoredAgent(agent_id, record, None)
        return marks, agents

    def text(self, agent_id: str) -> bytes | None:
        """Return the text stored with an entry; None where there is none that is whole."""
        row = self._rows.get(agent_id)
        if row is None or row[2] < 0 or self._file is None:
            return None
        _, _, offset, length, check_sum = row
        try:
            text = os.pread(self._file, length, offset)
        except OSError:
            return None
        return text if crc32(text) == check_sum else None

    def _begin(self, seen: Seen, fresh: Mapping[str, StateRecord]) -> None:
        """Forget the entries that no longer hold; begin a new index where that is worth its while.

        Args:
            seen: The marks as `Backend.changes` left them.
            fresh: The records that were read, by agent.
        """
        self._rows = {
            agent_id: row
            for agent_id, row in self._rows.items()
            if agent_id in seen and seen[agent_id][0] == row[0]
        }
        new = {
            agent_id: record
            for agent_id, record in fresh.items()
            if self._is_new(agent_id, seen[agent_id][0])
        }
        if self._path is None or len(seen) < MIN_AGENTS or len(new) < len(seen) * _MIN_SHARE:
            return
        try:
            self._writer = _Writer(self._path)
        except (OSError, StateError):
            return
        self._new = {agent_id: (seen[agent_id][0], record) for agent_id, record in new.items()}

    def _is_new(self, agent_id: str, mark: object) -> bool:
        row = self._rows.get(agent_id)
        # The mark of a state that the system refused to read is a text.
        return (
            (row is None or (row[1] is not None and row[2:] == _UNWRITTEN))
            and isinstance(mark, tuple)
            and max(mark[:2]) < self._settled_before_ns
        )

    def add(self, agent_id: str, text: bytes | None) -> None:
        """Enter the text of an agent; None = it has none that could be kept."""
        if self._writer is not None:
            self._texts[agent_id] = self._writer.add(text)

    def finish(self) -> None:
        """Put the new index in its place, if there is one and the system lets us."""
        if self._writer is None:
            return
        rows: dict[str, Row] = {}
        for agent_id, row in self._rows.items():
            if row[2] >= 0:
                self.add(agent_id, self.text(agent_id))
            rows[agent_id] = (*row[:2], *self._texts.get(agent_id, row[2:]))
        for agent_id, (mark, record) in self._new.items():
            text = self._texts.get(agent_id, _UNWRITTEN)
            rows[agent_id] = (mark, _head_values(record), *text)
        self._writer.finish(marshal.dumps(rows))
        self._writer = None


def _head_values(record: StateRecord) -> tuple[Any, ...] | None:
    """Return the head of a record; None of one that is read each time."""
    try:
        is_plain = record.schema == SCHEMA and record.pending is None
        return _head_of(record) if is_plain else None
    except StateError:
        return None  # broken behind its head


class _Writer:
    """Writes a new index beside the old one.

    Args:
        path: Of the index.
    """

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(path)
        make_private_directory(folder)
        _delete_orphans(folder)
        self._path = path
        self._temporary = f"{path}.{random_hex(6)}.tmp"
        self._offset = 0
        self._file = os.fdopen(create_private(self._temporary), "wb", buffering=1 << 18)
        self._write(_IDENTITY)

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError:
            self.abandon()
        self._offset += len(data)

    def add(self, text: bytes | None) -> tuple[int, int, int]:
        """Write a text; return its offset, length and checksum."""
        if text is None or self._offset + len(text) > MAX_TEXT_BYTES or self._file.closed:
            return _WITHOUT_TEXT
        offset = self._offset
        self._write(text)
        return offset, len(text), crc32(text)

    def finish(self, table: bytes) -> None:
        """Write the table, and replace the old index."""
        if self._file.closed:
            return
        self._write(table + _FOOTER.pack(self._offset, len(table), crc32(table)))
        # Not synced: the checksums show what a power cut left.
        try:
            self._file.close()
            os.replace(self._temporary, self._path)
        except OSError:
            delete_quietly(self._temporary)

    def abandon(self) -> None:
        """Delete what was written so far."""
        try:
            self._file.close()
        except OSError:
            pass
        delete_quietly(self._temporary)


def delete_indexes(directory: StateDirectory) -> None:
    """Delete the indexes of a state directory; they are made again when they are wanted."""
    folder = os.path.join(directory.path, FOLDER)
    for name in (HEADS, TEXTS):
        delete_quietly(os.path.join(folder, name))
    _delete_orphans(folder)
    try:
        os.rmdir(folder)
    except OSError:
        pass


def _delete_orphans(folder: str) -> None:
    """Delete what killed writers left behind."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".tmp")]
    except OSError:
        return
    for name in names:
        path = os.path.join(folder, name)
        try:
            if time.time() - os.lstat(path).st_mtime > _ORPHAN_SECONDS:
                os.unlink(path)
        except OSError:
            continue
