"""Write tests/data/postgres/version-N.sql: a small store with the tables of this version.

Run it once for each version of the tables, before it is released, and keep the file for ever:
python scripts/dump_postgres_store.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import psycopg  # noqa: E402
from helpers.postgres_server import Server  # noqa: E402

from ultramon import ContextConfig, Fleet, create_context_monitor, register  # noqa: E402
from ultramon.backends.credentials import Credential  # noqa: E402
from ultramon.backends.postgres.admin.setup import migrate  # noqa: E402
from ultramon.backends.postgres.backend import PostgresBackend  # noqa: E402
from ultramon.backends.postgres.schema.tables import SCHEMA_VERSION  # noqa: E402
from ultramon.notices.message import Draft  # noqa: E402

CONFIG = ContextConfig(context_window_tokens=200_000)
NUMBERED = (
    ("events", "txid"),
    ("agents", "changed"),
    ("heartbeats", "changed"),
    ("pruned_agents", "changed"),
)
MIRRORED = (
    "INSERT INTO ultramon.machines (machine_id, name, first_seen, last_seen)"
    " VALUES ('m0123abcd', 'attic', 1, 2)",
    "INSERT INTO ultramon.readings (at, agent_id, machine_id, host, model, epoch, level,"
    " used_tokens, limit_tokens, output_tokens, cost_usd) VALUES (1.8e9, 'm0123abcd-1f',"
    " 'm0123abcd', 'codex', 'gpt-5', 1, 'normal', 1000, 200000, 50, 0.25)",
)
"""What is left of a machine that mirrored an agent once."""
FAR = 4_000_000_000
"""Added to the numbers of transactions: as of a server that has done far more than any in tests."""


def fill(store: PostgresBackend) -> None:
    """Let one agent end and another live on, with everything that a store can hold."""
    with create_context_monitor(
        "scout-1", CONFIG, run="audit", backend=store, label="night shift", parent_id="boss"
    ) as monitor:
        register("scout-1", "scout-1", backend=store)
        monitor.plan(["a", "b"])
        with monitor.task("a"):
            pass
        monitor.report_usage(input_tokens=150_000)
        fleet = Fleet("audit", backend=store)
        fleet.poll()
        fleet.close()
        monitor.hand_off()
    create_context_monitor("scout-2", CONFIG, run="audit", backend=store).start()
    store.credentials.mint(Credential("0" * 64, "scout-2", 1, "boss", 1.0, 9e9))
    store.queue.queue_message(
        Draft("scout-2", "stored long ago", sender="scout-1"), now=time.time()
    )
    store.claim_handoff("handoff-1", "scout-1", "scout-2", now=time.time())
    store.put_request("scout-2", {"deadline": 1.0, "generation": 1})
    for statement in MIRRORED:
        store.database.change(statement)


def dump(server: Server) -> str:
    """Return the store as SQL, without settings of the session and the schema itself."""
    url = server.url().partition("?")[0]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE ultramon.messages SET expires_at = 9e9")
        for table, column in NUMBERED:
            connection.execute(
                f"UPDATE ultramon.{table} SET {column} ="
                f" (({column}::text)::bigint + {FAR})::text::xid8"
            )
        connection.execute(
            f"UPDATE ultramon.consumers SET cursor = (split_part(cursor, ':', 1)::bigint + {FAR})"
            " || ':' || split_part(cursor, ':', 2)"
        )
    options = ("--inserts", "--no-owner", "--no-privileges", "--no-comments", "-n", "ultramon")
    program = str(server.programs / "pg_dump")
    text = subprocess.run([program, *options, url], capture_output=True, text=True, check=True)
    left_out = ("--", "SET ", "\\", "CREATE SCHEMA", "SELECT pg_catalog.set_config")
    kept = [line for line in text.stdout.splitlines() if line and not line.startswith(left_out)]
    # Within functions the schema is quoted; a restore puts another in its place.
    return "\n".join(kept).replace('"ultramon".', "ultramon.") + "\n"


if __name__ == "__main__":
    os.chdir("/")  # states hold the working directory
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ULTRAMON_STATE_DIR"] = folder
        server = Server()
        server.start()
        try:
            store = PostgresBackend(server.url())
            migrate(store.database)
            fill(store)
            path = ROOT / "tests" / "data" / "postgres" / f"version-{SCHEMA_VERSION}.sql"
            path.write_text(dump(server), encoding="utf-8")
        finally:
            server.remove()
    # The second agent never ended, and shall not be stored as ended.
    os._exit(0)
