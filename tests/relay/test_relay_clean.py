"""`relay --clean`: what is removed, what is kept first, what stays; killed at any moment."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.program import PROGRAM, environment, run
from helpers.relayed import CHECK, RelayedProject, end_contexts, finish, marks_of
from helpers.waiting import until

from ultramon.errors import ConfigurationError, StateError, WorkspaceError
from ultramon.relay.choices import is_run
from ultramon.relay.cleaning import REMOVING, clean_run
from ultramon.relay.opening import free_name
from ultramon.relay.run_folder import run_lock
from ultramon.relay.workspace_opening import open_workspace
from ultramon.relay.workspace_record import RECORD, WorkspaceRecord
from ultramon.system.process_search import processes_with


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.chdir(tmp_path)
    return RelayedProject(tmp_path)


def begun(project, run="job"):
    """Open the workspace of a run; its agent has done nothing yet."""
    return open_workspace(run, cwd=str(project.path), state_directory=str(project.state))


def clean(project, run="job"):
    return clean_run(run, state_directory=str(project.state))


def git(cwd, *arguments):
    """Run git as somebody with a name, in the worktree of a run or in a repository inside."""
    settings = ("-c", "user.name=Ada", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(cwd), *settings, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit(root, name, text="by the agent\n"):
    (Path(root) / name).write_text(text)
    git(root, "add", name)
    git(root, "commit", "-q", "-m", name)


def refs(project, prefix="refs/"):
    """The ids of the refs below a prefix by name."""
    listed = project.git("for-each-ref", "--format=%(refname) %(objectname)", prefix).splitlines()
    return dict(line.split(" ") for line in listed)


def shows(cleaned):
    return "\n".join(cleaned.lines())


# --- what is removed and what stays


def test_a_run_that_was_merged_leaves_its_record_alone(project):
    """Worktree, branch, kept trees and folder go; main is as it was."""
    given = (*project.items("a"), *CHECK)
    code, _, told = finish(project.begin("obey", *given))
    assert (code, "next: ultramon relay --clean job" in told) == (0, True), told
    git(project.tree(), "add", ".")
    git(project.tree(), "commit", "-q", "-m", "done")
    project.git("merge", "-q", "--no-ff", "-m", "merged", "ultramon/job")
    before = refs(project, "refs/heads/main")
    done = run("relay", "--clean", "job", "--state-dir", project.state)
    assert done.returncode == 0, done.stderr
    assert f"removed: the worktree {project.tree()} (" in done.stdout
    assert "removed: the branch ultramon/job, merged into main" in done.stdout
    assert "removed: 1 kept tree below refs/ultramon/job/, all in main" in done.stdout
    assert refs(project, "refs/heads") == before
    assert os.listdir(project.state / "relay" / "job") == [RECORD]
    assert project.git("worktree", "list").count("\n") == 1
    assert project.git("status", "--porcelain") == ""


def test_a_kept_tree_with_a_version_that_main_never_had_stays(project):
    """Of an item whose work a later one has overwritten, before it was in any commit."""
    workspace = begun(project)
    root = Path(workspace.root)
    for number, text in enumerate(("lost\n", "found\n"), 1):
        (root / "a.py").write_text(text)
        workspace.keep(number, f"item {number}")
    commit(root, "a.py", "found\n")
    git(root, "rm", "-q", "README")
    workspace.keep(3, "item 3")
    git(root, "commit", "-q", "-m", "without it")
    project.git("merge", "-q", "ultramon/job")
    shown = shows(clean(project))
    assert "removed: 2 kept trees below refs/ultramon/job/, all in main" in shown
    assert "stays: 1 kept tree below refs/ultramon/job/ (1): not all of it is in main" in shown
    assert project.git("show", "refs/ultramon/job/1:a.py") == "lost\n"


def test_items_that_are_left_are_named(project):
    """They cannot be continued."""
    given = (*project.items("a", "b", "c"), *CHECK, "--max-contexts", "1")
    code, _, told = finish(project.begin("claims", *given))
    assert code == 5, told
    shown = shows(clean(project))
    assert f"in {project.state}/relay/job: it cannot continue; 3 of 3 items left" in shown


def test_a_branch_that_is_not_merged_stays(project):
    """With the command that removes it; merged later, the next call removes it."""
    root = begun(project).root
    commit(root, "new.py")
    shown = shows(clean(project))
    assert "stays: the branch ultramon/job: 1 commit that main does not have" in shown
    command = f"git -C {project.path} branch -D ultramon/job"
    assert f"  to remove it: {command}" in shown
    assert not Path(root).exists()
    project.git("merge", "-q", "ultramon/job")
    assert "removed: the branch ultramon/job, merged into main" in shows(clean(project))
    assert "removed: nothing" in shows(clean(project))


def test_the_commands_it_prints_remove_the_rest(project):
    """As they stand, in a shell."""
    root = begun(project).root
    commit(root, "new.py")
    (Path(root) / "half.py").write_text("half done\n")
    cleaned = clean(project)
    commands = [one.command for one in cleaned.stays if one.command]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(command, shell=True, check=True, capture_output=True)
    assert refs(project, "refs/ultramon/") == {}
    assert list(refs(project, "refs/heads")) == ["refs/heads/main"]
    assert [one.command for one in clean(project).stays] == [""]


def test_uncommitted_files_are_kept_first(project):
    """Under the private refs of the run; what git ignores is named and removed."""
    (project.path / ".gitignore").write_text("*.log\nbuild/\n")
    project.git("add", ".")
    project.git("commit", "-q", "-m", "ignored")
    root = Path(begun(project).root)
    (root / "README").write_text("changed\n")
    (root / "new.py").write_text("new\n")
    (root / "build").mkdir()
    (root / "build" / "a").touch()
    shown = shows(clean(project))
    kept = "refs/ultramon/job/uncommitted"
    assert f"kept: 2 uncommitted files (README, new.py) as {kept}" in shown
    assert "and build/, which git ignores" in shown
    assert project.git("show", f"{kept}:new.py") == "new\n"
    assert project.git("show", f"{kept}:README") == "changed\n"
    # Restored and committed, it is merged as well.
    project.git("restore", f"--source={kept}", "--worktree", ".")
    project.git("add", ".")
    project.git("commit", "-q", "-m", "restored")
    assert "removed: 1 kept tree below refs/ultramon/job/, all in main" in shows(clean(project))


def test_commits_that_no_branch_has_are_kept(project):
    """Of a detached head: nothing else would lead to them."""
    root = begun(project).root
    git(root, "checkout", "-q", "--detach")
    commit(root, "new.py")
    assert "kept: commits as refs/ultramon/job/uncommitted" in shows(clean(project))
    assert project.git("show", "refs/ultramon/job/uncommitted:new.py") == "by the agent\n"
    # The branch of the run itself has none of its own.
    assert list(refs(project, "refs/heads")) == ["refs/heads/main"]
    # One squashed commit has the files, and not the commits.
    project.git("merge", "-q", "--squash", "refs/ultramon/job/uncommitted")
    project.git("commit", "-q", "-m", "squashed")
    assert "stays: 1 kept tree" in shows(clean(project))


def test_another_branch_of_the_agent_stays_and_is_named(project):
    """It may be the user's as well."""
    root = begun(project).root
    git(root, "checkout", "-q", "-b", "side")
    commit(root, "new.py")
    shown = shows(clean(project))
    assert "stays: the branch side, which was checked out in the worktree" in shown
    assert "refs/heads/side" in refs(project)


