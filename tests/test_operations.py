"""docs/operations.md and deploy/: what they tell an operator to run is run, on real data."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.program import PROGRAM, environment, run
from helpers.requirements import missing, require_tool

from ultramon import create_context_monitor, open_backend

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BACKUP, RESTORE, DUMP, RELOAD, DELIVER = BLOCKS

WRITER = """
import sys
from ultramon import create_context_monitor

monitors = [create_context_monitor(f"writer-{sys.argv[1]}-{n}").start() for n in range(10)]
turn = 0
while True:
    turn += 1
    for monitor in monitors:
        monitor.report_usage(input_tokens=1 + turn % 190_000, context_window_tokens=200_000)
        monitor.record_compaction(tokens_after=1)
        monitor.update_heartbeat()
    if turn == 3:
        print("writing", flush=True)
"""


def shell(script, **variables):
    """Run commands of the page as a reader would; return what they printed."""
    done = subprocess.run(
        [require_tool("bash"), "-euc", script],
        env=environment(
            PATH=f"{Path(PROGRAM).parent}{os.pathsep}{os.environ['PATH']}",
            **{name: str(value) for name, value in variables.items()},
        ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def agents_of(url):
    """Return the records of a store, and its events."""
    backend = open_backend(str(url))
    try:
        agents = {one.agent_id: one.record for one in backend.list_agents()}
        return agents, backend.events(limit=1_000_000).events
    finally:
        backend.close()


def test_files_are_backed_up_while_agents_write_and_restored(tmp_path):
    """Each state is whole, and the journal holds every event that a state of the copy needs."""
    require_tool("sqlite3")
    state, backup, restored = (tmp_path / name for name in ("own", "backup", "restored"))
    with create_context_monitor("kept", backend=str(state)) as agent:
        agent.plan(["a", "b"])
        agent.hand_off(notes="before the backup")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number)],
            env=environment(ULTRAMON_STATE_DIR=str(state)),
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout.readline() == "writing\n"
        shell(BACKUP, state=state, backup=backup)
        assert all(writer.poll() is None for writer in writers)
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    said = shell(RESTORE, backup=backup, restored=restored)
    assert "21, all readable" in said
    assert "sound" in said
    agents, events = agents_of(restored)
    assert agents["kept"].handoff["notes"] == "before the backup"
    assert len(agents) == 21
    epochs = {}
    for event in events:
        epochs[event["agentId"]] = max(event["epoch"], epochs.get(event["agentId"], 0))
    for agent_id, record in agents.items():
        assert epochs[agent_id] >= record.epoch, agent_id
    modes = {path.stat().st_mode & 0o077 for path in restored.rglob("*")}
    assert modes == {0}
    with create_context_monitor("kept", backend=str(restored)) as again:
        assert again.get_state().generation == 2


def test_a_database_is_dumped_and_restored(postgres, postgres_store, tmp_path):
    """The events of the restored store can be read, and it takes new ones."""
    import psycopg

    programs = f"{postgres.programs}{os.pathsep}"
    query = postgres_store.partition("?")[2]
    schema = re.search(r"schema=(\w+)", query)[1]
    with create_context_monitor("scout-1", backend=postgres_store) as agent:
        agent.report_usage(input_tokens=150_000, context_window_tokens=200_000)
        agent.hand_off(notes="before the dump")
    _, before = agents_of(postgres_store)
    database = postgres.url().partition("?")[0]
    # A store of its own in the one database of the tests; a reader's has the name of the page.
    dump = f'PATH="{programs}$PATH"\n{DUMP}'.replace("--schema=ultramon", f"--schema={schema}")
    shell(dump, backup=tmp_path, database=database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE DATABASE restored")
    try:
        restored = re.sub(r"/\w+$", "/restored", database)
        reload = RELOAD.replace(
            'migrate "$restored_database"', f'migrate "$restored_database?{query}"'
        )
        # It ends with 1 because the server of the tests has no fsync; that it did its work shows.
        reload = f'PATH="{programs}$PATH"\n{reload.rstrip()} || [ $? -eq 1 ]\n'
        shell(reload, backup=tmp_path, restored_database=restored)
        url = f"{restored}?{query}"
        agents, events = agents_of(url)
        assert agents["scout-1"].handoff["notes"] == "before the dump"
        assert [one["eventId"] for one in events] == [one["eventId"] for one in before]
        create_context_monitor("scout-2", backend=url).start().stop()
        assert len(agents_of(url)[1]) > len(events)
    finally:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("DROP DATABASE restored WITH (FORCE)")


LOGGED_BY = (
    "server", "backends", "metrics", "notices", "state", "tokens.py", "fleet/run_view.py",
    "fleet/deliveries.py", "fleet/consumer.py", "fleet/assignments.py",
)  # fmt: skip
"""What the server runs, below ultramon/: all of it but handlers and receivers in one's own code."""


