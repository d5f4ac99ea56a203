"""The workspace of a relay, on real repositories: what is kept, and what is never touched."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.merging import hide_git_settings

from ultramon.errors import InvalidAgentIdError, StateCorruptError, WorkspaceError
from ultramon.relay.workspace import MAX_SHOWN
from ultramon.relay.workspace_opening import open_workspace
from ultramon.relay.workspace_record import RECORD

HOOKS = (
    "pre-commit", "post-commit", "commit-msg", "post-checkout", "post-index-change",
    "reference-transaction", "pre-auto-gc",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _nobody_in_particular(tmp_path, monkeypatch):
    hide_git_settings(tmp_path, monkeypatch)


def git(cwd, *arguments, check=True):
    """Run git as somebody with a name."""
    done = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org",
         "-c", "protocol.file.allow=always", *arguments],
        cwd=cwd, check=check, capture_output=True,
    )  # fmt: skip
    return os.fsdecode(done.stdout).strip("\n")


@pytest.fixture
def repository(tmp_path):
    """A repository with one commit, and something of the user's in every corner."""
    path = tmp_path / "shop"
    (path / "src").mkdir(parents=True)
    git(path, "init", "-q", "-b", "main")
    (path / "src" / "a.py").write_text("a\n")
    (path / ".gitignore").write_text("*.log\n")
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    return path


@pytest.fixture
def busy(repository):
    """The same, in the middle of the user's own work: stashed, staged, changed, new."""
    (repository / "src" / "a.py").write_text("stashed\n")
    git(repository, "stash")
    (repository / "staged.py").write_text("staged\n")
    git(repository, "add", "staged.py")
    (repository / "src" / "a.py").write_text("changed\n")
    (repository / "new.py").write_text("new\n")
    return repository


def open_one(tmp_path, cwd, run="review", **options):
    return open_workspace(run, cwd=str(cwd), state_directory=str(tmp_path / "state"), **options)


def of_the_user(path):
    """All that belongs to the user: files, index, branches, stash, head, settings."""
    files = {
        str(one.relative_to(path)): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and ".git" not in one.relative_to(path).parts
    }
    refs = git(path, "for-each-ref", "refs/heads/main", "refs/stash", "refs/tags", "refs/remotes")
    kept = [(path / ".git" / name).read_bytes() for name in ("index", "HEAD", "config")]
    return files, refs, kept, git(path, "status", "--porcelain"), git(path, "stash", "list")


def names(workspace, commit):
    """The files in a kept tree."""
    listed = git(workspace.root, "ls-tree", "-r", "-z", "--name-only", commit)
    return set(listed.split("\0")) - {""}


# --- a worktree of its own


def test_a_relay_works_beside_the_user(tmp_path, busy):
    """On a branch and in a folder of its own, from the last commit; the rest is said."""
    before = of_the_user(busy)
    workspace = open_one(tmp_path, busy)
    root = tmp_path / "state" / "relay" / "review" / "worktree"
    assert (workspace.path, workspace.root) == (str(root), str(root))
    assert workspace.branch == git(root, "branch", "--show-current") == "ultramon/review"
    assert workspace.base == git(busy, "rev-parse", "main")
    assert sorted(path.name for path in root.iterdir()) == [".git", ".gitignore", "src"]
    assert workspace.notes == [f"3 uncommitted files of {busy} are not in the worktree"]
    (root / "src" / "a.py").write_text("by the agent\n")
    git(root, "commit", "-q", "-am", "work of the agent")
    workspace.keep(1, "item 1")
    assert of_the_user(busy) == before


def test_a_folder_of_the_tree_is_the_same_folder_of_the_worktree(tmp_path, repository):
    """Also one that holds no tracked file."""
    assert open_one(tmp_path, repository / "src").path.endswith("/worktree/src")
    (repository / "empty" / "deep").mkdir(parents=True)
    workspace = open_one(tmp_path, repository / "empty" / "deep", run="other")
    assert os.path.isdir(workspace.path)
    assert workspace.path.endswith("/worktree/empty/deep")


