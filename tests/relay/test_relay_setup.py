"""The setup of a relay's worktree: once, before its first context; what happens where it fails."""

import json
import os
import signal
import sys
import zlib

import pexpect
import pytest
from helpers import IMPORT_PATH, relayed
from helpers.program import PROGRAM, environment
from helpers.relayed import CHECK, RelayedProject, end_contexts, finish
from helpers.waiting import until

from ultramon.relay.disk_space import disk_need, taken_bytes
from ultramon.relay.runs.setup import MAX_LINES
from ultramon.relay.workspace_opening import open_workspace
from ultramon.system.processes import process_started_at


@pytest.fixture
def project(tmp_path):
    return RelayedProject(tmp_path)


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def stored(project):
    """What the record of the run's workspace knows of its setup."""
    return json.loads((project.state / "relay" / "job" / "workspace.json").read_text())["setup"]


def test_setup_runs_once_before_the_first_context(project):
    """In the worktree, by a shell; a later call does not run it again."""
    setup = ("--setup", 'pwd >> setup && echo "$ULTRAMON_RELAY $ULTRAMON_WORKER" >> setup')
    items = project.items("a", "b")
    code, result, told = finish(project.begin("obey", *items, *CHECK, *setup))
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert told.index("setup: ok, 0 s, 4.1 kB") < told.index("context 1 begins")
    assert "+ what setup makes, of" in told
    code, _, told = finish(project.resume(*project.items("c")))
    assert (code, "setup: " in told) == (0, False), told
    assert project.lines("setup") == [str(project.tree()), "job 1"]


def test_a_changed_setup_runs_again(project):
    """So does the one of a worktree that was lost; its size is known then."""
    items = project.items("a")
    finish(project.begin("obey", *items, *CHECK, "--setup", "echo one >> setup"))
    code, _, told = finish(project.resume("--setup", "echo two >> setup"))
    assert (code, "changed: setup" in told) == (0, True)
    assert project.lines("setup") == ["one", "two"]
    project.git("worktree", "remove", "--force", str(project.tree()))
    code, _, told = finish(project.resume("--recheck"))
    assert (code, project.lines("setup")) == (0, ["two"]), told
    assert ("disk: worktree ≈ " in told, "what setup makes" in told) == (True, False)
    code, _, told = finish(project.resume("--setup", ""))
    assert (code, project.lines("setup")) == (0, ["two"]), told


def test_checks_and_contexts_know_their_worker(project):
    """Today there is one."""
    check = ("--verify", "sh -c 'echo check $ULTRAMON_WORKER >> workers'")
    code, _, told = finish(project.begin("numbered", *project.items("a"), *check))
    assert code == 0, told
    assert project.lines("workers") == ["context 1", "check 1"]


def test_a_setup_that_fails_begins_no_context(project):
    """Its last lines are shown, without what a terminal would obey; then it can be changed."""
    failing = (
        "for n in $(seq 30); do echo line $n; done; printf 'no \\033[31mnetwork\\n' >&2; exit 3"
    )
    items = project.items("a")
    code, result, told = finish(project.begin("obey", *items, *CHECK, "--setup", failing))
    assert (code, result) == (1, None)
    shown = [line for line in told.splitlines() if line.startswith("  | ")]
    assert shown[0] == f"  | line {30 - MAX_LINES + 2}"
    assert (len(shown), "\x1b" in told, "network" in shown[-1]) == (MAX_LINES, False, True)
    assert "its setup failed, exit code 3, and no context was begun" in told
    assert "ultramon relay --resume job" in told
    output = project.state / "relay" / "job" / "setup.out"
    assert (len(output.read_text().splitlines()), output.stat().st_mode & 0o777) == (31, 0o600)
    assert finish(project.resume())[0] == 1
    code, result, told = finish(project.resume("--setup", "true"))
    assert (code, result["work"]["counts"]["verified"], len(result["contexts"])) == (0, 1, 1), told


def test_a_setup_that_takes_too_long_is_ended_with_what_it_started(project):
    """It has a time of its own: that of a check may be short."""
    setup = ("--setup", "echo $$ > pid; cat /dev/zero | cat > /dev/null")
    given = (*project.items("a"), *CHECK, *setup, "--setup-timeout", "1s")
    code, _, told = finish(project.begin("obey", *given))
    assert (code, "its setup failed, took more than 1 s" in told) == (1, True), told
    assert process_started_at(int(project.lines("pid")[0])) is None


def test_a_relay_that_is_killed_during_setup_runs_it_again(project, gate):
    """What it left of the first one is ended before."""
    setup = f"echo $$ >> pids; [ -e half ] || (touch half; read line < '{gate}'); echo whole >> end"
    relay = project.begin("obey", *project.items("a"), *CHECK, "--setup", setup)
    until(lambda: project.lines("pids") and (project.tree() / "half").exists(), relay)
    relay.kill()
    relay.communicate()
    (first,) = map(int, project.lines("pids"))
    assert process_started_at(first) is not None
    assert not stored(project)["is_done"]
    code, _, told = finish(project.resume())
    assert (code, stored(project)["is_done"], project.lines("end")) == (0, True, ["whole"]), told
    assert process_started_at(first) is None


def test_an_interrupt_ends_a_setup(project, gate):
    """With what it started; the run can continue."""
    setup = f"echo $$ > pid; [ -e {project.directory}/go ] || read line < '{gate}'"
    relay = project.begin("obey", *project.items("a"), *CHECK, "--setup", setup)
    until(lambda: project.lines("pid"), relay)
    relay.send_signal(signal.SIGTERM)
    code, result, told = finish(relay)
    assert (code, result) == (130, None), told
    assert process_started_at(int(project.lines("pid")[0])) is None
    (project.directory / "go").touch()
    assert finish(project.resume())[0] == 0


