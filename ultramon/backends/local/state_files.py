"""State files on disk: safe paths, locks, atomic replacement, bounded reads, quarantine.

Every writer of a state goes through `StateDirectory`; nothing else opens these files.
"""

from __future__ import annotations

import os
import time
from stat import S_ISREG

from ultramon.errors import (
    AgentNotFoundError,
    FencedError,
    InvalidAgentIdError,
    StateCorruptError,
    StateDirectoryError,
    StateError,
)
from ultramon.state.history_ring import FILE_BYTES, add_point, encode_point, pack, unpack
from ultramon.state.record import (
    StateRecord,
    decode_state,
    encode_request,
    encode_state,
    refuse_newer,
)
from ultramon.state.record_head import decode_head
from ultramon.system import compact_json
from ultramon.system.files import (
    NewFile,
    check_private,
    close_quietly,
    delete_file,
    delete_quietly,
    make_private_directory,
    open_private,
    read_private_file,
    refused,
    sync_directory,
)
from ultramon.system.ids import check_agent_id, random_hex
from ultramon.system.locks import Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    # Differs when a state does: of a file its times, inode, size and mode.
    Mark = Sequence[int]

STATES = "subagents"
ALERTS = "alerts"
"""The folder of alert memories, a file per agent."""
SUFFIXES = (".request", ".hist", ".json", ".hb", ".lock")
"""The suffixes of an agent's files, in the order of their deletion.

The state goes after what a next agent of that id must not find, should a kill come in between.
"""
KEPT_CORRUPT_FILES = 3
# A temporary file that is so old has no writer any more.
ORPHAN_SECONDS = 60.0
_HISTORY_READS = 3


def _is_kept(name: str, prefix: str) -> bool:
    # An agent may be called "a.json.corrupt-1": its files are no evidence about agent "a".
    return name.startswith(prefix) and not name.endswith(SUFFIXES)


