"""A run of a host's client, played from a recording, for `ultramon.testing.HostContract`."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ultramon.state.record import StateRecord

FILLS = "fills"
"""One session whose window fills over several replies, and that ends."""
SUBAGENTS = "subagents"
"""A session with a subagent that fills further than the session does."""
COMPACTION = "compaction"
"""A session that is compacted."""
TASKS = "tasks"
"""A session that keeps a list of tasks."""
STAYS = "stays"
"""A session that works on after the reply that reached `HostRun.returns_at`."""
SCENARIOS = (FILLS, SUBAGENTS, COMPACTION, TASKS, STAYS)

_CLIENT = """
import base64, json, subprocess, sys
for line in sys.stdin:
    command, environ, payload = json.loads(line)
    done = subprocess.run(
        command, input=base64.b64decode(payload), capture_output=True, env=environ)
    said = [base64.b64encode(one).decode() for one in (done.stdout, done.stderr)]
    print(json.dumps([done.returncode, *said]), flush=True)
"""


class HostCall(NamedTuple):
    """What one call of a hook came to."""

    agent_id: str | None
    """The agent into whose conversation the answer comes; None = the host does not say."""
    text: str = ""
    """What the agent reads."""
    ends: bool = False
    """Whether the answer ends the agent's turn."""


class HostRun:
    """One run, as the client's writer knows it; subclasses play it.

    Attributes:
        state: The state directory of its hooks.
        session_id: The agent that the session is.
        readings: By agent the readings of its window, each an epoch and tokens, as recorded.
        limits: The limit and the window, in tokens, that hold without a choice of the user.
        tasks: Name and status of each task of the session at the end.
        transcript: What `ultramon replay` reads of the session; None = nothing.
        returns_at: Of `STAYS`: the limit of which its first reading is more than three quarters.
        replies_to_return: Of `STAYS`: after how many further replies its turn is ended.
    """

    state: Path
    session_id: str = ""
    readings: Mapping[str, Sequence[tuple[int, int]]] = {}
    limits: tuple[int | None, int | None] = (None, None)
    tasks: Sequence[tuple[str, str]] = ()
    transcript: str | None = None
    returns_at: int = 0
    replies_to_return = 3

    def choose(self, **choices: Any) -> None:
        """Install with other choices than the defaults.

        Args:
            choices: Of ``context_limit_tokens``, ``warning`` and ``critical`` (ratios) and
                ``enforce`` (a level), as options of ``ultramon install``.
        """
        raise NotImplementedError

    def calls(self) -> Iterator[HostCall]:
        """Play what is left, call by call."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the client."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until all is stored that the calls have left for after their answers."""

    def close(self) -> None:
        """End every process of the run."""

    def record(self, agent_id: str) -> StateRecord:
        """Return the state of an agent."""
        return StateDirectory(str(self.state)).read(agent_id)

    def records(self) -> dict[str, StateRecord]:
        """Return the states of all agents, by their ids."""
        self.settle()
        directory = StateDirectory(str(self.state))
        return {name: directory.read(name) for name in directory.list_ids()}

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a type, the oldest first."""
        with closing(LocalBackend(str(self.state))) as backend:
            return [one for one in backend.events(limit=1_000).events if one["type"] == kind]


class ClientProcess:
    """A process that stands for a client: it calls hooks when it is asked to, and can be killed.

    Args:
        words: More words of its command line, where a host is known by these.
    """

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CLIENT, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid

    def run(
        self, command: Sequence[str], payload: bytes, environ: Mapping[str, str]
    ) -> tuple[int, bytes, bytes]:
        """Have the client run a hook; return its exit status, its output and its errors."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = [list(command), dict(environ), base64.b64encode(payload).decode()]
        self._process.stdin.write(os.fsencode(json.dumps(asked)) + b"\n")
        self._process.stdin.flush()
        status, *said = json.loads(self._process.stdout.readline())
        out, err = (base64.b64decode(one) for one in said)
        return status, out, err

    def kill(self) -> None:
        """Kill it, and wait until it is gone."""
        self._process.kill()
        self._process.communicate()
