"""The question before a relay starts at a terminal."""

import sys

import pexpect
import pytest
from helpers import IMPORT_PATH, relayed
from helpers.program import PROGRAM, environment
from helpers.relayed import RelayedProject


@pytest.fixture
def project(tmp_path):
    return RelayedProject(tmp_path)


def spawn(project, *arguments):
    """Start a relay at a terminal."""
    given = ("Do it.", "--agent", "command", "--run", "job", "--state-dir", str(project.state))
    program = (sys.executable, "-B", relayed.__file__, "obey")
    return pexpect.spawn(
        PROGRAM,
        ["relay", *given, *project.items("a"), *arguments, "--", *program],
        cwd=str(project.path),
        env=environment(PYTHONPATH=IMPORT_PATH),
        timeout=60,
        dimensions=(50, 200),
    )


def end(child):
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("\x03", 130)])
def test_without_a_yes_nothing_remains(project, answer, code):
    """No branch, no worktree; the name of the run is free for another try."""
    child = spawn(project, "--workers", "2", "--verify", "grep -Fxqe {item} done")
    child.expect_exact("git: 2 workers from main@")
    child.expect_exact("Start? [y/N]")
    child.send(answer)
    assert end(child) == code
    assert b"context 1 begins" not in child.before
    assert project.git("branch", "--list", "ultramon/*") == ""
    assert project.git("worktree", "list").count("\n") == 1
    assert list((project.state / "relay").iterdir()) == []
    child = spawn(project)
    child.expect_exact("Start? [y/N]")
    child.sendline("y")
    assert (end(child), project.lines()) == (0, ["a"])


def test_yes_skips_the_question(project):
    child = spawn(project, "--yes")
    assert (end(child), project.lines()) == (0, ["a"])
    assert b"Start?" not in child.before