def test_a_branch_that_is_checked_out_elsewhere_stays(project, tmp_path):
    """As git would not remove it either."""
    root = begun(project).root
    git(root, "checkout", "-q", "--detach")
    project.git("worktree", "add", "-q", str(tmp_path / "other"), "ultramon/job")
    shown = shows(clean(project))
    assert f"the branch ultramon/job, which is checked out in {tmp_path / 'other'}" in shown
    assert "refs/heads/ultramon/job" in refs(project)


@pytest.mark.parametrize("origin", ["gone", "detached", "earlier"])
def test_where_the_origin_is_not_known_any_branch_counts(project, origin):
    """Deleted since, a detached head, or a record of an earlier version."""
    if origin == "detached":
        project.git("checkout", "-q", "--detach")
    elif origin == "gone":
        project.git("checkout", "-q", "-b", "feature")
    workspace = begun(project)
    commit(workspace.root, "new.py")
    if origin == "earlier":
        path = Path(workspace.folder) / RECORD
        record = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in record.items() if k != "origin"}))
    project.git("checkout", "-q", "main")
    if origin == "gone":
        project.git("branch", "-D", "feature")
    project.git("branch", "other")
    assert "1 commit that main or other does not have" in shows(clean(project))
    project.git("checkout", "-q", "other")
    project.git("merge", "-q", "ultramon/job")
    assert "removed: the branch ultramon/job, merged into main or other" in shows(clean(project))


