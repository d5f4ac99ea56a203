"""`ultramon alert` and `ultramon check` as installed: exit codes, streams, terminals, settings."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import DATA, ROOT
from helpers.alert_project import SESSION, Project, store_agent
from helpers.program import PROGRAM, environment, loaded_by, run

from ultramon.cli.exit_codes import ExitCode

SEQUENCES = json.loads((DATA / "alerts.json").read_text())
LONG = {"heartbeatIntervalSeconds": 3600}
"""Fresh for as long as a test may take."""
NO_TIME_PASSES = [s for s in SEQUENCES if not any(step[2:3] > [0] for step in s["steps"])]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project in the working directory, whose readings are as of now."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Project(tmp_path / "work" / ".ultramon")


@pytest.fixture
def program(tmp_path):
    """Runs the program with a state directory of the test."""

    def call(*arguments, **changes):
        return run(*arguments, **{"ULTRAMON_STATE_DIR": str(tmp_path / "state"), **changes})

    return call


def fill(project, percentage, session=SESSION, age_seconds=0):
    """Write a reading that stays fresh, or one that is old."""
    project.write(percentage, session, at=time.time() - age_seconds, **LONG)


def variables(config):
    """Settings as the environment names them."""
    named = {f"ULTRAMON_ALERT_{name.upper()}": str(value) for name, value in config.items()}
    if "enabled" in config:
        named["ULTRAMON_NO_ALERT"] = str(not config["enabled"])
    return named


# --- alert


@pytest.mark.parametrize("sequence", NO_TIME_PASSES, ids=lambda sequence: sequence["what"])
def test_the_program_alerts_as_the_call_does(project, program, sequence):
    """1 and two lines on a pipe for each alert, else 0 and nothing; never anything on stdout."""
    for percentage, expected, *more in sequence["steps"]:
        fill(project, percentage, age_seconds=86_400 if more[1:] == ["old"] else 0)
        done = program("alert", **variables(sequence.get("config", {})))
        assert (done.returncode, done.stdout) == (1 if expected else 0, "")
        if expected:
            head, action = done.stderr.splitlines()
            assert head.startswith(f"[CONTEXT ALERT] {expected.upper()}: ")
            assert action.startswith("Action: ")
        else:
            assert done.stderr == ""
    assert project.remembered() == sequence["remembered"]


@pytest.mark.parametrize("why", ["no directory", "no session", "no data", "broken", "a link"])
def test_where_there_is_nothing_to_say_nothing_happens(project, program, tmp_path, why):
    """Neither word nor trace, and success."""
    if why == "no directory":
        for path in sorted(project.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        project.path.rmdir()
    elif why == "no session":
        project.choose("")
    elif why == "broken":
        project.file().write_text('{"contextWindow": {"percentage": NaN}}')
    elif why == "a link":
        project.file().symlink_to("/dev/zero")
    before = sorted(tmp_path.rglob("*"))
    done = program("alert")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_working_directory_that_is_gone_changes_nothing(tmp_path):
    """An agent is found all the same, and a project is not."""
    state = tmp_path / "state"
    store_agent(state, "scout-1", 0.87, time.time())
    script = "mkdir gone; cd gone; rmdir ../gone; ultramon check --quiet; echo $?; ultramon alert"
    changes = {"PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
    for agent, codes in (("scout-1", ("51\n", 1)), ("", ("54\n", 0))):
        done = subprocess.run(
            ["sh", "-c", script],
            capture_output=True,
            encoding="utf-8",
            cwd=tmp_path,
            env=environment(ULTRAMON_STATE_DIR=str(state), ULTRAMON_AGENT_ID=agent, **changes),
            check=False,
        )
        assert (done.stdout, done.returncode) == codes


def test_of_four_programs_at_once_one_alerts(project, tmp_path):
    """The first one; the others end with 0 and print nothing."""
    fill(project, 87)
    programs = [
        subprocess.Popen(
            [PROGRAM, "alert"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(ULTRAMON_STATE_DIR=str(tmp_path / "state")),
        )
        for _ in range(4)
    ]
    said = [(*one.communicate(timeout=60), one.returncode) for one in programs]
    assert sorted(code for _, _, code in said) == [0, 0, 0, 1]
    for out, text, code in said:
        assert (out, text.count(b"[CONTEXT ALERT] CAUTION")) == (b"", code)


def test_options_choose_what_the_call_chooses(project, program):
    """Session, directory, command, every, force, no-alert; variables for the first two."""
    fill(project, 72)
    fill(project, 87, "other")
    assert program("alert", "--no-alert", "--force").returncode == 0
    assert program("alert", "--session", "other").stderr.startswith("[CONTEXT ALERT] CAUTION")
    assert program("alert", ULTRAMON_AGENT_ID="other").returncode == 0
    assert program("alert", "--force", ULTRAMON_AGENT_ID="other").returncode == 1
    elsewhere = Project(project.path.parent / ".cleo")
    fill(elsewhere, 92)
    for options, changes in (
        (["--directory", ".cleo"], {}),
        (["--force"], {"ULTRAMON_ALERT_DIR": ".cleo"}),
    ):
        assert "CRITICAL: 92%" in program("alert", *options, **changes).stderr
    chosen = {"ULTRAMON_ALERT_COMMANDS": "complete,update"}
    assert program("alert", "--command", "list", **chosen).returncode == 0
    counted = [program("alert", "--command", "update", "--every", "2").returncode for _ in "ab"]
    assert counted == [0, 1]


def test_a_file_of_settings_counts(project, program):
    """As for the call; the action is the project's own."""
    Path("ultramon.toml").write_text(
        "[alerts]\nwarning_threshold = 0.4\n[alerts.actions]\nwarning = 'run: mytool wrap-up'\n"
    )
    fill(project, 45)
    assert program("alert", ULTRAMON_CONFIG="ultramon.toml").stderr.splitlines() == [
        "[CONTEXT ALERT] WARNING: 45% (90000/200000 tokens); warning is 40 % of 200k and more",
        "Action: run: mytool wrap-up",
    ]


