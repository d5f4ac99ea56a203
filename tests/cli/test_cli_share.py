"""`ultramon share`: begins, says how it goes, shows the rows, stops, and takes them back."""

import json
import os
import signal
import time

import pytest
from helpers.postgres_roles import login, server  # noqa: F401
from helpers.program import run
from helpers.sharing import Machine, dump, rows_of, work
from helpers.waiting import until

from ultramon.backends.postgres.admin.roles import MACHINE, WRITER
from ultramon.hosts.resident.sharing import is_running


@pytest.fixture
def machine(tmp_path, login):
    made = Machine(tmp_path / "machine", login(MACHINE))
    (made.directory / "share.json").unlink()
    yield made
    status = made.status()
    if status.get("isRunning"):
        os.kill(status["pid"], signal.SIGKILL)
    made.end()


@pytest.fixture
def share(machine):
    """Run the command as a person on that machine."""
    return lambda *words: run("share", *words, "--state-dir", machine.directory)


def test_it_begins_goes_on_and_takes_everything_back(machine, share, server):
    """A process in the background sends; stop ends it; erase leaves no row and no identity."""
    with machine.agent("scout-1", label="Anna's label") as agent:
        work(agent, 150_000)
        done = share(machine.choices.url, "--name", "attic", "--keep", "2d")
        assert (done.returncode, done.stdout[:12]) == (0, "ok       sha"), done
        assert "1 agent, 1 of them alive" in done.stdout
        assert "no text: --with labels,tasks,paths would add some" in done.stderr
        assert is_running(str(machine.directory))
        machine_id = machine.identity.machine_id
        rows = rows_of(server, "machines", "machine_id, name, sent_fields, retention_seconds")
        assert rows == [(machine_id, "attic", "", 172_800.0)]
        [(there, label)] = rows_of(server, "agents", "agent_id, label")
        assert (share("--id", "scout-1").stdout, label) == (f"{there}\n", None)
        assert share("--with", "labels").returncode == 0
        until(lambda: rows_of(server, "agents", "label") == [("Anna's label",)])
        facts = json.loads(share("--json").stdout)
        assert (facts["with"], facts["machineId"], facts["isRunning"]) == (
            ["labels"], machine_id, True,
        )  # fmt: skip
        assert share("--stop").stdout.startswith("Nothing is sent any more")
        assert not is_running(str(machine.directory))
        assert "is stopped; what was sent is still in the database" in share().stdout
        assert share("--start").returncode == 0
        done = share("--stop", "--erase")
        assert "deleted there: 1 reading" in done.stdout
    left = {table for table, row in dump(server) if machine_id in row}
    assert left == {"pruned_agents"}
    assert machine.identity is None
    assert sorted(path.name for path in machine.directory.glob("share*")) == ["share.lock"]
    assert share().returncode == 1


def test_show_prints_the_rows_that_are_sent(machine, share, server):
    """Before anything is sent, and nothing is; later the same rows are found in the database."""
    machine.agent("other", label="Anna's label").stop()
    before = [json.loads(line) for line in share("--show").stdout.splitlines()]
    assert {row["table"] for row in before} == {"machines", "agents", "events"}
    assert machine.identity is None
    assert not (machine.directory / "share.json").exists()
    assert share(machine.choices.url).returncode == 0
    shown = [json.loads(line) for line in share("--show").stdout.splitlines()]
    agents = [one["row"] for one in shown if one["table"] == "agents"]
    events = [one["row"] for one in shown if one["table"] == "events"]
    columns = "agent_id, generation, seq, run, model, document"
    assert rows_of(server, "agents", columns) == [
        tuple(row[name] for name in columns.split(", ")) for row in agents
    ]
    assert rows_of(server, "events", "key, payload", "true ORDER BY id") == [
        (row["key"], row["payload"]) for row in events
    ]
    named = share("--show", "--with", "labels").stdout
    assert "Anna's label" in named
    assert "Anna's label" not in share("--show").stdout
    assert share("--stop").returncode == 0


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:hunter2@db.example.org/agents",
        "postgresql://anna@db.example.org/agents?password=hunter2",
        "postgresql://anna@db.example.org/agents?sslpassword=hunter2",
    ],
)
def test_a_password_on_the_command_line_is_refused(share, machine, url):
    """It names the cure and not the password, and stores nothing."""
    done = share(url)
    assert done.returncode == 1
    assert "~/.pgpass" in done.stderr
    assert "--url-file" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    assert not (machine.directory / "share.json").exists()