def test_a_branch_that_the_remote_has_merged_counts(project, tmp_path):
    """As fetched: by a pull request, while main here is behind."""
    remote = tmp_path / "remote"
    git(tmp_path, "clone", "-q", "--bare", str(project.path), str(remote))
    project.git("remote", "add", "origin", str(remote))
    project.git("fetch", "-q", "origin")
    project.git("branch", "-q", "--set-upstream-to=origin/main")
    root = begun(project).root
    commit(root, "new.py")
    git(root, "push", "-q", "origin", "HEAD:main")
    shown = shows(clean(project))
    assert "removed: the branch ultramon/job, merged into main or origin/main" in shown


def test_in_place_the_tree_is_the_users(project):
    """Only the files of the run go."""
    given = (*project.items("a"), *CHECK, "--in-place")
    finish(project.begin("obey", *given))
    shown = shows(clean(project))
    assert "removed: its choices, and what its contexts printed" in shown
    assert "worktree" not in shown.replace("update-ref", "")
    assert project.git("status", "--porcelain") == "?? begun\n?? done\n"
    assert "stays: 1 kept tree below refs/ultramon/job/ (1): not all of it is in main" in shown


def test_outside_of_git_only_the_files_of_the_run_go(project, tmp_path):
    """There is nothing else."""
    project.path = tmp_path / "plain"
    project.path.mkdir()
    finish(project.begin("obey", *project.items("a"), "--in-place"))
    assert "removed: its choices" in shows(clean(project))
    assert (project.path / "done").exists()


def test_a_run_without_a_record_is_only_a_folder(project):
    """A relay was killed before it had made anything."""
    folder = project.state / "relay" / "job"
    begun(project)
    (folder / RECORD).unlink()
    with pytest.raises(StateError, match="the record of its worktree is not there"):
        clean(project)
    project.git("worktree", "remove", "--force", str(project.tree()))
    clean(project)
    assert not folder.exists()


# --- repositories inside


def test_a_repository_inside_with_work_of_its_own_is_not_removed(project):
    """Its commits would be nowhere else; a clone that is as its remote has it may go."""
    root = Path(begun(project).root)
    git(root, "clone", "-q", str(project.path), "copied")
    git(root, "init", "-q", "-b", "main", "made")
    with pytest.raises(WorkspaceError, match="not every file could be kept"):
        clean(project)
    commit(root / "made", "a.py")
    commit(root / "copied", "a.py")
    with pytest.raises(WorkspaceError, match="copied, made: a repository inside it with work"):
        clean(project)
    assert not WorkspaceRecord.load(str(root.parent)).is_cleaned
    git(root / "copied", "push", "-q", "origin", "HEAD:refs/heads/saved")
    git(root / "copied", "fetch", "-q")
    subprocess.run(["rm", "-rf", str(root / "made")], check=True)
    assert "removed: the worktree" in shows(clean(project))
    assert "refs/heads/saved" in refs(project)


def test_a_submodule_and_another_worktree_inside_are_looked_at(project, tmp_path):
    """Where all that they hold is elsewhere as well, they go with the worktree."""
    part = tmp_path / "part"
    git(tmp_path, "clone", "-q", str(project.path), str(part))
    git(project.path, "submodule", "--quiet", "add", str(part), "part")
    project.git("commit", "-q", "-m", "with a part")
    root = Path(begun(project).root)
    git(root, "submodule", "--quiet", "update", "--init")
    git(root, "worktree", "add", "-q", "-b", "inner", str(root / "inner"))
    commit(root / "part", "a.py")
    with pytest.raises(WorkspaceError, match="part: a repository inside it with work"):
        clean(project)
    git(root / "part", "reset", "-q", "--hard", "HEAD~")
    (root / "inner" / "new.py").touch()
    with pytest.raises(WorkspaceError, match="inner: a repository inside it with work"):
        clean(project)
    commit(root / "inner", "new.py")
    assert "removed: the worktree" in shows(clean(project))
    assert "refs/heads/inner" in refs(project)