def test_a_run_goes_on_in_what_it_left(tmp_path, repository):
    """Commits and uncommitted files stay, and the start is the old one."""
    first = open_one(tmp_path, repository)
    (Path(first.root) / "new.py").write_text("new\n")
    git(first.root, "commit", "-q", "--allow-empty", "-m", "by the agent")
    git(repository, "commit", "-q", "--allow-empty", "-m", "by the user")
    again = open_one(tmp_path, repository)
    assert (again.root, again.base, again.branch) == (first.root, first.base, first.branch)
    assert (Path(again.root) / "new.py").exists()
    assert again.notes == []
    summary = again.summarise()
    assert [subject for _, subject in summary.commits] == ["by the agent"]
    assert (summary.dirty_files, summary.dirty_count) == (("new.py",), 1)


def test_two_runs_do_not_meet(tmp_path, repository):
    """Each has its branch, its folder and its kept trees."""
    one, two = (open_one(tmp_path, repository, run=run) for run in ("one", "two"))
    one.keep(1, "item")
    assert (one.root != two.root, two.kept(), set(one.kept())) == (True, {}, {"1"})


def test_a_detached_head_is_a_start(tmp_path, repository):
    """The branch of the run begins at that commit."""
    git(repository, "checkout", "-q", "--detach")
    workspace = open_one(tmp_path, repository)
    assert workspace.branch == "ultramon/review"
    assert workspace.base == git(repository, "rev-parse", "HEAD")


def test_a_worktree_of_the_user_is_a_start(tmp_path, repository):
    """Its branch is the one that counts, and the run is found from the main tree too."""
    side = tmp_path / "side"
    git(repository, "worktree", "add", "-q", "-b", "side", str(side))
    git(side, "commit", "-q", "--allow-empty", "-m", "aside")
    workspace = open_one(tmp_path, side)
    assert workspace.base == git(side, "rev-parse", "side")
    assert open_one(tmp_path, repository).root == workspace.root


@pytest.mark.parametrize("run", ["a..b", "a.lock"])
def test_a_run_that_cannot_name_a_branch_is_refused(tmp_path, repository, run):
    """Before anything is made."""
    with pytest.raises(WorkspaceError, match="git cannot name a branch after the run"):
        open_one(tmp_path, repository, run=run)
    with pytest.raises(InvalidAgentIdError):
        open_one(tmp_path, repository, run="../x")
    assert git(repository, "branch", "--list", "ultramon/*") == ""


def test_a_branch_of_that_name_is_not_taken(tmp_path, repository):
    """It may be the user's, or of a run whose folder was deleted."""
    git(repository, "branch", "ultramon/review")
    with pytest.raises(WorkspaceError, match="the branch ultramon/review is there already"):
        open_one(tmp_path, repository)
    git(repository, "branch", "-m", "ultramon/review", "ultramon")
    with pytest.raises(WorkspaceError, match=r"git worktree add failed: .*ultramon"):
        open_one(tmp_path, repository)


def test_a_run_of_another_place_is_not_continued_here(tmp_path, repository):
    """Nor in place, when it began in a worktree."""
    open_one(tmp_path, repository)
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(repository), str(other))
    with pytest.raises(WorkspaceError, match=f"the run review works on {repository}/.git"):
        open_one(tmp_path, other)
    with pytest.raises(WorkspaceError, match="has a worktree of its own"):
        open_one(tmp_path, repository, in_place=True)