def test_the_url_may_stand_in_a_private_file(share, machine, tmp_path, server):
    """With its password; one that others may read is refused."""
    path = tmp_path / "url"
    path.write_text(machine.choices.url.replace("@", ":secret@") + "\n")
    path.chmod(0o644)
    done = share("--url-file", path)
    assert "a file of mode 0600" in done.stderr
    path.chmod(0o600)
    assert share("--url-file", path).returncode == 0
    assert len(rows_of(server, "machines")) == 1
    kept = [one for one in machine.directory.glob("share*") if one.is_file()]
    assert not any(b"secret@" in one.read_bytes() for one in kept)
    assert share("--stop").returncode == 0


def test_what_is_no_choice_is_refused(share, machine):
    """Each with what is allowed; nothing is stored."""
    url = machine.choices.url
    assert "some of labels, tasks, paths" in share(url, "--with", "prompts").stderr
    assert "an hour or more" in share(url, "--keep", "5m").stderr
    assert "printable" in share(url, "--name", "a\x1bb").stderr
    assert "is not allowed" in share("mysql://db/agents").stderr
    assert share("--erase").returncode == 2
    assert "nothing is shared" in share().stderr
    assert "nothing is shared" in share("--stop").stderr
    assert "has not shared yet" in share("--id", "a").stderr
    assert not (machine.directory / "share.json").exists()


def test_a_database_that_is_away_is_said(share, machine):
    """The choices are stored, nothing is lost, and the doctor says it too."""
    done = share(machine.choices.url.replace("127.0.0.1", "127.0.0.9"))
    assert done.returncode == 1
    assert "warning  sharing: postgresql://" in done.stdout
    assert "nothing is lost: 0 readings and all events wait here" in done.stdout
    doctor = run("doctor", "--state-dir", machine.directory)
    assert "warning  sharing: postgresql://" in doctor.stdout
    failed = share("--stop", "--erase")
    assert failed.returncode == 1
    # The URL is still known: given again, it erases when the database is back.
    assert (machine.directory / "share.json").exists()


def test_a_user_that_may_not_is_said(share, machine, login):
    """A writer's rows are no machine's."""
    done = share(login(WRITER))
    assert done.returncode == 1
    assert "has taken nothing" in done.stdout
    assert share("--stop").returncode == 0


@pytest.mark.exhaustive
def test_a_process_that_was_killed_is_said_and_started_again(share, machine):
    """The doctor names the cure."""
    assert share(machine.choices.url).returncode == 0
    os.kill(machine.status()["pid"], signal.SIGKILL)
    until(lambda: not is_running(str(machine.directory)))
    done = share()
    assert "no process sends agents to postgresql://" in done.stdout
    assert "ultramon share --start" in done.stdout
    assert share("--start").returncode == 0
    assert share("--stop").returncode == 0


def test_in_the_foreground_it_runs_until_a_signal(machine, share):
    """As a service does; a second one leaves it to the first."""
    from subprocess import Popen

    from helpers.program import PROGRAM, environment

    command = [PROGRAM, "share", "--foreground", "--state-dir", str(machine.directory)]
    machine.choices.save(str(machine.directory))
    process = Popen(command, env=environment(), stdout=-3, stderr=-3)
    until(lambda: machine.status().get("sentAt"), process)
    second = Popen(command, env=environment(), stdout=-3, stderr=-3)
    assert second.wait(60) == 0
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert time.monotonic() - began < 10