@pytest.mark.parametrize("command", ["alert", "check"])
def test_wrong_settings_are_wrong_usage(project, program, command):
    """Distinguished from an alert by the exit code, and named."""
    fill(project, 72)
    done = program(command, ULTRAMON_ALERT_WARNING_THRESHOLD="0.9")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "caution_threshold=0.85 (from default) is not allowed" in done.stderr
    assert program(command, "--no-such-option").returncode == ExitCode.USAGE


def test_json_is_the_outcome_instead_of_words(project, program):
    """On stdout, and remembered like any alert."""
    fill(project, 72)
    done = program("alert", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == {
        "action": "a good point to finish the subtask in hand and to note what is left",
        "alerted": True,
        "limit": 200_000,
        "percentage": 72.0,
        "reason": "",
        "session": SESSION,
        "source": str(project.file()),
        "status": "warning",
        "tokens": 144_000,
    }
    assert (program("alert").returncode, program("alert").stderr) == (0, "")


def test_history_shows_the_alerts_of_a_session_or_all(project, program):
    """In the words of `ultramon events`, which shows them too."""
    assert program("alert", "--history").stderr == f"no alerts of {SESSION}\n"
    for percentage, session in ((72, SESSION), (87, "other"), (92, SESSION)):
        fill(project, percentage, session)
        program("alert", "--session", session, "--command", "complete")
    lines = program("alert", "--history").stdout.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        f"context_alert              {SESSION}  warning, 72 %, 144,000 of 200,000 tokens,"
        " after complete; warning is 70 % of 200k and more",
        f"context_alert              {SESSION}  critical, 92 %, 184,000 of 200,000 tokens,"
        " after complete; critical is 90 % of 200k and more",
    ]
    assert program("events", "--agent", SESSION, "--type", "context_alert").stdout == (
        "\n".join(lines) + "\n"
    )
    (other,) = program("alert", "--history", "--session", "other", "--json").stdout.splitlines()
    assert (json.loads(other)["level"], json.loads(other)["command"]) == ("caution", "complete")
    project.choose("")
    assert len(program("alert", "--history", "--json").stdout.splitlines()) == 3


# --- a terminal


def on_terminal(*arguments, columns=100, **changes):
    """Run the program with stderr on a real terminal and stdout in a pipe."""
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [PROGRAM, *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(**changes),
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65_536):
                shown += chunk
        except OSError:  # how Linux says that nobody has the terminal open any more
            pass
        os.close(ours)
        out = process.stdout.read()
        return process.wait(timeout=60), out.decode(), shown.decode("utf-8").replace("\r\n", "\n")


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("percentage", "age_seconds", "status", "colour"),
    [
        (45, 0, "OK", "32"),
        (75, 0, "WARNING", "33"),
        (87, 0, "CAUTION", "93"),
        (92, 0, "CRITICAL", "31"),
        (96, 0, "EMERGENCY", "91"),
        (75, 86_400, "STALE", "2"),
    ],
)
def test_a_terminal_gets_a_box_in_the_colour_of_the_status(
    project, tmp_path, percentage, age_seconds, status, colour
):
    """Drawn with Unicode, each line as wide as the others; stdout stays empty."""
    fill(project, percentage, age_seconds=age_seconds)
    code, out, shown = on_terminal("alert", "--force", ULTRAMON_STATE_DIR=str(tmp_path / "state"))
    assert (code, out) == (1, "")
    assert f"\x1b[{colour}m╔" in shown
    lines = plain(shown).splitlines()
    assert {len(line) for line in lines} == {76}
    assert (lines[0][0], lines[-1][0]) == ("╔", "╚")
    assert lines[1].startswith(f"║ CONTEXT [{status}]: ")
    tokens = f"{percentage}% ({percentage * 2000}/200000 tokens)"
    assert tokens in " ".join(line.strip("║ ") for line in lines)
    assert any(line.startswith("║ Action: ") for line in lines)