# --- refused


def test_a_run_that_works_is_not_cleaned(project, tmp_path):
    """Neither under a relay nor under a context that a killed relay has left."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    relay = project.begin("gated", *project.items("a"), *CHECK, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], relay)
    with pytest.raises(StateError, match=f"is held by process {relay.pid}"):
        clean(project)
    relay.kill()
    relay.communicate()
    with pytest.raises(StateError, match="still works: process"):
        clean(project)
    assert project.lines("begun") == ["a"]
    assert end_contexts(project.state) >= 1
    until(lambda: not processes_with(marks_of(project.state)))
    assert "removed: the worktree" in shows(clean(project))


def test_a_setup_that_a_killed_relay_has_left_is_not_cleaned_under(project, tmp_path):
    """It would write into what is removed."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    setup = ("--setup", f"touch half; read line < '{gate}'")
    relay = project.begin("obey", *project.items("a"), *setup)
    until((project.tree() / "half").exists, relay)
    relay.kill()
    relay.communicate()
    with pytest.raises(StateError, match="still works: process"):
        clean(project)
    with gate.open("w"):
        pass
    until(lambda: not processes_with({"ULTRAMON_STATE_DIR": str(project.state)}))
    assert "kept: 1 uncommitted file (half)" in shows(clean(project))


def test_a_state_directory_that_was_moved_is_cleaned(project):
    """The repository does not know the worktree by its new path."""
    commit(begun(project).root, "new.py")
    project.git("merge", "-q", "ultramon/job")
    project.state.rename(project.directory / "moved")
    project.state = project.directory / "moved"
    assert "removed: the branch ultramon/job" in shows(clean(project))
    assert project.git("worktree", "list").count("\n") == 1


def test_what_cannot_be_cleaned_says_why(project):
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match="a relay that was begun"):
        clean(project)
    root = Path(begun(project).root)
    project.path.rename(project.directory / "moved")
    with pytest.raises(WorkspaceError, match="the repository of the run job is not there"):
        clean(project)
    (project.directory / "moved").rename(project.path)
    (root / ".git").unlink()
    git(root, "init", "-q")
    with pytest.raises(WorkspaceError, match="is no worktree of"):
        clean(project)
    done = run("relay", "--clean", "job", "--max-usd", "3", "--state-dir", project.state)
    assert (done.returncode, "--clean RUN stands alone" in done.stderr) == (2, True)


def test_a_cleaned_run_neither_continues_nor_lends_its_name(project):
    """Its events would have the items of another run taken for done."""
    finish(project.begin("obey", *project.items("a"), *CHECK, run="port-1"))
    workspace = begun(project, "port-1")
    clean(project, "port-1")
    code, _, told = finish(project.resume(run="port-1"))
    assert (code, "this one was removed by --clean" in told) == (1, True), told
    code, _, told = finish(project.begin("obey", *project.items("a"), run="port-1"))
    assert (code, "was removed by --clean" in told) == (1, True), told
    assert is_run(str(project.state), "port-1")
    assert free_name(str(project.state), "Port it.") == "port-2"
    # A relay that had opened it before finds out once it holds the run.
    with run_lock(workspace.folder), pytest.raises(WorkspaceError, match="meanwhile"):
        workspace.check()


def test_directories_that_are_write_protected_go_too(project):
    """As a cache of Go modules has them."""
    root = Path(begun(project).root)
    (root / "cache" / "deep").mkdir(parents=True)
    (root / "cache" / "deep" / "a").touch()
    for path in (root / "cache" / "deep", root / "cache"):
        path.chmod(0o555)
    clean(project)
    assert not (root.parent / REMOVING).exists()


def test_the_result_can_be_read_by_a_program(project):
    """With the commands that are left."""
    commit(begun(project).root, "new.py")
    done = run("relay", "--clean", "job", "--json", "--state-dir", project.state)
    facts = json.loads(done.stdout)
    assert (facts["run"], facts["kept"], len(facts["removed"])) == ("job", [], 1)
    assert facts["stays"][0]["command"].endswith("branch -D ultramon/job")