def test_setup_does_not_change_files_under_a_context(project, gate):
    """One that a killed relay has left working: the changed setup is refused, and not kept."""
    given = (*project.items("a"), *CHECK, "--setup", "true")
    relay = project.begin("gated", *given, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], relay)
    relay.kill()
    relay.communicate()
    code, _, told = finish(project.resume("--setup", "rm -r *"))
    assert (code, "its context 1 still runs (process" in told) == (1, True), told
    again = project.resume(GATE=str(gate))
    gate.write_text("")
    code, _, told = finish(again)
    assert (code, project.lines()) == (0, ["a"]), told
    assert end_contexts(project.state) == 0


def test_in_place_there_is_no_setup(project):
    """The tree is the user's own, and so is its preparation."""
    given = (*project.items("a"), "--setup", "touch oops", "--in-place")
    code, _, told = finish(project.begin("obey", *given))
    assert (code, "left out with in_place" in told) == (1, True), told
    assert project.git("status", "--porcelain") == ""


def test_setup_may_check_submodules_out(project, tmp_path):
    """Then neither the user nor an agent reads that they are not."""
    part = tmp_path / "part"
    project.git("clone", "-q", str(project.path), str(part))
    allowed = ("-c", "protocol.file.allow=always", "submodule", "--quiet")
    project.git(*allowed, "add", str(part), "part")
    project.git("commit", "-q", "-m", "with a part")
    setup = f"git {' '.join(allowed)} update --init"
    relay = project.begin("obey", *project.items("a"), *CHECK, "--setup", setup)
    code, _, told = finish(relay)
    assert (code, (project.tree() / "part" / "README").exists()) == (0, True), told


# --- disk


def claim_size(project, size_bytes):
    """Commit a file that git takes for that large: its object says so, and holds nothing."""
    name = "ab" * 20
    path = project.path / ".git" / "objects" / name[:2]
    path.mkdir(exist_ok=True)
    (path / name[2:]).write_bytes(zlib.compress(b"blob %d\0" % size_bytes))
    project.git("update-index", "--add", "--cacheinfo", f"100644,{name},large")
    project.git("update-index", "--force-remove", "README")
    project.git("commit", "-q", "-m", "large")


def test_a_worktree_that_does_not_fit_is_refused(project):
    """Before anything is made; it says how much is needed and what can be done."""
    claim_size(project, 5 * 10**15)
    code, _, told = finish(project.begin("obey", *project.items("a")))
    assert code == 1
    assert "a worktree needs ≈ 5000.0 TB, and " in told
    assert "are free in" in told
    assert "choose a --state-dir elsewhere" in told
    assert project.git("branch", "--list", "ultramon/*") == ""
    assert not project.tree().exists()


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_a_worktree_that_does_not_fit_is_a_question(project, answer, code):
    """A file system that compresses has room for more than git counts."""
    claim_size(project, 5 * 10**15)
    given = ("Do it.", "--agent", "command", "--run", "job", "--state-dir", str(project.state))
    program = (sys.executable, "-B", relayed.__file__, "obey")
    child = pexpect.spawn(
        PROGRAM,
        ["relay", *given, "--", *program],
        cwd=str(project.path),
        env=environment(PYTHONPATH=IMPORT_PATH),
        timeout=60,
        dimensions=(50, 200),
    )
    child.expect_exact("Make it all the same? [y/N]")
    child.sendline(answer)
    if answer == "y":
        child.expect_exact("Start? [y/N]")
        child.sendline("y")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code, child.before
    assert project.tree().exists() is (answer == "y")


def test_what_a_worktree_takes_is_known_before(project):
    """Whole blocks of each file of the commit, without what a setup would add."""
    (project.path / "large").write_bytes(b"x" * 10_000)
    project.git("add", ".")
    project.git("commit", "-q", "-m", "large")
    need = disk_need(str(project.path), "HEAD", str(project.path), None, seconds=30)
    assert (need.tree_bytes, need.fits) == (4_096 + 12_288, True)
    assert need.free_bytes > 0
    project.git("config", "core.sparseCheckout", "true")
    assert disk_need(str(project.path), "HEAD", str(project.path), None, seconds=30) is None


def test_what_a_directory_takes_is_what_would_become_free(tmp_path):
    """A file that has a name elsewhere, such as in a cache of packages, takes nothing."""
    inside = tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    empty = taken_bytes(str(inside))
    (tmp_path / "cached").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "cached", inside / "linked")
    assert taken_bytes(str(inside)) == empty
    (inside / "own").write_bytes(b"x" * 100_000)
    os.link(inside / "own", inside / "deep" / "own too")
    size = (inside / "own").stat().st_blocks * 512
    assert taken_bytes(str(inside)) - empty == size >= 100_000
    assert taken_bytes(str(tmp_path / "none")) == 0


# --- git LFS


def test_files_of_lfs_are_said_to_be_pointers(project, tmp_path, monkeypatch):
    """Where git lfs is not there, or was not switched on; in a folder below too."""
    (project.path / "assets").mkdir()
    (project.path / "assets" / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    project.git("add", ".")
    project.git("commit", "-q", "-m", "assets")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)

    def notes(run):
        given = {"cwd": str(project.path), "state_directory": str(project.state)}
        return open_workspace(run, **given).notes

    said = "files of git LFS are pointers in the worktree: "
    assert notes("one") == [f"{said}git lfs is not installed"]
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "git-lfs").write_text("#!/bin/sh\nexit 0\n")
    (programs / "git-lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert notes("two") == [f"{said}`git lfs install` was not run"]
    project.git("config", "filter.lfs.smudge", "cat")
    assert notes("three") == []
