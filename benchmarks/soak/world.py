"""The files of one soak, the processes that belong to it, and the locks of its items.

Imports nothing of ultramon.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.soak.history import History, append, lines

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
WORLD = "SOAK_WORLD"
"""The variable by which each process of a soak is known to belong to it."""
ROLE = "SOAK_ROLE"
_GIVEN = "SOAK_GIVEN"
_STARTER = "SOAK_STARTER"
ORPHAN = "soak-orphan"
"""The name that what a worker leaves behind has in /proc."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class World:
    """The directory of one soak.

    Args:
        path: An existing directory.
        seed: Decides who does what to which item.
        items: How many a run has.
        without: Names of tricks and faults that are left out.
    """

    def __init__(
        self, path: str | Path, seed: int, *, items: int = 60, without: Collection[str] = ()
    ) -> None:
        self.path = Path(path)
        self.seed = seed
        self.items = items
        self.without = frozenset(without)
        self.history = History(self.path / "history")
        self.state = self.path / "state"
        self.errors = self.path / "errors"
        self._effects = self.path / "effects"
        self._locks = self.path / "locks"
        self._marks = self.path / "marks"

    @classmethod
    def of_this_process(cls) -> World:
        """Return the soak that this process belongs to."""
        given = json.loads(os.environ[_GIVEN])
        return cls(os.environ[WORLD], given["seed"], items=given["items"], without=given["without"])

    def make(self) -> None:
        """Make the directories."""
        for directory in (self.state, self._effects, self._locks, self._marks):
            directory.mkdir(mode=0o700)

    def environment(self, role: str, url: str) -> dict[str, str]:
        """Return the environment of a process of this soak.

        Args:
            role: What it is.
            url: Of the store; "" = files.
        """
        return {
            **{name: value for name, value in os.environ.items() if "ULTRAMON" not in name},
            "PYTHONPATH": str(ROOT),
            "ULTRAMON_STATE_DIR": str(self.state),
            "ULTRAMON_BACKEND": url,
            WORLD: str(self.path),
            _GIVEN: json.dumps(
                {"seed": self.seed, "items": self.items, "without": sorted(self.without)}
            ),
            _STARTER: str(os.getpid()),
            ROLE: role,
        }

    def chance(self, *about: object) -> Random:
        """Return the random numbers about something: the same in every process and at any time."""
        return Random(" ".join(map(str, (self.seed, *about))))

    @property
    def is_closing(self) -> bool:
        """Whether nothing new is to be begun: the time is over, or the soak itself was killed."""
        return self.is_marked("closing") or not Path(f"/proc/{os.environ[_STARTER]}").exists()

    def is_first(self, mark: str) -> bool:
        """Return whether no process has asked this before, with the same mark."""
        try:
            os.close(os.open(self._marks / mark, os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return False
        return True

    def is_marked(self, mark: str) -> bool:
        """Return whether `is_first` was asked."""
        return (self._marks / mark).exists()

    def do(self, item: str, agent: str) -> None:
        """Do an item: its effect is on the disk when this returns."""
        append(self._effects / item, agent)

    def is_done(self, item: str) -> bool:
        """Return whether the effect of an item is there."""
        return any(True for _ in lines(self._effects / item))

    def effects(self) -> set[str]:
        """Return the items whose effect is there."""
        return {path.name for path in self._effects.iterdir() if self.is_done(path.name)}

    def lock(self, item: str, agent: str) -> int:
        """Take the lock of an item, and note it where another live process holds it.

        Returns:
            A descriptor. The lock is held until this process, and all that it has forked
            meanwhile, have closed it or ended.
        """
        descriptor = os.open(self._locks / item, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode() or "another process"
            self.history.note("two_holders", item=item, agent=agent, holder=holder)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{agent} (pid {os.getpid()})".encode(), 0)
        return descriptor

    def touch(self, item: str) -> None:
        """Leave a trace of work on an item that goes on."""
        os.utime(self._locks / item)

    def kill(self, role: str, by: str) -> None:
        """Kill the living processes of a role."""
        victims = [process for process in self.processes() if process.role == role]
        self.history.note("killed", pids=[process.pid for process in victims], by=by)
        for process in victims:
            process.send(signal.SIGKILL)

    def processes(self) -> Iterator[Process]:
        """Yield the living processes of this soak, but this one."""
        mark = f"{WORLD}={self.path}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                environ = (path / "environ").read_bytes().split(b"\0")
                if mark not in environ or path.name == str(os.getpid()):
                    continue
                name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            if fields[0] in "ZX":
                continue
            role = next((one for one in environ if one.startswith(ROLE.encode())), b"=")
            yield Process(
                int(path.name),
                "orphan" if name == ORPHAN else role.partition(b"=")[2].decode(),
                fields[0] == "T",
                _uptime() - int(fields[19]) / _TICKS_PER_SECOND,
            )


class Process(NamedTuple):
    """A living process of a soak."""

    pid: int
    role: str
    is_suspended: bool
    age_seconds: float

    def send(self, number: int) -> None:
        """Send a signal, unless it has ended meanwhile."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def _uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def suspend_self() -> None:
    """Stop this process until another one continues it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def die(world: World) -> None:
    """End this process as the kernel does."""
    world.history.note("killed", pids=[os.getpid()], by="itself")
    os.kill(os.getpid(), signal.SIGKILL)