def test_a_repository_without_a_commit_has_no_start(tmp_path):
    """A worktree cannot be made; in place the first kept tree has no parent."""
    path = tmp_path / "young"
    git(tmp_path, "init", "-q", "-b", "main", str(path))
    with pytest.raises(WorkspaceError, match="has no commit to start from; make a first commit"):
        open_one(tmp_path, path)
    workspace = open_one(tmp_path, path, in_place=True)
    assert (workspace.base, workspace.branch) == (None, "main")
    (path / "a.py").write_text("a\n")
    commit = workspace.keep(1, "item")
    assert names(workspace, commit) == {"a.py"}
    assert git(path, "rev-list", "--count", commit) == "1"
    assert workspace.summarise().dirty_files == ("a.py",)
    git(path, "add", ".")
    git(path, "commit", "-q", "-m", "first")
    assert [subject for _, subject in workspace.summarise().commits] == ["first"]


def test_a_bare_repository_is_no_place_to_work(tmp_path, repository):
    """Neither is a directory that is not there."""
    git(tmp_path, "clone", "-q", "--bare", str(repository), "bare")
    with pytest.raises(WorkspaceError, match="must be run in a work tree"):
        open_one(tmp_path, tmp_path / "bare")
    with pytest.raises(WorkspaceError, match="is no directory"):
        open_one(tmp_path, tmp_path / "gone")


# --- in place


def test_in_place_the_tree_must_be_clean(tmp_path, busy):
    """The error lists the files; ignored ones do not count."""
    with pytest.raises(WorkspaceError) as caught:
        open_one(tmp_path, busy, in_place=True)
    assert sorted(caught.value.files) == ["new.py", "src/a.py", "staged.py"]
    git(busy, "add", ".")
    git(busy, "commit", "-q", "-m", "all of it")
    (busy / "ignored.log").write_text("x")
    workspace = open_one(tmp_path, busy / "src", in_place=True)
    assert (workspace.path, workspace.root) == (str(busy / "src"), str(busy))
    assert (workspace.branch, workspace.is_checkpointed) == ("main", True)
    # What the agent has left is no obstacle when the run goes on.
    (busy / "half.py").write_text("half done")
    assert open_one(tmp_path, busy, in_place=True).path == str(busy / "src")


def test_in_place_a_kept_tree_changes_neither_branch_nor_index(tmp_path, repository):
    """The user may be at work beside it."""
    workspace = open_one(tmp_path, repository, in_place=True)
    (repository / "src" / "a.py").write_text("changed\n")
    (repository / "staged.py").write_text("staged\n")
    git(repository, "add", "staged.py")
    (repository / "new.py").write_text("new\n")
    before = of_the_user(repository)
    commit = workspace.keep(7, "item 7")
    assert of_the_user(repository) == before
    assert names(workspace, commit) == {".gitignore", "src/a.py", "staged.py", "new.py"}
    assert git(repository, "show", f"{commit}:src/a.py") == "changed"


def test_outside_of_git_nothing_is_kept(tmp_path, monkeypatch):
    """It has to be asked for, and it is said."""
    path = tmp_path / "plain"
    path.mkdir()
    with pytest.raises(WorkspaceError, match="is in no git repository; work in place"):
        open_one(tmp_path, path)
    workspace = open_one(tmp_path, path, in_place=True)
    assert workspace.notes == [f"{path} is in no git repository: nothing is checkpointed"]
    assert (workspace.path, workspace.keep(1, "item"), workspace.kept()) == (str(path), None, {})
    assert workspace.summarise().branch is None
    assert open_one(tmp_path, path, in_place=True).path == str(path)
    monkeypatch.setenv("PATH", str(path))
    assert open_one(tmp_path, path, run="without-git", in_place=True).is_checkpointed is False


# --- what is kept


def test_each_item_has_its_tree(tmp_path, repository):
    """The commits stand on the head of that moment; a label that comes again names the newer."""
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    commits = []
    for number in (1, 2, 2):
        (root / f"{number}.py").write_text(f"{len(commits)}\n")
        commits.append(workspace.keep(number, f"item {number}: \udcff\0 ü"))
    forced = workspace.keep("forced-3", "")
    assert workspace.kept() == {"1": commits[0], "2": commits[2], "forced-3": forced}
    assert "2.py" not in names(workspace, commits[0])
    assert git(root, "show", f"{commits[1]}:2.py") == "1"
    assert git(root, "log", "-1", "--format=%an %cn %P", commits[0]) == (
        f"ultramon ultramon {workspace.base}"
    )
    # Refs of the repository, so the user finds them without the worktree.
    assert git(repository, "rev-parse", "refs/ultramon/review/1") == commits[0]
    assert os.listdir(workspace.folder) != []
    assert [name for name in os.listdir(workspace.folder) if "index" in name] == []


