"""The installed plugin of opencode in a process of Node, which stands for the client."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path

from helpers.host_home import HostHome
from helpers.requirements import require_tool
from helpers.resident_session import retire, settle, until
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log
from ultramon.hosts.opencode.host import OPENCODE
from ultramon.hosts.resident.place import Place

SESSION = "ses_1"
LIMITS = {"limit": {"context": 100_000, "output": 8_000}}
_DRIVER = Path(__file__).parent / "opencode_driver.mjs"


def reply(name, tokens, session=SESSION, **more):
    """A complete reply as the client keeps it in memory."""
    at = int(time.time() * 1_000)
    counts = {"input": tokens, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    own = {"id": name, "sessionID": session, "role": "assistant", "modelID": "fake-1"}
    own["time"] = {"created": at, "completed": at}
    return {**own, "tokens": {**counts, "total": tokens}, **more}


def prompt(name, session=SESSION):
    """A person's message."""
    return {"id": name, "sessionID": session, "role": "user"}


class Plugin:
    """A client with ultramon's plugin, and the resident that it starts.

    Args:
        path: A folder for home and states.
        monkeypatch: As a test has it: installing looks at the environment.
        choices: Of the installation.
    """

    def __init__(self, path, monkeypatch, **choices):
        self.configuration = path / "home" / ".config" / "opencode"
        self.file = self.configuration / "plugin" / "ultramon.js"
        self.states = path / "states"
        self._sockets = tempfile.mkdtemp(prefix="um-")
        self.environ = {
            "HOME": str(path / "home"),
            "XDG_CONFIG_HOME": str(path / "home" / ".config"),
            "XDG_DATA_HOME": str(path / "data"),
            "XDG_RUNTIME_DIR": self._sockets,
            "PATH": os.environ["PATH"],
        }
        for name in ("HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, self.environ[name])
        self.home = HostHome(OPENCODE, self.file, self.states)
        self.home.install(**choices)
        self.place = Place(str(self.states), self.environ)
        self._process = None

    def start(self, **variables):
        """Start the client."""
        self._process = subprocess.Popen(
            [require_tool("node"), str(_DRIVER), str(self.file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=self.environ | variables,
            cwd=self.configuration,
        )
        return self

    def hold(self, fifo):
        """Have each process of the plugin wait for a line of a new pipe; return that, open."""
        os.mkfifo(fifo)
        head, mark, rest = self.file.read_text().partition('{"command": ')
        command, end = json.JSONDecoder().raw_decode(rest)
        held = json.dumps(f"read line < {shlex.quote(str(fifo))}; {command}")
        self.file.write_text(head + mark + held + rest[end:])
        return os.open(fifo, os.O_RDWR)

    def call(self, hook, input=None, output=None):
        """Have the client call a hook; return what it said when the hook returned."""
        line = json.dumps({"hook": hook, "input": input or {}, "output": output or {}})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def event(self, type, **properties):
        """Have an event happen."""
        return self.call("event", {"event": {"type": type, "properties": properties}})

    def begin(self, session=SESSION, **info):
        """Have a session begin, and wait for the resident."""
        self.event("session.created", sessionID=session, info={"id": session, **info})
        until(self.place.running, "no resident runs")
        until(lambda: len(self.records()) >= 1, "no session has begun")

    def limits(self, session=SESSION, **model):
        """Have a request say the limits of its model."""
        self.call("chat.params", {"sessionID": session, "agent": "build", "model": model or LIMITS})

    def request(self, *infos):
        """Have the model be asked; return its messages, and how many milliseconds that took."""
        messages = [{"info": info, "parts": []} for info in infos]
        done = self.call("experimental.chat.messages.transform", {}, {"messages": messages})
        return done["output"]["messages"], done["ms"]

    def records(self):
        """The states of all agents, sessions first."""
        directory = StateDirectory(str(self.states))
        return [directory.read(agent_id) for agent_id in sorted(directory.list_ids(), key=len)]

    def settled(self):
        """The states of all agents, once the resident is done."""
        settle(self.place)
        return self.records()

    def failures(self):
        """The problems in the failure log."""
        path = failure_log.log_path(str(self.states), "opencode")
        return [failure["problem"] for failure in failure_log.read(path)]

    def close(self, *, kills=False):
        """End the client, by a signal or as it ends by itself."""
        if self._process is not None:
            if kills:
                os.kill(self._process.pid, signal.SIGKILL)
            else:
                self.call("dispose")
            self._process.stdin.close()
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def end(self):
        """End everything."""
        self.close(kills=True)
        retire(self.place)


def recorded_messages(path, *sessions):
    """The messages of recorded sessions, as the client held them in memory, as if of now."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT id, session_id, data FROM message ORDER BY time_created, id"
        rows = [row for row in database.execute(query) if row[1] in sessions]
    found = [json.loads(data) | {"id": name, "sessionID": one} for name, one, data in rows]
    later = int(time.time() * 1_000) + 10_000 - found[0]["time"]["created"]
    for one in found:
        one["time"] = {name: at + later for name, at in one["time"].items()}
    return found


def texts_in(messages):
    """What ultramon has put into a request, in its order."""
    return [
        part["text"]
        for one in messages
        if one["info"]["id"].startswith("msg_ultramon")
        for part in one["parts"]
    ]
