"""`ultramon on`, and what the doctor says about commands at events."""

import json
import os
import re
import sys
import time
from contextlib import closing

import pytest
from helpers import ROOT
from helpers.noted_program import NotedProgram
from helpers.program import run, run_process

from ultramon.backends.local.backend import LocalBackend
from ultramon.fleet.event_commands import ENVIRONMENT, EventCommands
from ultramon.notices.commands import EVENTS
from ultramon.state.command_runs import CommandRuns, StoredRuns, commands_key


@pytest.fixture
def program(tmp_path):
    return NotedProgram(tmp_path)


@pytest.fixture
def given(tmp_path):
    """The environment of a user with a settings file."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return {"ULTRAMON_CONFIG": str(tmp_path / "own.toml"), "ULTRAMON_STATE_DIR": str(state)}


def configure(given, text):
    with open(given["ULTRAMON_CONFIG"], "w") as file:
        file.write(text)


def runs_of(given):
    return StoredRuns(given["ULTRAMON_STATE_DIR"], commands_key(given["ULTRAMON_CONFIG"]))


def doctor(given):
    found = json.loads(run("doctor", "--json", **given).stdout)["findings"]
    return [
        (one["status"], one["message"], one["cure"]) for one in found if one["check"] == "commands"
    ]


@pytest.mark.parametrize("event", EVENTS)
def test_a_command_is_tried_with_sample_values(given, program, event):
    configure(given, f'on.{event}.run = ["{program.path}", "{{event}}", "{{label}}", "{{text}}"]')
    done = run("on", "test", event, **given)
    assert done.returncode == 0, done.stderr
    text = f"ultramon test: {EVENTS[event]}"
    assert program.calls == [[event, "ultramon test", text]]
    first, second = done.stdout.splitlines()
    assert first == f"{program.path} {event} 'ultramon test' '{text}'"
    assert second.startswith("ended after ")


def test_a_failure_is_said_and_fails(given):
    script = "import sys; print('no display', file=sys.stderr); sys.exit(3)"
    configure(given, f'on.critical.run = ["{sys.executable}", "-c", "{script}"]')
    done = run_process("on", "test", "critical", **given)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1] == "exit code 3: no display"
    shown = json.loads(run("on", "test", "critical", "--json", **given).stdout)
    assert (shown["exitCode"], shown["problem"]) == (3, "exit code 3: no display")
    assert shown["file"] == given["ULTRAMON_CONFIG"]


def test_without_a_command_it_says_how_to_set_one(given):
    configure(given, "")
    done = run("on", "test", "critical", **given)
    assert done.returncode == 1
    assert "no command is set for critical" in done.stderr
    line = done.stderr.partition("in ultramon.toml: ")[2]
    configure(given, line)
    assert json.loads(run("on", "list", "--json", **given).stdout)["commands"][0]["run"] == [
        "notify-send", "{label}", "{percent} %",
    ]  # fmt: skip


def test_a_wrong_setting_is_one_line(given):
    configure(given, 'on.critcal.run = ["a"]')
    done = run("on", "list", **given)
    assert done.returncode == 1
    assert "did you mean critical?" in done.stderr


def test_a_value_that_is_nested_too_deep_is_one_line(given):
    configure(given, f"on.critical.run.{'.'.join('a' * 5_000)} = 1")
    done = run("on", "list", **given)
    assert done.returncode == 1
    assert "nested too deep" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_list_shows_what_each_did(given, program):
    configure(
        given,
        f'on.critical.run = ["{program.path}"]\non.waiting.run = ["{program.path}", "a b"]\n',
    )
    run("on", "test", "critical", **given)
    first, second = run("on", "list", **given).stdout.splitlines()
    assert first.startswith(f"critical  {program.path}: ran 1 time, last 2")
    assert second == f"waiting   {program.path} 'a b': has not run yet"
    shown = json.loads(run("on", "list", "--json", **given).stdout)
    critical, waiting = shown["commands"]
    assert (critical["ran"], critical["failed"], critical["lastProblem"]) == (1, 0, "")
    assert (waiting["event"], waiting["lastAt"]) == ("waiting", None)


def test_an_empty_list_is_said(given):
    configure(given, "")
    done = run("on", "list", **given)
    assert (done.stdout, done.stderr) == ("", "no command is set: [on] in ultramon.toml\n")


def test_the_doctor_says_that_no_process_runs_them(given, program):
    configure(given, f'on.critical.run = ["{program.path}"]')
    (own, silent) = doctor(given)
    assert own == ("ok", "critical: notify has not run yet", None)
    message, cure = "critical: no process is there to run them", "ultramon serve, web, watch or"
    assert silent[:2] == ("warning", message)
    assert silent[2].startswith(cure)


def test_the_doctor_is_content_while_one_runs_them(given, program, monkeypatch):
    configure(given, f'on.critical.run = ["{program.path}"]')
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    directory = given["ULTRAMON_STATE_DIR"]
    with closing(LocalBackend(directory)) as backend:
        watch = EventCommands(backend, directory)
        watch.look()
        assert [one[0] for one in doctor(given)] == ["ok"]
        watch.stop()


def test_the_doctor_says_what_failed_and_what_was_left_out(given, program):
    configure(given, f'on.critical.run = ["{program.path}"]')
    stored = runs_of(given)
    at = time.time()
    stored.mark_watched(at)
    stored.mark_watched(at)
    stored.add("critical", ended_at=at)
    stored.add("critical", skipped=3)
    stored.add("critical", late=1, ended_at=at, problem="exit code 1: no display")
    ((status, message, cure),) = doctor(given)
    assert status == "warning"
    assert message.startswith("critical: notify ran 2 times, last 2")
    assert message.endswith(
        "failed: exit code 1: no display, 3 events skipped as too many, 1 event seen too late"
    )
    assert cure == "ultramon on test critical runs it now"
    assert run("on", "test", "critical", **given).returncode == 0
    ((status, message, _),) = doctor(given)
    assert status == "ok"
    assert "failed 1 time before" in message


def test_the_doctor_names_a_program_that_is_not_there(given):
    configure(given, 'on.critical.run = ["ultramon-is-no-such"]')
    (missing, _) = doctor(given)
    assert missing[:2] == ("warning", "critical: ultramon-is-no-such is no program here")


def test_the_doctor_says_nothing_without_commands(given):
    configure(given, "")
    assert doctor(given) == []


def test_a_damaged_file_of_runs_counts_for_nothing(given, program):
    stored = runs_of(given)
    stored.add("critical", ended_at=1.0)
    with open(stored.path, "w") as file:
        file.write('{"runs": 1}')
    assert stored.read() == {}
    stored.write({"critical": CommandRuns(ran=7)})
    assert stored.read()["critical"].ran == 7
    assert os.stat(stored.path).st_mode & 0o077 == 0


def test_a_project_that_is_not_trusted_is_named(given, tmp_path, monkeypatch, program):
    monkeypatch.chdir(tmp_path)
    configure(given, "")
    (tmp_path / "ultramon.toml").write_text(f'on.critical.run = ["{program.path}"]')
    own = {
        "ULTRAMON_STATE_DIR": given["ULTRAMON_STATE_DIR"],
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    shown = run("doctor", "--json", **own).stdout
    assert "not taken: on.critical" in shown
    assert doctor(own) == []
    assert run("on", "test", "critical", **own).returncode == 1
    assert program.calls == []


def test_the_example_of_the_page_does_what_the_page_shows(given, tmp_path, program):
    """With a stand-in for the program that shows a notification."""
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    page = page[page.index("## Run a command") : page.index("## Terminals")]
    ((example, shown),) = re.findall(r"```toml\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)
    configure(given, example)
    program.path.rename(tmp_path / "notify-send")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    command, *lines = shown.splitlines()
    done = run_process(*command.split()[2:], **given, PATH=path)
    assert [re.sub(r"[0-9.]+ s$", "…", one) for one in done.stdout.splitlines()] == [
        re.sub(r"[0-9.]+ s$", "…", one) for one in lines
    ]
    assert program.calls == [["ultramon test", "88 % of the window, 176000 tokens"]]


def test_the_page_names_the_whole_environment():
    page = (ROOT / "docs" / "watch.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in (*ENVIRONMENT, "ULTRAMON_STATE_DIR"))