def logged_lines():
    """Yield level and text of every line that a server can log at its levels."""
    for place in LOGGED_BY:
        path = ROOT / "ultramon" / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                level = node.func.attr.upper()
                if ast.unparse(node.func.value) != "_log" or level not in ("INFO", "WARNING"):
                    continue
                if level == "INFO" and place != "server":
                    continue
                text = node.args[0].value
                # The one line whose text is made elsewhere: what set a file aside says so.
                yield (
                    level,
                    "…; set aside as …" if text == "%s" else re.sub(r"%(\.1f|s|d)", "…", text),
                )


def test_every_log_line_has_a_meaning_on_the_page():
    """And every line on the page exists; errors are one, by the HTTP server."""
    rows = re.findall(r"^\| (INFO|WARNING|ERROR) \| `([^`]+)` \| \S", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {*logged_lines(), ("ERROR", "Exception in ASGI application")}


def test_each_option_of_the_page_exists():
    """A misspelt one would be found by the reader."""
    known = run("serve", "--help").stdout + run("backend", "prune", "--help").stdout
    for option in set(re.findall(r"ultramon serve ([^`\n]*)`", PAGE)):
        for flag in re.findall(r"--[a-z-]+", option):
            assert flag in known
    for variable in re.findall(r"ULTRAMON_SERVE_\w+", PAGE):
        assert re.sub(r"\s", "", variable) in re.sub(r"\s", "", known)


UNITS = sorted(DEPLOY.rglob("*.service")) + sorted(DEPLOY.rglob("*.timer"))


@pytest.mark.parametrize("manager", ["system", "user"])
def test_systemd_accepts_the_units(manager, tmp_path):
    """With the program where this machine has it; each runs a command line that exists."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    units = [one for one in UNITS if (one.parent.name == "user") == (manager == "user")]
    assert len(units) == 4
    for unit in units:
        text = unit.read_text(encoding="utf-8")
        for path in ("/opt/ultramon/bin/ultramon", "%h/.local/bin/ultramon"):
            text = text.replace(path, PROGRAM)
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
        for arguments in re.findall(rf"^ExecStart={PROGRAM} (.+)$", text, re.MULTILINE):
            assert run(*arguments.split(), "--help").returncode == 0
    done = subprocess.run(
        [analyze, "verify", f"--{manager}", *(str(tmp_path / unit.name) for unit in units)],
        env=environment(XDG_RUNTIME_DIR=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_waits_on_a_host_is_looked_for_by_the_command_of_the_page(tmp_path):
    """It runs as the page prints it, also where nothing waits."""
    programs = f"{Path(PROGRAM).parent}{os.pathsep}"
    shell(f'PATH="{programs}$PATH"\n{DELIVER}', ULTRAMON_STATE_DIR=tmp_path / "state")


@pytest.mark.exhaustive
def test_the_linter_of_dockerfiles_finds_nothing():
    """hadolint, with all its rules."""
    linter = Path(sys.executable).parent / "hadolint"
    if not linter.is_file():
        missing("hadolint is not installed")
    done = subprocess.run(
        [linter, "--no-color", str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_gets_the_files_that_it_needs():
    """What the Dockerfile copies is let through, exists, and what it installs has those extras."""
    import tomllib

    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    let_through = {line[1:] for line in lines if line.startswith("!")}
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert set(copied) == let_through
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = re.findall(r"'\.\[([a-z,]+)\]'", text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [arguments] = re.findall(r"^CMD \[(.+)\]$", text.split("ENTRYPOINT")[1], re.MULTILINE)
    assert run(*re.findall(r'"([^"]+)"', arguments), "--help").returncode == 0
