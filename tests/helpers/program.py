"""Runs the command line as a program of its own, for the tests of what it prints."""

import logging
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from helpers import DATA
from ultramon.cli.views.agent_table import NO_AGENTS

CAPTURES = DATA / "captures"
PROGRAM = str(Path(sys.executable).parent / "ultramon")
"""The installed script, as people call it."""
NOTHING = f"{NO_AGENTS}\n"
"""What stderr says where there are no agents."""


def environment(**changes):
    """The environment of a person who has configured nothing, but the store of the test."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if (name == "ULTRAMON_BACKEND" or not name.startswith("ULTRAMON_"))
        and name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CLAUDE_CODE_SESSION_ID")
    }
    return {**kept, "PYTHONUTF8": "1", "TERM": "xterm-256color", **changes}


def run_process(*arguments, **changes):
    """Run the installed program to its end; `changes` are environment variables."""
    return subprocess.run(
        [PROGRAM, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env=environment(**changes),
        check=False,
        timeout=60,
    )


@contextmanager
def as_a_process(environ):
    """Give variables as to a process; take back what ends with one: log handlers, open stores."""
    from ultramon.backends import opening

    loggers = [logging.getLogger(name) for name in (None, "ultramon.server", "uvicorn.error")]
    before = [(one, one.handlers[:], one.level, one.propagate) for one in loggers]
    opened, kept = dict(opening._opened), dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
        for one, handlers, level, propagate in before:
            one.handlers, one.level, one.propagate = handlers, level, propagate
        for url in opening._opened.keys() - opened.keys():
            opening._opened.pop(url).close()


def run(*arguments, **changes):
    """Run the command line in this process, which costs no start; else as `run_process`."""
    from ultramon.cli import main

    with (
        as_a_process(environment(**changes)),
        tempfile.TemporaryFile("w+", encoding="utf-8") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8") as err,
    ):
        with (
            redirect_stdout(out),
            redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main([str(argument) for argument in arguments])
        printed = []
        for stream in (out, err):
            stream.seek(0)
            printed.append(stream.read())
    return subprocess.CompletedProcess(arguments, end.value.code, *printed)


def draw(*arguments, columns=100, rows=50, **changes):
    """Run the program on a real terminal; return its raw bytes, its screen and its exit code."""
    import pexpect
    import pyte

    child = pexpect.spawn(
        PROGRAM,
        [str(argument) for argument in arguments],
        dimensions=(rows, columns),
        env=environment(**changes),
        timeout=60,
    )
    child.expect(pexpect.EOF)
    child.close()
    screen = pyte.Screen(columns, rows)
    pyte.ByteStream(screen).feed(child.before)
    return child.before, [line.rstrip() for line in screen.display], child.exitstatus


def loaded_by(arguments, modules, **changes):
    """Run the program within an interpreter; return which of some modules it has loaded."""
    code = f"""
import sys
from ultramon.cli import main
try:
    main({arguments!r})
except SystemExit as end:
    assert end.code == 0, end.code
    print(*sorted(set({modules!r}) & set(sys.modules)), sep=",")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=environment(**changes),
        check=True,
    )
    return done.stdout.splitlines()[-1]
