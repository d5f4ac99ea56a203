"""`ultramon check` as installed: its exit codes, and whom it is about."""

import json
import time

import pytest
from helpers.alert_project import SESSION, store_agent
from test_cli_alert import fill, program, project  # noqa: F401 - fixtures

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.exit_codes import ExitCode


@pytest.mark.parametrize(
    ("percentage", "age_seconds", "status", "code"),
    [
        (50, 0, "ok", 0),
        (70, 0, "warning", 50),
        (85, 0, "caution", 51),
        (90, 0, "critical", 52),
        (95, 0, "emergency", 53),
        (50, 86_400, "stale", 54),
    ],
)
def test_a_check_ends_with_the_code_of_the_status(
    project, program, percentage, age_seconds, status, code
):
    """One line on stdout; with --quiet nothing; whatever was alerted before."""
    fill(project, percentage, age_seconds=age_seconds)
    program("alert")
    done = program("check")
    is_reached = status not in ("ok", "stale")
    said = f"; {status} is {percentage} % of 200k and more" * is_reached
    shown = f"{status}: {percentage}% ({percentage * 2000}/200000 tokens){said}\n"
    assert (done.returncode, done.stdout) == (code, shown)
    assert done.stderr == ("it is 86400 s old\n" if status == "stale" else "")
    quiet = program("check", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (code, "", "")
    done = program("check", "--json")
    assert done.returncode == code
    value = json.loads(done.stdout)
    assert (value["exitCode"], value["status"], value["percentage"]) == (code, status, percentage)
    assert "alerted" not in value


def test_a_check_without_data_is_stale_and_never_ok(project, program):
    """No session, nothing of it, and what cannot be read end with 54 and a word on stderr."""
    done = program("check")
    assert (done.returncode, done.stdout) == (ExitCode.STALE, "stale\n")
    assert done.stderr == f"no data of {SESSION}\n"
    project.file().write_text("{")
    assert program("check", "--quiet").returncode == 54
    assert str(project.file()) in program("check").stderr
    project.choose("")
    assert program("check").stderr == "no session is named\n"
    assert program("check", "--session", "../x").returncode == 54
    assert json.loads(program("check", "--json").stdout)["reason"] == "no session is named"


def test_an_agent_is_found_by_label_and_beginning_of_its_id(project, program, tmp_path):
    """As for every command; two that fit are no status."""
    for agent_id, label in (("scout-1", "night shift"), ("scout-2", None)):
        store_agent(tmp_path / "state", agent_id, 0.87, time.time(), label=label)
    assert program("check", "--session", "night shift").returncode == 51
    assert program("check", "--session", "scout-2").returncode == 51
    assert program("check", "--session", "scout").returncode == ExitCode.AMBIGUOUS
    assert program("alert", "--session", "night shift").returncode == 1
    # What a program names in the environment is meant to the letter.
    assert program("check", ULTRAMON_AGENT_ID="scout-").returncode == ExitCode.STALE


def test_the_state_directory_can_be_named(project, program, tmp_path):
    """For both, and for the history."""
    other = tmp_path / "other"
    store_agent(other, "scout-1", 0.87, time.time())
    where = ("--session", "scout-1", "--state-dir", other)
    assert program("check", *where).returncode == 51
    assert program("check", *where[:2]).returncode == 54
    assert program("alert", *where).returncode == 1
    assert "caution" in program("alert", "--history", *where).stdout
    backend = LocalBackend(str(other))
    assert [event["type"] for event in backend.events().events] == ["context_alert"]
    backend.close()
