"""A database of opencode of any size, made from a recorded session."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from helpers.opencode_session import RECORDED, plant

MESSAGES = 100
"""Of a session, where nothing else is asked for."""
YEAR_MS = 365 * 86_400_000
SUBAGENT_EACH = 3


class Rows:
    """The rows of sessions like a recorded one, over a year up to now; every third is a subagent.

    Args:
        result_bytes: Of each tool's result.
        sessions: How many there are.
        messages: Of each.
    """

    def __init__(self, result_bytes, sessions, messages=MESSAGES):
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "opencode.db"
            plant(path, "plain_then_continue")
            with closing(sqlite3.connect(path)) as database:
                database.row_factory = sqlite3.Row
                self.session = dict(database.execute("SELECT * FROM session").fetchone())
                replies = "SELECT id, data FROM message WHERE data LIKE '%tool-calls%'"
                reply_id, reply = database.execute(replies).fetchone()
                parts = "SELECT data FROM part WHERE message_id = ? ORDER BY id"
                self.parts = [json.loads(one) for (one,) in database.execute(parts, (reply_id,))]
        self.reply = json.loads(reply)
        self.sessions, self.messages = sessions, messages
        self.ends_at_ms = int(time.time() * 1000)
        for part in self.parts:
            if part["type"] == "tool":
                line = "one line of a result, as long as many of them are\n"
                part["state"]["output"] = (line * (result_bytes // len(line) + 1))[:result_bytes]

    def of(self, number):
        """The row of a session, those of its messages, those of their parts."""
        step = YEAR_MS // self.sessions
        began = self.ends_at_ms - step * (self.sessions - number)
        name = f"ses_{0xFFFFFFFF - number:08x}ffe{number:015}"  # newer ids sort lower
        is_subagent = number % SUBAGENT_EACH == 2
        parent = f"ses_{0xFFFFFFFF - number + 1:08x}ffe{number - 1:015}" if is_subagent else None
        own = {"id": name, "parent_id": parent, "time_created": began, "time_updated": began + step}
        messages, parts = [], []
        for at in range(self.messages):
            message_id = f"msg_{number:08x}{at:04x}001"
            created = began + step * at // self.messages
            tokens = {**self.reply["tokens"], "input": 10_000 + 900 * at, "output": 100}
            tokens["total"] = tokens["input"] + tokens["output"]
            info = {**self.reply, "tokens": tokens}
            info["time"] = {"created": created, "completed": created + 900}
            if at == 0:
                info = {"role": "user", "time": {"created": created}, "agent": "build"}
            data = json.dumps(info, separators=(",", ":"))
            messages.append((message_id, name, created, created + 900, data))
            told = self.parts if at else [{"type": "text", "text": f"work {number}"}]
            for place, part in enumerate(told):
                data = json.dumps(part, separators=(",", ":"))
                part_id = f"prt_{number:08x}{at:04x}{place:03x}"
                parts.append((part_id, message_id, name, created, created + 900, data))
        return tuple({**self.session, **own}.values()), messages, parts


def make(path, rows):
    """Make the database; return its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript((RECORDED / "schema.sql").read_text())
        # A log of writes would hold all of it once more.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "foreign_keys = OFF"):
            database.execute(f"PRAGMA {pragma}")
        places = ", ".join("?" * len(rows.session))
        database.execute("BEGIN")
        for number in range(rows.sessions):
            session, messages, parts = rows.of(number)
            database.execute(f"INSERT INTO session VALUES ({places})", session)
            database.executemany("INSERT INTO message VALUES (?, ?, ?, ?, ?)", messages)
            database.executemany("INSERT INTO part VALUES (?, ?, ?, ?, ?, ?)", parts)
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = WAL")
    return path.stat().st_size