@pytest.mark.parametrize("label", ["", "a/b", "..", "-x", "A", "x.lock"])
def test_a_label_is_a_plain_word(tmp_path, repository, label):
    """It is a part of the name of a ref."""
    with pytest.raises(WorkspaceError, match="is no label"):
        open_one(tmp_path, repository).keep(label, "item")


def test_what_is_deleted_is_not_in_the_tree_and_what_is_ignored_neither(tmp_path, repository):
    """A file that is both tracked and ignored is."""
    (repository / "tracked.log").write_text("x\n")
    git(repository, "add", "-f", "tracked.log")
    git(repository, "commit", "-q", "-m", "a log")
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    (root / "src" / "a.py").unlink()
    (root / "other.log").write_text("x\n")
    (root / "tracked.log").write_text("changed\n")
    assert names(workspace, workspace.keep(1, "item")) == {".gitignore", "tracked.log"}


def test_a_change_of_the_same_size_in_the_same_moment_is_seen(tmp_path, repository):
    """The copy of the index keeps its times, or git would take the file for unchanged."""
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    index = Path(git(root, "rev-parse", "--path-format=absolute", "--git-path", "index"))
    path = root / "src" / "a.py"
    git(root, "config", "core.trustctime", "false")
    moment = (1_700_000_000, 1_700_000_000)
    os.utime(path, moment)
    git(root, "update-index", "--refresh")
    os.utime(index, moment)
    with path.open("r+") as file:
        file.write("b")
    os.utime(path, moment)
    assert git(root, "show", f"{workspace.keep(1, 'item')}:src/a.py") == "b"


@pytest.mark.parametrize(
    "name", [b"line\nend.py", b"\xff\xfe.py", b" lead", b"-x", b'qu"ote', b":(top)"]
)
def test_any_file_name_is_kept(tmp_path, repository, name):
    """Line ends, bytes that are no text, words of git's own."""
    workspace = open_one(tmp_path, repository)
    with open(os.path.join(os.fsencode(workspace.root), name), "wb") as file:
        file.write(b"x")
    assert os.fsdecode(name) in names(workspace, workspace.keep(1, "item"))
    assert workspace.summarise().dirty_count == 1
    with pytest.raises(WorkspaceError, match="must be clean") as caught:
        open_workspace(
            "other", cwd=workspace.root, state_directory=str(tmp_path / "other"), in_place=True
        )
    assert len(caught.value.files) == 1
    str(caught.value).encode()


def test_hooks_of_the_repository_do_not_run(tmp_path, repository):
    """Neither for the worktree nor for what is kept: they might refuse, push or take minutes."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    ran = tmp_path / "ran"
    for name in HOOKS:
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >>{ran}\nexit 1\n")
        (hooks / name).chmod(0o755)
    git(repository, "config", "core.hooksPath", str(hooks))
    git(repository, "config", "commit.gpgSign", "true")
    workspace = open_one(tmp_path, repository)
    (Path(workspace.root) / "new.py").write_text("new\n")
    git(repository, "config", "core.fsmonitor", str(hooks / "pre-commit"))
    commit = workspace.keep(1, "item")
    git(repository, "config", "--unset", "core.fsmonitor")
    assert "new.py" in names(workspace, commit)
    assert not ran.exists()
    git(workspace.root, "commit", "-q", "-m", "x", "--allow-empty", check=False)
    assert ran.exists()


def test_submodules_are_kept_as_the_commits_they_are_at(tmp_path, repository):
    """Their files are not the repository's; that they are missing in the worktree is said."""
    part = tmp_path / "part"
    git(tmp_path, "clone", "-q", str(repository), str(part))
    git(repository, "submodule", "--quiet", "add", str(part), "part")
    git(repository, "commit", "-q", "-m", "with a part")
    git(repository, "config", "submodule.recurse", "true")
    workspace = open_one(tmp_path, repository)
    assert workspace.notes == ["submodules are not checked out in the worktree"]
    commit = workspace.keep(1, "item")
    listed = git(workspace.root, "ls-tree", commit, "part")
    assert listed.startswith("160000 commit ")
    in_place = open_one(tmp_path, repository, run="here", in_place=True)
    (repository / "part" / "new.py").write_text("inside the part\n")
    assert git(repository, "ls-tree", in_place.keep(1, "item"), "part") == listed


