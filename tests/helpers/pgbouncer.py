"""PgBouncer as the documents configure it, in front of a server of the tests."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from helpers import ROOT, requirements
from helpers.postgres_server import USER, Server, free_port

_PAGE = ROOT / "docs" / "fleet.md"
_DEADLINE_SECONDS = 10.0


def documented_settings() -> str:
    """Return the pgbouncer.ini of the documents."""
    found = re.search(r"```ini\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


class Pooler:
    """A pooler that differs from the documented one in addresses, and in trusting everybody."""

    def __init__(self, server: Server) -> None:
        self.program = requirements.require_tool("pgbouncer")
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="ultramon-pooler-"))
        changes = {
            "ultramon": f"host=127.0.0.1 port={server.port} dbname=postgres",
            "listen_port": str(self.port),
            "auth_type": "trust",
            "auth_file": str(self.directory / "userlist.txt"),
            "server_tls_sslmode": "disable",
        }
        settings = documented_settings()
        for name, value in changes.items():
            settings, count = re.subn(
                rf"^{name} = .*$", f"{name} = {value}", settings, flags=re.MULTILINE
            )
            assert count == 1, name
        (self.directory / "userlist.txt").write_text(f'"{USER}" ""\n')
        (self.directory / "pgbouncer.ini").write_text(settings)
        command = [self.program, str(self.directory / "pgbouncer.ini")]
        if os.geteuid() == 0:
            for path in (self.directory, *self.directory.iterdir()):
                shutil.chown(path, requirements.NOBODY, requirements.NOBODY)
            command = [*requirements.as_nobody(), *command]
        self._log = (self.directory / "log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, cwd="/")

    def url(self, schema: str) -> str:
        """Return the URL of a store, through the pooler."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/ultramon?schema={schema}&sslmode=disable"

    def wait(self) -> None:
        """Wait until it listens."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        raise AssertionError((self.directory / "log").read_text())

    def remove(self) -> None:
        """End it and delete its files."""
        self._process.terminate()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self.directory)
