"""An alert among files, settings and streams that are not as they should be: no caller notices."""

import io
import json
import logging
import os
import stat
import subprocess
from contextlib import contextmanager

import pytest
from helpers.alert_project import SESSION, Project, reading
from helpers.obstacles import plant
from helpers.program import PROGRAM, environment
from helpers.requirements import as_nobody, directory_of_nobody, read_only

from ultramon import AlertConfig, alerting, check_and_alert_context
from ultramon.testing import FakeClock

LOG = "ultramon.alerts"
NOW = FakeClock().now()


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path / "project", FakeClock())


def ask(project, caplog, **arguments):
    """Ask for an alert; return the outcome, what was written, and the lines of the log."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger=LOG):
        outcome, text = project.alert(**arguments)
    return outcome, text, [record.getMessage() for record in caplog.records if record.name == LOG]


def window(**members):
    """A reading whose window holds these numbers alone."""
    return json.dumps(reading(72, NOW, contextWindow=members))


NO_READINGS = {
    "empty": "",
    "blank": " \n",
    "half": '{"timestamp": "2026-01-01T00:00:00Z", "contextWin',
    "two values": "{}{}",
    "a list": "[]",
    "a number": "72",
    "null": "null",
    "nothing in it": "{}",
    "a window that is a list": '{"contextWindow": [72]}',
    "an empty window": window(),
    "NaN": '{"contextWindow": {"percentage": NaN}}',
    "infinity": '{"contextWindow": {"percentage": Infinity}}',
    "beyond all floats": '{"contextWindow": {"percentage": 1e999}}',
    "a huge whole number": window(percentage=10**400),
    "more digits than Python reads": '{"contextWindow": {"percentage": %s}}' % ("9" * 5000),
    "less than nothing": window(percentage=-1),
    "a percentage as text": window(percentage="72"),
    "a percentage that is true": window(percentage=True),
    "tokens as text": window(percentage=72, currentTokens="144000", maxTokens=200_000),
    "a size of zero": window(percentage=72, currentTokens=0, maxTokens=0),
    "a negative size": window(percentage=72, currentTokens=1, maxTokens=-200_000),
    "negative tokens": window(percentage=72, currentTokens=-1, maxTokens=200_000),
    "half a token": window(percentage=72, currentTokens=0.5, maxTokens=200_000),
    "no size to divide by": window(currentTokens=1),
    "nested too deeply": '{"a":' * 100_000,
    "not UTF-8": b"\xff\xfe{}",
    "zero bytes": b"\0" * 100,
    "more than a megabyte": b'{"a":"' + b"x" * (1 << 20) + b'"}',
}


@pytest.mark.parametrize("content", NO_READINGS.values(), ids=NO_READINGS)
def test_what_is_no_reading_is_one_line_in_the_log(project, caplog, content):
    """Nothing is said and nothing remembered; another session's numbers are not taken instead."""
    data = content if isinstance(content, bytes) else content.encode()
    project.file().write_bytes(data)
    (project.path / ".context-state.json").write_text(json.dumps(reading(96, NOW)))
    outcome, text, lines = ask(project, caplog)
    assert (outcome.alerted, outcome.status, outcome.percentage, text) == (False, "stale", None, "")
    assert len(lines) == 1
    assert str(project.file()) in lines[0]
    assert "\n" not in lines[0]
    assert list(project.path.glob(".context-alert*")) == []


@pytest.mark.parametrize(
    ("members", "percentage"),
    [
        ({"currentTokens": 150_000, "maxTokens": 200_000}, 75),
        ({"percentage": 72, "currentTokens": None, "maxTokens": None}, 72),
        ({"percentage": 72.5, "currentTokens": 145_000.0, "maxTokens": 2e5}, 72.5),
        ({"percentage": 72, "cacheReads": {"deep": [1]}}, 72),
    ],
)
def test_what_can_be_understood_is_taken(project, caplog, members, percentage):
    """A percentage, or the two numbers it is made of; what else is there does not matter."""
    project.file().write_text(window(**members))
    outcome, _, lines = ask(project, caplog)
    assert (outcome.alerted, outcome.percentage, lines) == (True, percentage, [])


def victim(tmp_path):
    """A reading that is not to be taken through a link."""
    path = tmp_path / "target"
    path.write_text(json.dumps(reading(96, NOW)))
    return path