def test_a_repository_inside_that_has_no_commit_hinders_nothing(tmp_path, repository):
    """Everything else is kept, and it is said once."""
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    git(root, "init", "-q", "nested")
    (root / "new.py").write_text("new\n")
    for number in (1, 2):
        assert "new.py" in names(workspace, workspace.keep(number, "item"))
    assert len(workspace.notes) == 1
    assert "'nested/' does not have a commit checked out" in workspace.notes[0]


def test_a_conflict_is_kept_as_it_lies_in_the_tree(tmp_path, repository):
    """Marks and all: a merge that an agent was stopped in."""
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    for branch, text in (("side", "one"), ("ultramon/review", "two")):
        git(root, "checkout", "-q", "-B", branch, check=True)
        (root / "src" / "a.py").write_text(f"{text}\n")
        git(root, "commit", "-q", "-am", branch)
        git(root, "checkout", "-q", "--detach", workspace.base)
    git(root, "checkout", "-q", "side")
    git(root, "merge", "-q", "ultramon/review", check=False)
    status = git(root, "status", "--porcelain")
    assert "<<<<<<<" in git(root, "show", f"{workspace.keep(1, 'item')}:src/a.py")
    assert git(root, "status", "--porcelain") == status


def test_a_tree_that_cannot_be_kept_is_an_error(tmp_path, repository):
    """In git's own words, and nothing is left behind."""
    workspace = open_one(tmp_path, repository)
    index = git(workspace.root, "rev-parse", "--path-format=absolute", "--git-path", "index")
    Path(index).write_bytes(b"DIRC broken")
    with pytest.raises(WorkspaceError, match=r"git add failed: fatal: .*index"):
        workspace.keep(1, "item")
    assert [name for name in os.listdir(workspace.folder) if "index" in name] == []


def test_a_summary_is_bounded_and_counts_all(tmp_path, repository):
    """Fifty commits and files are enough to look further."""
    workspace = open_one(tmp_path, repository)
    for number in range(60):
        git(workspace.root, "commit", "-q", "--allow-empty", "-m", f"step {number} ü")
        (Path(workspace.root) / f"{number}.py").touch()
    summary = workspace.summarise()
    assert (len(summary.commits), summary.commit_count) == (MAX_SHOWN, 60)
    assert (len(summary.dirty_files), summary.dirty_count) == (MAX_SHOWN, 60)
    short, subject = summary.commits[0]
    assert (subject, summary.head.startswith(short)) == ("step 59 ü", True)


# --- killed at any moment


KILLED = """
import os, signal, sys
from ultramon.relay import workspace_opening
from ultramon.system import git
calls = 0
run_git = git.run_git
def dying(*arguments, **options):
    global calls
    calls += 1
    if calls == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    done = run_git(*arguments, **options)
    if calls == -int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return done
git.run_git = workspace_opening.run_git = dying
workspace_opening.open_workspace("review", cwd=sys.argv[2], state_directory=sys.argv[3])
"""