class StateDirectory:
    """The state files under one directory, one agent a file.

    Args:
        path: The state directory; files lie in its ``subagents`` folder.
    """

    __slots__ = ("folder", "path")

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.folder = os.path.join(self.path, STATES)

    def prepare(self) -> None:
        """Create both directories where missing, and check them.

        Raises:
            StateDirectoryError: One of them is not safe to use.
        """
        make_private_directory(self.path)
        make_private_directory(self.folder)

    def file(self, agent_id: str, suffix: str = ".json") -> str:
        """Return the path of one of an agent's files, each with one of `SUFFIXES`.

        Raises:
            InvalidAgentIdError: The id may not become a file name.
        """
        return f"{self.folder}{os.sep}{check_agent_id(agent_id)}{suffix}"

    def scan(self) -> dict[str, Mark]:
        """Return a mark of every state file that changes with it, by agent.

        Opens none of them: one pass over the folder.

        Raises:
            StateDirectoryError: The directory is there and cannot be listed.
        """
        marks: dict[str, Mark] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    name = entry.name
                    if not name.endswith(".json") or name[0] == ".":
                        continue
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # pruned at this moment
                    # Each of these alone can be the same after a file was replaced.
                    marks[name[:-5]] = (
                        found.st_mtime_ns,
                        found.st_ctime_ns,
                        found.st_ino,
                        found.st_size,
                        found.st_mode,
                    )
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StateDirectoryError(self.folder, f"cannot be listed: {error.strerror}") from error
        return marks

    def list_ids(self) -> list[str]:
        """Return the ids that have a state file, readable or not, sorted.

        Raises:
            StateDirectoryError: The directory is there and cannot be listed.
        """
        return sorted(self.scan())

    def below(self, session_id: str) -> list[str]:
        """Return the ids of the subagents of a session that have a state file, sorted.

        By their names alone: among 5,000 agents this takes a tenth of what `list_ids` does.

        Raises:
            StateDirectoryError: As `list_ids`.
        """
        prefix = f"{session_id}."
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StateDirectoryError(self.folder, f"cannot be listed: {error.strerror}") from error
        ids = (name[:-5] for name in names if name.endswith(".json"))
        return sorted(name for name in ids if name.startswith(prefix))

    def read(self, agent_id: str) -> StateRecord:
        """Read one agent's state, as a reader.

        Raises:
            AgentNotFoundError: There is none.
            StateCorruptError: There is one and it cannot be read.
        """
        try:
            return self._read(agent_id)
        except OSError as error:
            raise self._unreadable(agent_id, error) from error

    def read_head(self, agent_id: str, mark: Mark | None) -> StateRecord:
        """Read one agent's state as `read` does, most of it only when it is used.

        See `ultramon.state.record_head.decode_head` for what that means.

        Args:
            agent_id: The agent.
            mark: As `scan` returned it, None where it did not.
        """
        is_regular = mark is not None and S_ISREG(mark[-1])
        try:
            return self._read(agent_id, decode_head, is_regular=is_regular)
        except OSError as error:
            raise self._unreadable(agent_id, error) from error

    def _unreadable(self, agent_id: str, error: OSError) -> StateCorruptError:
        return StateCorruptError(self.file(agent_id), f"cannot be read: {error.strerror}")

    def read_to_replace(self, agent_id: str) -> StateRecord:
        """Read one agent's state as its owner, who sets a corrupt one aside. Call inside the lock.

        Raises:
            AgentNotFoundError: There is none.
            StateCorruptError: It is no state.
            StateWriteError: The system refused to read it; it may be a good one.
        """
        try:
            return self._read(agent_id)
        except OSError as error:
            raise refused(self.file(agent_id), "cannot be read", error) from error

    def _read(
        self,
        agent_id: str,
        decode: Callable[[bytes, str], StateRecord] = decode_state,
        *,
        is_regular: bool = False,
    ) -> StateRecord:
        path = self.file(agent_id)
        try:
            data, _ = read_private_file(path, is_regular=is_regular)
        except FileNotFoundError:
            raise AgentNotFoundError(agent_id) from None
        record = decode(data, path)
        # E.g. a file that was copied under another name.
        if record.agent_id != agent_id:
            raise StateCorruptError(path, f"holds the state of {record.agent_id!r}")
        return record

    def locked(self, agent_id: str, timeout_seconds: float) -> AbstractContextManager[object]:
        """Return a ``with`` block in which an agent's lock is held.

        Every read-check-write of its state happens inside. A directory that was deleted meanwhile
        is made again.

        Raises:
            StateWriteError: Not free within the timeout, or the lock file cannot be used.
        """
        return Lock(self.file(agent_id, ".lock"), self._open_lock, timeout_seconds)

    def _open_lock(self, path: str) -> int:
        try:
            return open_private(path)
        except FileNotFoundError:
            self.prepare()
            return open_private(path)

    def check_generation(self, record: StateRecord) -> None:
        """Make sure that a record may replace what is stored. Call inside the lock.

        Raises:
            FencedError: Another generation holds the agent, or nothing of it is stored.
            StateSchemaError: A newer ultramon wrote the stored state.
        """
        try:
            stored = self.read_to_replace(record.agent_id)
        except AgentNotFoundError:
            raise FencedError(record.agent_id, record.generation, None) from None
        except StateCorruptError:
            self.quarantine(record.agent_id)
            return
        refuse_newer(stored, self.file(record.agent_id))
        if stored.generation != record.generation:
            raise FencedError(record.agent_id, record.generation, stored.generation)

    def replace(self, record: StateRecord, *, durable: bool) -> None:
        """Write a state atomically, and its reading behind those before. Call inside the lock.

        Check the generation first. A reading that cannot be written is only missing in `history`.

        Args:
            record: What to write.
            durable: Also sync the directory, so that the new state survives a power cut.

        Raises:
            StateWriteError: Nothing was written, or (reason "durability unknown") it is visible
                but might not survive a power cut; writing it again is harmless.
        """
        path = self.file(record.agent_id)
        data = encode_state(record, path)
        with self._new_file(record.agent_id, path, data) as temporary:
            os.replace(temporary, path)
        self._add_reading(record)
        if durable:
            try:
                sync_directory(self.folder)
            except OSError as error:
                raise refused(path, "is written, durability unknown", error) from error

    def _add_reading(self, record: StateRecord) -> None:
        point = encode_point(record)
        if not point:
            return
        path = self.file(record.agent_id, ".hist")
        try:
            fd = open_private(path)
            try:
                found = os.fstat(fd)
                check_private(found, path)
                data = os.read(fd, FILE_BYTES + 1)
                known = unpack(data)
                points = add_point(known, point)
                if points is known:
                    return
                if found.st_nlink > 1:  # the other name, as in a backup, keeps what it has
                    with self._new_file(record.agent_id, path, pack(points)) as temporary:
                        os.replace(temporary, path)
                    return
                # One small write: a kill leaves the old ring or the new one.
                os.lseek(fd, 0, 0)
                os.write(fd, pack(points))
                if len(data) > FILE_BYTES:
                    os.ftruncate(fd, FILE_BYTES)
            finally:
                close_quietly(fd)
        except (OSError, StateError):
            return  # a picture less; the state is what counts

    def read_history(self, agent_id: str) -> bytes:
        """Return the points of an agent's ring; nothing without a readable one."""
        # The owner may write at this moment: what is torn then is whole at the next read.
        for _ in range(_HISTORY_READS):
            try:
                data, _found = read_private_file(self.file(agent_id, ".hist"), FILE_BYTES)
            except (InvalidAgentIdError, OSError, StateCorruptError):
                break
            if points := unpack(data):
                return points
        return b""

    def _new_file(self, agent_id: str, path: str, data: bytes) -> NewFile:
        return NewFile(os.path.join(self.folder, f".{agent_id}.{random_hex(6)}.tmp"), path, data)

    def beat(self, agent_id: str, at: float) -> None:
        """Set the time of the heartbeat file, creating it where missing.

        Raises:
            StateWriteError: The file system refused.
        """
        path = self.file(agent_id, ".hb")
        try:
            try:
                os.utime(path, (at, at), follow_symlinks=False)
            except FileNotFoundError:
                close_quietly(open_private(path, os.O_WRONLY))
                os.utime(path, (at, at), follow_symlinks=False)
        except OSError as error:
            raise refused(path, "cannot beat", error) from error

    def heartbeat_at(self, agent_id: str) -> float | None:
        """Return when the agent last beat, epoch seconds; None when it never did."""
        try:
            return os.lstat(self.file(agent_id, ".hb")).st_mtime
        except OSError:
            return None

    def put_request(
        self, agent_id: str, request: dict[str, Any] | None, timeout_seconds: float
    ) -> None:
        """Write a request beside an agent's state, replacing an older one; None deletes it.

        Raises:
            AgentNotFoundError: The agent has no state.
            StateWriteError: Locked beyond the timeout, or the file system refused.
        """
        path = self.file(agent_id, ".request")
        self._check_stored(agent_id)
        if request is None:
            delete_file(path)
            return
        # Only the rename happens under the lock: the agent's saves must not wait for a disk.
        with (
            self._new_file(agent_id, path, encode_request(request, path)) as temporary,
            self.locked(agent_id, timeout_seconds),
        ):
            self._check_stored(agent_id)
            os.replace(temporary, path)

    def _check_stored(self, agent_id: str) -> None:
        if not os.path.lexists(self.file(agent_id)):
            raise AgentNotFoundError(agent_id)

    def get_request(self, agent_id: str) -> dict[str, Any] | None:
        """Return the request for an agent; None without a readable one."""
        try:
            data, _ = read_private_file(self.file(agent_id, ".request"))
            request = compact_json.loads(data)
        except (OSError, StateCorruptError, ValueError):
            return None
        return request if isinstance(request, dict) else None

    def quarantine(self, agent_id: str) -> str | None:
        """Set an unreadable state aside as evidence; the newest three are kept.

        Only the owner does this, inside the lock.

        Returns:
            The new path, or None when there was nothing to set aside.
        """
        path = self.file(agent_id)
        seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
        kept = f"{path}.corrupt-{stamp}.{nanoseconds:09}-{random_hex(2)}"
        try:
            os.rename(path, kept)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused(path, "cannot be set aside", error) from error
        prefix = os.path.basename(path) + ".corrupt-"
        older = sorted(name for name in self._list() if _is_kept(name, prefix))
        for name in older[:-KEPT_CORRUPT_FILES]:
            delete_quietly(os.path.join(self.folder, name))
        return kept

    def remove(self, agent_id: str) -> None:
        """Delete an agent's files and its alert memory. Call inside the lock.

        Raises:
            StateWriteError: The file system refused.
        """
        for suffix in SUFFIXES:
            delete_file(self.file(agent_id, suffix))
        alerts = os.path.join(self.path, ALERTS, agent_id)
        for suffix in (".json", ".lock"):
            delete_file(alerts + suffix)

    def sweep(self, now: float) -> list[str]:
        """Delete temporary files that killed writers left behind more than a minute ago.

        What lists of an earlier version kept in the folder ``index`` goes too.

        Returns:
            The names of the temporary files deleted.
        """
        swept = []
        self._delete_index()
        for name in self._list():
            if not (name[0] == "." and name.endswith(".tmp")):
                continue
            path = os.path.join(self.folder, name)
            try:
                if now - os.lstat(path).st_mtime > ORPHAN_SECONDS:
                    os.unlink(path)
                    swept.append(name)
            except OSError:
                continue
        return swept

    def _delete_index(self) -> None:
        folder = os.path.join(self.path, "index")
        try:
            for name in os.listdir(folder):
                if name in ("heads", "texts") or name.endswith(".tmp"):
                    os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
        except OSError:
            return

    def _list(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except OSError:
            return []