KINDS = ["link", "link in a circle", "pipe", "directory", "socket", "device"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_reading_that_is_no_file_is_not_read(project, tmp_path, monkeypatch, caplog, kind):
    """Links are not followed, pipes not waited for, devices not opened."""
    monkeypatch.chdir(project.file().parent)
    plant(kind, project.file(), victim(tmp_path))
    outcome, text, lines = ask(project, caplog)
    assert (outcome.alerted, text) == (False, "")
    assert lines == [f"no alert: StateCorruptError: {project.file()}: not a regular file"]


@pytest.mark.parametrize("kind", [*KINDS, "huge", "bytes"])
def test_a_session_file_that_is_none_names_nobody(project, tmp_path, monkeypatch, caplog, kind):
    """Nor does one of another size than a name has."""
    project.write(72)
    path = project.path / ".current-session"
    path.unlink()
    monkeypatch.chdir(project.path)
    if kind in ("huge", "bytes"):
        path.write_bytes(b"a" * 5000 if kind == "huge" else b"\xff\xfe")
    else:
        plant(kind, path, victim(tmp_path))
    outcome, text, lines = ask(project, caplog)
    assert (outcome.alerted, text, len(lines)) == (False, "", 1)


NO_NAMES = ["../../etc/passwd", "a/b", ".", "..", "a b", "con", "x" * 200, "a\nb", "\x1b[31m", "ü",
            "-rf"]  # fmt: skip


@pytest.mark.parametrize(
    ("given_by", "name"),
    [
        *((by, name) for by in ("argument", "variable", "file") for name in NO_NAMES),
        ("argument", "a\0b"),
        ("file", "a\0b"),
    ],
)
def test_an_id_that_is_no_name_becomes_no_path(project, monkeypatch, caplog, given_by, name):
    """Wherever it comes from; the log shows it escaped."""
    session = name if given_by == "argument" else None
    if given_by == "variable":
        monkeypatch.setenv("ULTRAMON_AGENT_ID", name)
    elif given_by == "file":
        project.choose(name)
    (project.path / ".context-state.json").write_text(json.dumps(reading(96, NOW)))
    before = sorted(project.path.parent.rglob("*"))
    outcome, text, lines = ask(project, caplog, session=session)
    assert (outcome.alerted, text, len(lines)) == (False, "", 1)
    assert lines[0].isprintable()
    assert sorted(project.path.parent.rglob("*")) == before


# --- the memory


MEMORIES = [f".context-last-alert-{SESSION}", f".context-alert-{SESSION}.json"]


@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("kind", ["link", "link in a circle", "pipe", "socket", "device"])
def test_a_memory_that_is_no_file_is_replaced_and_not_written_through(
    project, tmp_path, monkeypatch, caplog, name, kind
):
    """It counts as nothing remembered; what a link leads to stays as it is."""
    monkeypatch.chdir(project.path)
    target = tmp_path / "target"
    plant(kind, project.path / name, target)
    before = target.read_bytes() if target.exists() else None
    project.write(72)
    outcome, _, lines = ask(project, caplog)
    assert (outcome.alerted, lines) == (True, [])
    assert (project.path / name).is_file()
    assert not (project.path / name).is_symlink()
    assert (target.read_bytes() if target.exists() else None) == before
    assert not ask(project, caplog)[0].alerted


@pytest.mark.parametrize("content", ["{", "[1]", '{"alertedAt": "now", "counts": [1]}', "\0"])
def test_a_broken_memory_is_set_aside(project, caplog, content):
    """One that is no JSON is kept as evidence; either way the alert comes, and comes once."""
    path = project.path / MEMORIES[1]
    path.write_text(content)
    project.write(72)
    assert ask(project, caplog)[0].alerted
    assert not ask(project, caplog)[0].alerted
    corrupt = path.with_name(f"{path.name}.corrupt")
    assert corrupt.exists() is (content in ("{", "\0"))


def test_a_memory_that_cannot_be_written_costs_the_alert_nothing(project, caplog):
    """It comes, the log says that it will come again, and it does."""
    project.write(72)
    with read_only(project.path):
        for _ in range(2):
            outcome, text, lines = ask(project, caplog)
            assert (outcome.alerted, bool(text)) == (True, True)
            (line,) = lines
            assert line.startswith("the alert cannot be remembered and will come again: ")
        # What cannot be counted is looked at each time.
        assert ask(project, caplog, command="add", every=3)[0].alerted
    assert project.remembered() is None


def test_a_directory_in_place_of_the_memory_costs_the_alert_nothing(project, caplog):
    """Nothing can replace it."""
    (project.path / MEMORIES[0]).mkdir()
    project.write(72)
    for _ in range(2):
        outcome, _, lines = ask(project, caplog)
        assert (outcome.alerted, len(lines)) == (True, 1)


def test_project_files_have_the_modes_of_a_project(project, caplog):
    """As the umask says, so that the other users of a project can read them."""
    former = os.umask(0o002)
    try:
        project.write(72)
        ask(project, caplog)
    finally:
        os.umask(former)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in project.path.glob(".context-*")}
    assert modes == {0o664}


# --- the journal