def test_a_workspace_is_whole_after_a_kill_at_any_moment(tmp_path, repository):
    """Before and after each call of git: the next process makes it, or finds it."""
    before = of_the_user(repository)
    number = 0
    while True:
        number += 1
        died = []
        for moment in (number, -number):
            state = tmp_path / f"state-{moment}"
            command = [sys.executable, "-c", KILLED, str(moment), str(repository), str(state)]
            code = subprocess.run(command, check=False).returncode
            assert code in (0, -signal.SIGKILL)
            died.append(code != 0)
            workspace = open_workspace("review", cwd=str(repository), state_directory=str(state))
            assert git(workspace.root, "status", "--porcelain") == ""
            assert (Path(workspace.root) / "src" / "a.py").read_text() == "a\n"
            assert git(workspace.root, "branch", "--show-current") == "ultramon/review"
            workspace.keep(1, "item")
            git(repository, "worktree", "remove", "--force", workspace.root)
            git(repository, "branch", "-q", "-D", "ultramon/review")
        if not any(died):
            break
    assert number > 5
    assert of_the_user(repository) == before


def test_a_worktree_that_git_left_half_made_is_made_anew(tmp_path, repository):
    """Registered, locked, with a part of its files: as a kill within git leaves it."""
    workspace = open_one(tmp_path, repository)
    record = Path(workspace.folder) / RECORD
    record.write_text(json.dumps(json.loads(record.read_text()) | {"ready": False}))
    git(repository, "worktree", "lock", "--reason", "initializing", workspace.root)
    (Path(workspace.root) / "src" / "a.py").unlink()
    again = open_one(tmp_path, repository)
    assert git(again.root, "status", "--porcelain") == ""
    assert again.root == workspace.root


def test_a_worktree_that_somebody_deleted_comes_back_from_its_branch(tmp_path, repository):
    """With the commits of the agent; what was not committed is in the kept trees."""
    workspace = open_one(tmp_path, repository)
    root = Path(workspace.root)
    (root / "done.py").write_text("done\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "by the agent")
    subprocess.run(["rm", "-rf", workspace.root], check=True)
    again = open_one(tmp_path, repository)
    assert (root / "done.py").exists()
    assert again.base == workspace.base
    assert "made anew from ultramon/review" in again.notes[0]


def test_a_repository_that_was_moved_is_found_again(tmp_path, repository):
    """A moved one is another place: the run says where it worked."""
    workspace = open_one(tmp_path, repository)
    moved = tmp_path / "moved"
    repository.rename(moved)
    with pytest.raises(WorkspaceError, match=f"works on {repository}/.git"):
        open_one(tmp_path, moved)
    moved.rename(repository)
    (Path(workspace.root) / ".git").write_text("gitdir: /nowhere\n")
    again = open_one(tmp_path, repository)
    assert git(again.root, "branch", "--show-current") == "ultramon/review"
    (Path(workspace.root) / ".git").unlink()
    git(workspace.root, "init", "-q")
    with pytest.raises(WorkspaceError, match="is no worktree of"):
        open_one(tmp_path, repository)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 9}', '{"schema": 1, "x": 2}'])
def test_a_record_that_cannot_be_read_is_left_alone(tmp_path, repository, text):
    """Nothing is guessed: what is in the worktree may be all that there is."""
    workspace = open_one(tmp_path, repository)
    (Path(workspace.folder) / RECORD).write_text(text)
    with pytest.raises(StateCorruptError, match="start another run"):
        open_one(tmp_path, repository)
    assert os.path.isdir(workspace.root)


def test_what_a_kill_leaves_of_an_index_is_deleted_at_the_next_start(tmp_path, repository):
    """With git's own lock beside it."""
    workspace = open_one(tmp_path, repository)
    for name in ("index.0123.tmp", "index.0123.tmp.lock"):
        (Path(workspace.folder) / name).touch()
    open_one(tmp_path, repository)
    assert sorted(os.listdir(workspace.folder)) == [RECORD, "worktree"]