# --- killed at any moment

KILLED = """
import os, signal, sys
calls = 0
def counted(module, name):
    function = getattr(module, name)
    def dying(*arguments, **options):
        global calls
        calls += 1
        if calls == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        done = function(*arguments, **options)
        if calls == -int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(module, name, dying)
from ultramon.relay import cleaning, unmerged_work
from ultramon.system import git, git_trees
for module in (cleaning, unmerged_work, git_trees, git):
    counted(module, "run_git")
for name in ("rename", "unlink", "rmdir"):
    counted(os, name)
cleaning.clean_run("job", state_directory=sys.argv[2])
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_clean_that_is_killed_at_any_moment_can_be_repeated(project, step):
    """Before and after each call of git and each change of a file: nothing is lost."""
    main = refs(project, "refs/heads/main")
    number, is_over = 0, False
    while not is_over:
        number += step
        is_over = True
        for moment in (number, -number):
            name = f"state{moment}"
            project.state = project.directory / name
            root = Path(begun(project).root)
            commit(root, "new.py")
            (root / "half.py").write_text("half done\n")
            head = git(root, "rev-parse", "HEAD")
            command = [sys.executable, "-B", "-c", KILLED, str(moment), str(project.state)]
            code = subprocess.run(command, env=environment(), check=False).returncode
            assert code in (0, -signal.SIGKILL)
            is_over = is_over and code == 0
            clean(project)
            assert not root.exists()
            assert not (root.parent / REMOVING).exists()
            assert os.listdir(root.parent) == [RECORD]
            kept = refs(project, "refs/ultramon/job/")
            assert list(kept) == ["refs/ultramon/job/uncommitted"]
            assert project.git("show", "refs/ultramon/job/uncommitted:half.py") == "half done\n"
            assert refs(project, "refs/heads/ultramon/") == {"refs/heads/ultramon/job": head}
            assert project.git("worktree", "list").count("\n") == 1
            project.git("branch", "-D", "ultramon/job")
            project.git("update-ref", "-d", "refs/ultramon/job/uncommitted")
    assert number > 20
    assert refs(project, "refs/heads/main") == main


def test_a_program_that_is_killed_while_it_removes_files_is_repeated(project):
    """By a signal, somewhere among many files."""
    root = Path(begun(project).root)
    for number in range(3_000):
        (root / f"{number}.py").touch()
    command = [PROGRAM, "relay", "--clean", "job", "--state-dir", str(project.state)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
    until((root.parent / REMOVING).exists, process)
    process.kill()
    process.communicate()
    done = run("relay", "--clean", "job", "--state-dir", project.state)
    assert done.returncode == 0, done.stderr
    assert os.listdir(root.parent) == [RECORD]
    listed = project.git("ls-tree", "--name-only", "refs/ultramon/job/uncommitted")
    assert listed.count(".py\n") == 3_000


def test_what_workers_made_goes_when_the_branch_is_merged(project):
    """Their commits were rebased: in main they are other ones, of the same content."""
    names = [f"{number}" for number in range(1, 5)]
    given = (*project.items(*names), "--verify", "grep -Fxqre {item} made", "--workers", "2")
    environ = project.workers_environ()
    code, _, told = finish(project.begin("commits", *given, **environ), 120)
    assert code == 0, told
    before = clean(project)
    assert "kept tree" in before.stays[1].what, before
    project.git("merge", "-q", "--no-edit", "ultramon/job")
    shown = shows(clean(project))
    assert "stays: the states" in shown
    assert refs(project, "refs/ultramon/job") == {}


def test_what_the_branch_has_as_other_commits_is_not_called_kept(project):
    """A worker's last commits are kept for a moment, until they are found in main."""
    given = (*project.items("1", "2"), "--verify", "grep -Fxqre {item} made", "--workers", "2")
    code, _, told = finish(project.begin("commits", *given, **project.workers_environ()), 120)
    assert code == 0, told
    project.git("merge", "-q", "--no-edit", "ultramon/job")
    cleaned = clean(project)
    assert cleaned.kept == []
    assert refs(project, "refs/ultramon/job") == {}