@pytest.mark.parametrize("kind", ["directory", "text", "locked"])
def test_a_journal_that_takes_nothing_costs_the_alert_nothing(project, tmp_path, caplog, kind):
    """It comes and is remembered; the log says what is missing."""
    import sqlite3

    (tmp_path / "state").mkdir(mode=0o700)
    path = tmp_path / "state" / "journal.sqlite3"
    writer = None
    if kind == "directory":
        path.mkdir()
    elif kind == "text":
        path.write_text("no database" * 100)
        path.chmod(0o600)
    else:
        project.write(72, "before")
        ask(project, caplog, session="before")
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
    project.write(72)
    outcome, text, lines = ask(project, caplog)
    if writer is not None:
        writer.close()
    assert (outcome.alerted, bool(text), project.remembered()) == (True, True, "warning")
    (line,) = lines
    assert line.startswith(f"the alert is not in the journal: {path}: ")


# --- streams, clocks, settings


class Closed(io.StringIO):
    """A stream whose reader is gone."""

    def write(self, _text):
        raise BrokenPipeError(32, "Broken pipe")


class Odd:
    """Something that is no stream at all."""


def closed_stream():
    stream = io.StringIO()
    stream.close()
    return stream


@contextmanager
def ascii_stream():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    yield raw, stream
    stream.detach()


@pytest.mark.parametrize("make", [Closed, closed_stream, Odd])
def test_a_stream_that_cannot_be_written_hurts_nobody(project, caplog, make):
    """The command continues; the log has the line."""
    project.write(72)
    with (
        caplog.at_level(logging.DEBUG, logger=LOG),
        alerting(directory=str(project.path), stream=make(), clock=project.clock),
    ):
        pass
    assert len([record for record in caplog.records if record.name == LOG]) == 1


def test_a_process_without_stderr_alerts_nobody_and_goes_on(project, monkeypatch, caplog):
    """As under a launcher without a console."""
    monkeypatch.setattr("sys.stderr", None)
    project.write(72)
    outcome = check_and_alert_context(directory=str(project.path), clock=project.clock)
    assert outcome.alerted


def test_a_text_beyond_the_encoding_is_escaped(project):
    """An action with a letter that the stream does not have is shown nevertheless."""
    project.write(72)
    config = AlertConfig(actions={"warning": "für heute genug: ✓"})
    with ascii_stream() as (raw, stream):
        check_and_alert_context(
            directory=str(project.path), stream=stream, config=config, clock=project.clock
        )
        assert raw.getvalue().splitlines()[1] == b"Action: f\\xfcr heute genug: \\u2713"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("warning_threshold = 2", "warning_threshold=2 (from "),
        ("nonsense = 1", "[alerts] setting='nonsense' (from "),
        ("= 1", "must be a readable TOML file"),
    ],
)
def test_wrong_settings_are_a_line_in_the_log(
    project, monkeypatch, tmp_path, caplog, setting, said
):
    """The tool that asked for an alert notices nothing else of it."""
    monkeypatch.setenv("ULTRAMON_CONFIG", str(tmp_path / "ultramon.toml"))
    (tmp_path / "ultramon.toml").write_text(f"[alerts]\n{setting}\n")
    project.write(72)
    with caplog.at_level(logging.DEBUG, logger=LOG):
        outcome = check_and_alert_context(directory=str(project.path), clock=project.clock)
    assert (outcome.alerted, outcome.status) == (False, "stale")
    (record,) = caplog.records
    assert said in record.getMessage()


def test_wrong_arguments_are_a_line_in_the_log(project, caplog):
    """Whatever their kind."""
    project.write(72)
    for arguments in ({"session": 7}, {"command": ["list"], "every": 2}, {"every": 0}):
        outcome, text, lines = ask(project, caplog, **arguments)
        assert (outcome.alerted, text, len(lines)) == (False, "", 1), arguments


@pytest.mark.parametrize("variable", ["ULTRAMON_NO_ALERT", "ULTRAMON_DISABLED"])
def test_one_variable_turns_it_off(project, monkeypatch, caplog, variable):
    """Nothing is read, said or remembered."""
    monkeypatch.setenv(variable, "1")
    project.write(96)
    outcome, text, lines = ask(project, caplog, force=True)
    assert (outcome.alerted, outcome.status, text, lines) == (False, None, "", [])
    assert project.remembered() is None


# --- permissions, which count for others than root


def test_a_user_without_permission_is_told_nothing_but_by_the_exit_code(tmp_path):
    """Unreadable readings are silent; where only the memory cannot be written, the alert comes."""
    with directory_of_nobody() as mine:
        clock = FakeClock(start=2_000_000_000.0)
        project = Project(mine / "project", clock)
        project.file().write_text(json.dumps(reading(72, 1.0)))
        command = [*as_nobody(), PROGRAM, "alert", "--directory", str(project.path), "--force"]
        env = environment(ULTRAMON_STATE_DIR=str(mine / "state"), HOME=str(mine))
        for mode, code in ((0o600, 0), (0o644, 1)):
            project.file().chmod(mode)
            done = subprocess.run(
                command, env=env, cwd=mine, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout) == (code, "")
            assert done.stderr.startswith("[CONTEXT ALERT] STALE: ") is bool(code)
        assert list(project.path.glob(".context-*")) == []
