"""A machine that shares: a state directory, its own database user, and the real process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from helpers.program import environment
from helpers.waiting import until
from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.share import allow_list, program
from ultramon.share.choices import KEPT_SECONDS, Choices
from ultramon.share.identity import load_identity, new_identity, store_identity
from ultramon.share.kept import Kept
from ultramon.share.looks import Looks
from ultramon.share.sending import Sending
from ultramon.share.status import Status, read_status
from ultramon.state.record import FIELDS

PROGRAM = program.__file__


WORDS = """
true other tokens replyTokens exactTokens isReport calibration base rearmMargin roundPercent rungs
name action ratio tokensLeft rearmRatio epoch tokensPerTurn secondsPerTurn limit source verdict
turns turnsLow turnsHigh seconds seen statusCode returncode signal outOfMemory reason clear waitsFor
predecessors gauge none permission answer compaction ok invalid window trigger refusal binding holds
outranked not_believed
"""
VOCABULARY = {
    *(name for _, name, _ in FIELDS),
    *WORDS.split(),
    *allow_list.LEVELS,
    *allow_list.PHASES,
    *allow_list.ACTIONS,
    *allow_list.OUTCOMES,
    *allow_list.TOKEN_SOURCES,
    *allow_list._LIMIT_SOURCES,
}
"""Every word of a state that is sent: of ultramon itself, and of no person."""


class Machine:
    """One machine.

    Args:
        directory: Its state directory.
        url: The database as its own user.
        names: What it sends by name.
    """

    def __init__(self, directory: Path, url: str, names: tuple[str, ...] = ()) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self.local = LocalBackend(str(directory))
        self.choices = Choices(url, None, names, None, KEPT_SECONDS)
        self.choices.save(str(directory))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: str = PROGRAM) -> None:
        """Start the process that shares."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", program, str(self.directory)],
            env=environment(ULTRAMON_STATE_DIR=str(self.directory)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill it as a machine without memory does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End it and close what is open here."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.local.close()

    @property
    def identity(self):
        return load_identity(str(self.directory))

    def status(self):
        """Return what the process says about itself."""
        return read_status(str(self.directory)) or {}

    def wait_until(self, condition) -> None:
        """Wait for what the process does."""
        until(condition, self.process)

    def agent(self, agent_id: str, **named):
        """Start an agent of this machine."""
        config = ContextConfig(model="claude-sonnet-4-5")
        return create_context_monitor(agent_id, config, backend=self.local, **named).start()


class Sharing:
    """The parts of the process, with looks that a test makes."""

    def __init__(self, machine):
        self.machine = machine
        directory = str(machine.directory)
        if machine.identity is None:
            store_identity(directory, new_identity())
        self.identity = machine.identity
        self.kept = Kept(directory)
        self.looks = Looks(
            machine.local, self.identity, machine.choices.names, 30 * 86_400, self.kept.seen()
        )
        self.status = Status(directory, self.identity.machine_id, 0.0)
        self.sending = Sending(machine.local, self.looks, self.kept, machine.choices, self.status)

    def step(self, now):
        self.sending.collect(now)
        self.sending.send(now)

    def close(self):
        self.sending.close()
        self.kept.close()


def work(agent, *tokens: int) -> None:
    """Report readings, each stored at once."""
    for count in tokens:
        agent.report_usage(input_tokens=count, context_window_tokens=200_000)
        agent.update_heartbeat()


def rows_of(server, table: str, columns: str = "*", where: str = "true"):
    """Return rows of a table as the superuser sees them."""
    return server(f"SELECT {columns} FROM ultramon.{table} WHERE {where}")


def dump(server) -> list[tuple[str, str]]:
    """Return every row of every table of a store as a line of JSON, with the table's name."""
    tables = server(
        "SELECT c.relname FROM pg_class c WHERE c.relkind = 'r'"
        " AND c.relnamespace = split_part('ultramon.', '.', 1)::regnamespace ORDER BY 1"
    )
    found = []
    for (table,) in tables:
        rows = server(f"SELECT row_to_json(t)::text FROM ultramon.{table} t")
        found += [(table, row) for (row,) in rows]
    return found


def strings_in(value):
    """Yield every text in a JSON value, and in JSON that is the text of a value in it."""
    if isinstance(value, str):
        yield value
        # A text may look like JSON and be none.
        with suppress(ValueError):
            inner = json.loads(value) if value.startswith(("{", "[")) else None
            yield from strings_in(inner)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from strings_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from strings_in(one)
