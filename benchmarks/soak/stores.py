"""What the programs of a soak store in, and what befalls each kind of it.

A fault is a function that takes random numbers, and returns when all is well again.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from benchmarks.soak.world import ROOT

sys.path.insert(0, str(ROOT / "tests"))

from helpers import requirements
from helpers.pgbouncer import Pooler
from helpers.postgres_server import QUICK, Server
from helpers.proxy import Proxy

from ultramon.backends.postgres.admin.setup import migrate
from ultramon.backends.postgres.backend import PostgresBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from benchmarks.soak.world import World

_TMPFS = "size=256m,mode=700"


class Fault(NamedTuple):
    """Something that befalls a store."""

    kind: str
    weight: int
    befall: Callable[[Random], None]


class Files:
    """A directory; as root one of its own file system, which can be full.

    Attributes:
        url: For `ULTRAMON_BACKEND`.
        faults: What may befall it.
    """

    def __init__(self, world: World) -> None:
        self.url = ""
        self.faults: list[Fault] = []
        self._world = world
        self._undo = ExitStack()
        with suppress(pytest.skip.Exception):
            requirements.require_root_mount(world.state, _TMPFS)
            self._undo.callback(requirements.unmount, world.state)
            self.faults = [Fault("disk full", 1, self._fill)]

    def _fill(self, chance: Random) -> None:
        until = time.monotonic() + chance.uniform(0.5, 5.0)
        with tempfile.NamedTemporaryFile(dir=self._world.state, prefix=".soak-") as file:
            while time.monotonic() < until:
                # Again and again: what is freed meanwhile is taken too.
                self._take_all(file.fileno())
                time.sleep(0.05)

    def _take_all(self, descriptor: int) -> None:
        while True:
            found = os.statvfs(descriptor)
            try:
                os.posix_fallocate(
                    descriptor, os.fstat(descriptor).st_size, found.f_bavail * found.f_frsize
                )
            except OSError:  # nothing is free
                return

    def close(self) -> None:
        """Take it away; what is in it stays in the world's directory."""
        left = self._world.path / "left"
        shutil.copytree(self._world.state, left)
        self._undo.close()
        shutil.rmtree(self._world.state)
        left.rename(self._world.state)


class Postgres:
    """A PostgreSQL server, whose agents connect to it directly.

    Attributes:
        url: For `ULTRAMON_BACKEND`.
        faults: What may befall it.
    """

    def __init__(self, _world: World) -> None:
        with ExitStack() as undo:
            self._open(undo)
            self._undo = undo.pop_all()

    def _open(self, undo: ExitStack) -> None:
        self._server = Server(**QUICK)
        undo.callback(self._server.remove)
        self._server.start()
        self._schema = f"soak_{secrets.token_hex(4)}"
        self.url = self._server.url(self._schema)
        self.faults = [
            Fault("database restarted", 2, self._restart),
            Fault("database killed", 2, self._kill),
            Fault("foreign transaction", 8, self._hold_transaction),
        ]
        maker = PostgresBackend(self.url)
        migrate(maker.database)
        maker.close()

    def _restart(self, chance: Random) -> None:
        self._server.stop(chance.choice(("fast", "immediate")))
        time.sleep(chance.uniform(0.0, 3.0))
        self._server.start()

    def _kill(self, chance: Random) -> None:
        self._server.kill()
        self._server.wait_until_dead()
        time.sleep(chance.uniform(0.0, 3.0))
        self._server.start()

    def _hold_transaction(self, chance: Random) -> None:
        """Hold a transaction open that is none of ultramon's, as a report or a backup does."""
        import psycopg

        with psycopg.connect(self._server.url().partition("?")[0]) as connection:
            connection.execute("SELECT pg_current_xact_id()")
            time.sleep(chance.uniform(0.5, 8.0))

    def close(self) -> None:
        """Take it away."""
        self._undo.close()


class Pooled(Postgres):
    """The same through PgBouncer."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        pooler = Pooler(self._server)
        undo.callback(pooler.remove)
        pooler.wait()
        self.url = pooler.url(self._schema)


class Proxied(Postgres):
    """The same through a network that cuts, delays, resets and half-opens connections."""

    def _open(self, undo: ExitStack) -> None:
        super()._open(undo)
        self._proxy = Proxy(self._server.port)
        undo.callback(self._proxy.close)
        self.url = self.url.replace(f":{self._server.port}/", f":{self._proxy.port}/")
        self.faults += [
            Fault("network cut", 3, self._cut),
            Fault("network refused", 3, self._refuse),
            Fault("network slow", 3, self._delay),
            Fault("connections reset", 6, self._reset),
            Fault("answer lost", 6, self._lose_answer),
            Fault("connections half open", 3, self._half_open),
        ]

    def _cut(self, chance: Random) -> None:
        self._proxy.hang()
        time.sleep(chance.uniform(0.2, 8.0))
        self._proxy.flow()

    def _refuse(self, chance: Random) -> None:
        self._proxy.refuse()
        time.sleep(chance.uniform(0.2, 5.0))
        self._proxy.accept()

    def _delay(self, chance: Random) -> None:
        self._proxy.delay_seconds = chance.uniform(0.01, 0.3)
        time.sleep(chance.uniform(1.0, 5.0))
        self._proxy.delay_seconds = 0.0

    def _reset(self, _chance: Random) -> None:
        self._proxy.reset_all()

    def _lose_answer(self, chance: Random) -> None:
        self._proxy.cut_at(chance.randrange(1, 20), is_heard=chance.random() < 0.5)

    def _half_open(self, chance: Random) -> None:
        self._proxy.half_open()
        time.sleep(chance.uniform(1.0, 15.0))
        self._proxy.reset_half_open()


KINDS = {"files": Files, "postgres": Postgres, "pgbouncer": Pooled, "proxy": Proxied}