@pytest.mark.parametrize(
    ("changes", "coloured", "boxed"),
    [
        ({}, True, "╔"),
        ({"NO_COLOR": "1"}, False, "╔"),
        ({"TERM": "dumb"}, False, "╔"),
        ({"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}, True, "+-"),
    ],
)
def test_a_terminal_gets_what_it_can_show(project, tmp_path, changes, coloured, boxed):
    """NO_COLOR, TERM=dumb and an encoding without Unicode are honoured."""
    fill(project, 87)
    state = str(tmp_path / "state")
    _, _, shown = on_terminal("alert", "--force", ULTRAMON_STATE_DIR=state, **changes)
    assert ("\x1b[" in shown) is coloured
    assert plain(shown).startswith(boxed)
    assert "CONTEXT [CAUTION]: 87% (174000/200000 tokens)" in plain(shown)


def test_a_narrow_terminal_gets_a_narrow_box(project, tmp_path):
    """The words are wrapped inside it."""
    fill(project, 87)
    state = str(tmp_path / "state")
    _, _, shown = on_terminal("alert", "--force", columns=40, ULTRAMON_STATE_DIR=state)
    assert {len(line) for line in plain(shown).splitlines()} == {40}


@pytest.mark.parametrize(
    ("changes", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_a_pipe_gets_two_lines_in_colour_only_when_forced(project, program, changes, coloured):
    """The same two lines either way."""
    fill(project, 87)
    done = program("alert", "--force", **changes)
    assert ("\x1b[93m" in done.stderr) is coloured
    assert plain(done.stderr).startswith(
        "[CONTEXT ALERT] CAUTION: 87% (174000/200000 tokens); caution is 85 % of 200k and more\nAct"
    )
    assert plain(done.stderr).count("\n") == 2


# --- other tools


def test_neither_command_loads_what_it_does_not_need(project, tmp_path):
    """Where nothing is drawn: no pydantic, no rich, no SQLite, no logging of problems."""
    fill(project, 45)
    heavy = ["pydantic", "transitions", "rich", "blinker", "sqlite3", "logging", "tomllib",
             "ultramon.context.config", "ultramon.backends.opening"]  # fmt: skip
    for command in ("alert", "check"):
        assert loaded_by([command], heavy, ULTRAMON_STATE_DIR=str(tmp_path / "state")) == ""


TOOL = [sys.executable, "-W", "error", str(ROOT / "examples" / "alerting_tool.py")]


def test_a_tools_own_output_and_exit_code_stay_as_they_are(project, tmp_path):
    """The example, among readings that cross and readings that are broken."""

    def call(*words, **changes):
        return subprocess.run(
            [*TOOL, *words],
            capture_output=True,
            encoding="utf-8",
            env=environment(ULTRAMON_STATE_DIR=str(tmp_path / "state"), **changes),
            check=False,
        )

    fill(project, 72)
    for number, alerts in enumerate([False, False, True]):
        done = call("add", f"task-{number}")
        assert (done.returncode, json.loads(done.stdout)) == (0, {"added": f"task-{number}"})
        assert done.stderr.startswith("[CONTEXT ALERT] WARNING") is alerts
    fill(project, 87)
    assert len(json.loads(call("list").stdout)) == 3
    failed = call("complete", "nothing")
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "no open task nothing\n")
    off = call("complete", "task-0", ULTRAMON_NO_ALERT="1")
    assert (off.returncode, off.stdout, off.stderr) == (0, '{"completed": "task-0"}\n', "")
    done = call("complete", "task-1")
    assert done.stderr.startswith(
        "[CONTEXT ALERT] CAUTION: 87% (174000/200000 tokens); caution is 85 %"
    )
    assert "stop" not in done.stderr.lower()
    project.file().write_bytes(b"\xff" * 100)
    done = call("complete", "task-2")
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"completed": "task-2"}\n', "")


def test_the_line_for_a_shell_keeps_the_commands_exit_code(project, program, tmp_path):
    """As the help shows it: the alert is on stderr, and the script ends as its command did."""
    fill(project, 72)
    script = "mytool() { echo data; return 7; }; mytool; code=$?; ultramon alert; exit $code"
    changes = {"PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"}
    state = str(tmp_path / "state")
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        encoding="utf-8",
        env=environment(ULTRAMON_STATE_DIR=state, **changes),
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "data\n")
    assert done.stderr.startswith("[CONTEXT ALERT] WARNING")


def test_both_are_listed_alone_and_in_their_group(program):
    """Whoever looks for them finds them, by either way."""
    for words in ((), ("context",)):
        shown = program(*words, "--help").stdout
        assert re.search(r"^  alert +[A-Z]", shown, re.MULTILINE)
        assert re.search(r"^  check +[A-Z]", shown, re.MULTILINE)
