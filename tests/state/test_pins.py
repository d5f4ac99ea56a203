"""The file of pins and its command: private, bounded, and never replaced when it is not ours."""

from __future__ import annotations

import json
import os
import stat
import subprocess

import pytest
from helpers import program
from helpers.hooked_session import SESSION, HookedSession

from ultramon.errors import ConfigurationError, StateCorruptError
from ultramon.state.pins import MAX_PIN_CHARS, MAX_PINS, Pin, Pins

RULE = "Never touch  the `migrations`\nfolder."


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


@pytest.fixture
def pins(session):
    return Pins(str(session.state))


@pytest.fixture
def pin(session):
    """Run the command in the project."""

    def pin(*arguments):
        return program.run("host", "pin", "--state-dir", str(session.state), *arguments)

    return pin


def put(pins, owner, text, *, is_session=False):
    return pins.add(Pin(str(owner), text, None), is_session=is_session)


# --- the file


def test_pins_are_private_and_gone_when_the_last_is_removed(session, pins):
    assert put(pins, session.project, RULE) == 1
    assert stat.S_IMODE(os.stat(pins.path).st_mode) == 0o600
    pins.remove(str(session.project), 1, is_session=False)
    assert pins.of(str(session.project)) == []
    with open(pins.path) as file:
        assert json.load(file) == {"schema": 1, "projects": {}, "sessions": {}}


@pytest.mark.parametrize("text", ["", " \n", "x" * (MAX_PIN_CHARS + 1)])
def test_a_pin_is_neither_empty_nor_endless(session, pins, text):
    with pytest.raises(ConfigurationError, match="1 to 4,000 characters"):
        put(pins, session.project, text)


def test_a_project_has_50_pins_at_most(session, pins):
    for number in range(MAX_PINS):
        put(pins, session.project, f"rule {number}")
    with pytest.raises(ConfigurationError, match="at most 50"):
        put(pins, session.project, "one more")


@pytest.mark.parametrize(
    "data",
    ["[]", "{}", '{"schema": 2, "projects": {}, "sessions": {}}', '{"schema": 1, "projects": []}'],
)
def test_a_file_that_nobody_of_ours_wrote_is_never_replaced(session, pins, data):
    with open(pins.path, "w") as file:
        file.write(data)
    with pytest.raises(StateCorruptError, match=r"pins\.json"):
        put(pins, session.project, RULE)
    with open(pins.path) as file:
        assert file.read() == data


# --- the command


def test_the_command_pins_lists_and_removes(session, pin, monkeypatch):
    monkeypatch.chdir(session.project)
    (session.project / "RULES.md").write_text("x")
    done = pin(RULE)
    assert (done.returncode, done.stdout) == (0, "1  Never touch the `migrations` folder.\n")
    assert done.stderr == f"pinned as number 1 of {session.project}\n"
    assert pin("--file", "RULES.md").stdout.splitlines()[1] == (
        f"2  file {session.project / 'RULES.md'}"
    )
    listed = json.loads(pin("--list", "--json").stdout)
    assert listed == {
        "project": str(session.project),
        "path": str(session.state / "pins.json"),
        "pins": [{"text": RULE}, {"file": str(session.project / "RULES.md")}],
    }
    done = pin("--remove", "1")
    assert done.stdout == f"1  file {session.project / 'RULES.md'}\n"
    assert pin("--remove", "2").stderr.endswith("must be 1 to 1\n")
    assert pin("--remove", "1").stderr.endswith(f"nothing is pinned for {session.project}\n")


def test_the_command_pins_for_one_session(session, pin, pins):
    session.tool(20_000)
    assert pin("--session", SESSION[:4], RULE).returncode == 0
    assert [one.text for one in pins.stored(SESSION, is_session=True)] == [RULE]
    assert pin("--session", "nobody", RULE).returncode == 3


@pytest.mark.parametrize(
    "arguments",
    [["a", "--list"], ["a", "--remove", "1"], ["--session", "a", "--project", "/"]],
)
def test_what_excludes_each_other_is_refused(pin, arguments):
    done = pin(*arguments)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_rule_is_read_from_stdin(session, pins):
    subprocess.run(
        [program.PROGRAM, "host", "pin", "-", "--project", session.project,
         "--state-dir", session.state],
        input=f"{RULE}\n", text=True, env=program.environment(), check=True, capture_output=True,
    )  # fmt: skip
    assert [one.text for one in pins.of(str(session.project))] == [RULE]


def test_a_file_that_is_not_there_is_not_pinned(pin, pins):
    done = pin("--file", "/nowhere/RULES.md")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/nowhere/RULES.md" in done.stderr
    assert not os.path.exists(pins.path)
