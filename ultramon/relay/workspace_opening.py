"""Makes the workspace of a relay, or finds the one that is there."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.relay.disk_space import DiskNeed, disk_need
from ultramon.relay.run_folder import run_directory, worker_directory
from ultramon.relay.workspace import (
    BRANCHES,
    QUICK_SECONDS,
    TREE_SECONDS,
    WITHOUT_SUBMODULES,
    WORKTREE,
    RelayWorkspace,
)
from ultramon.relay.workspace_record import WorkspaceRecord
from ultramon.system.files import make_private_directory
from ultramon.system.git import find_commit, read_status, run_git
from ultramon.system.git_trees import QUIET, failure
from ultramon.system.ids import check_agent_id
from ultramon.system.wording import byte_size, plural

if TYPE_CHECKING:
    from collections.abc import Callable


class StartPoint(NamedTuple):
    """Where the branch of a run begins."""

    commit: str
    origin: str | None
    """The branch that it is to be merged into; None = unknown."""


def open_workspace(
    run: str,
    *,
    cwd: str,
    state_directory: str,
    in_place: bool = False,
    confirm: Callable[[str], bool] = lambda question: False,
    worker: int = 1,
    is_detached: bool = False,
    begins_at: StartPoint | None = None,
) -> RelayWorkspace:
    """Return the workspace of a run: a new one, or the one that is there.

    A worktree that was half made when a process was killed is made anew; no agent has worked in
    it. In a finished one everything stays as it is.

    Args:
        run: The relay.
        cwd: The user's directory.
        state_directory: Where states are kept.
        in_place: Work in the user's own tree, which must be clean at the start of the run.
        confirm: Asked with a question where a new worktree needs more disk than is free; the
            default says no.
        worker: Whose; those after the first are opened after it.
        is_detached: Whether the worktree is at no branch, because what is done in it is merged.
        begins_at: Where a new run begins; None = at what the user has checked out.

    Raises:
        InvalidAgentIdError: No run can have that name.
        WorkspaceError: The directory cannot be used so; nothing was changed.
        StateError: The state directory or the record of the run cannot be used.
    """
    check_agent_id(run, "run")
    cwd = os.path.abspath(cwd)
    folder = worker_directory(state_directory, run, worker)
    make_private_directory(folder)
    for name in os.listdir(folder):
        # Copies of the index, which a killed process has left.
        if name.startswith("index.") and name.endswith((".tmp", ".tmp.lock")):
            os.unlink(os.path.join(folder, name))
    repository = _find_repository(cwd)
    record = WorkspaceRecord.load(folder)
    if record is None and worker != 1:
        first = WorkspaceRecord.load(run_directory(state_directory, run))
        assert first is not None
        record = replace(first, ready=False, setup=None)
    elif record is None:
        record = _plan(run, cwd, repository, in_place=in_place)
        if begins_at is not None:
            record.base, record.origin = begins_at
        record.is_detached = is_detached
    elif record.is_cleaned:
        # Its journal would take the items of another run for done.
        reason = f"the run {run} was removed by --clean, and its events are kept under this name"
        raise WorkspaceError(cwd, reason, "choose another name")
    else:
        _check_same(record, run, cwd, repository, in_place=in_place)
    if record.is_detached != is_detached:
        begun = "with" if record.is_detached else "without"
        advice = "continue it so, or start another run"
        raise WorkspaceError(cwd, f"the run {run} was begun {begun} a merge queue", advice)
    root, notes = os.path.join(folder, WORKTREE), list[str]()
    disk = None
    if not record.in_place:
        assert repository is not None
        disk = _check_disk(record, folder, root, repository, confirm)
        notes = _make_ready(record, run, folder, root, repository)
    else:
        root = cwd if repository is None else repository.root
        if repository is None:
            notes = [f"{cwd} is in no git repository: nothing is checkpointed"]
        record.ready = True
        record.save(folder)
    path = os.path.normpath(os.path.join(root, record.prefix))
    if not record.in_place:
        os.makedirs(path, exist_ok=True)  # it may hold no tracked file
    return RelayWorkspace(
        run,
        path,
        root,
        folder,
        record.base,
        record.branch,
        in_place=record.in_place,
        is_checkpointed=repository is not None,
        notes=notes,
        origin=record.origin,
        worker=worker,
        disk=disk,
    )


@dataclass(frozen=True, slots=True)
class _Repository:
    root: str
    """Top of the working tree."""
    common: str
    """The directory that all its worktrees share."""


def _plan(run: str, cwd: str, repository: _Repository | None, *, in_place: bool) -> WorkspaceRecord:
    """Check that a new run can work as it was asked to."""
    if repository is None:
        if not in_place:
            advice = "work in place (--in-place), where nothing is checkpointed"
            raise WorkspaceError(cwd, "is in no git repository", advice)
        return WorkspaceRecord(True, None, cwd, None, None)
    # git names the real top of a tree; the user may have come through a link.
    prefix = os.path.relpath(os.path.realpath(cwd), os.path.realpath(repository.root))
    base = find_commit(cwd, "HEAD", seconds=QUICK_SECONDS)
    status = read_status(cwd, seconds=TREE_SECONDS)
    if status is None:
        raise WorkspaceError(cwd, f"git status failed, or took more than {TREE_SECONDS:g} s")
    _check_name(run, cwd)
    if in_place:
        if status.files:
            raise WorkspaceError(
                cwd,
                "to work in place the tree must be clean, and these files are not committed",
                "commit or stash them, or work in a worktree",
                status.files,
            )
        return WorkspaceRecord(True, repository.common, prefix, base, status.branch)
    if base is None:
        advice = "make a first commit, or work in place"
        raise WorkspaceError(cwd, "the repository has no commit to start from", advice)
    branch = f"{BRANCHES}/{run}"
    if find_commit(cwd, f"refs/heads/{branch}", seconds=QUICK_SECONDS) is not None:
        advice = "choose another name for the run, or delete the branch"
        raise WorkspaceError(cwd, f"the branch {branch} is there already", advice)
    return WorkspaceRecord(False, repository.common, prefix, base, branch, origin=status.branch)


def _check_name(run: str, cwd: str) -> None:
    done = run_git(cwd, "check-ref-format", f"refs/{BRANCHES}/{run}/1", seconds=QUICK_SECONDS)
    if done is None or done.returncode:
        advice = "choose another, without '..' and not ending with '.lock'"
        raise WorkspaceError(cwd, f"git cannot name a branch after the run {run}", advice)


def _check_same(
    record: WorkspaceRecord, run: str, cwd: str, repository: _Repository | None, *, in_place: bool
) -> None:
    """Check that a run continues where it began."""
    if in_place and not record.in_place:
        raise WorkspaceError(
            cwd, f"the run {run} has a worktree of its own", "continue it, or start another run"
        )
    common = None if repository is None else repository.common
    if common != record.common or (common is None and cwd != record.prefix):
        raise WorkspaceError(
            cwd,
            f"the run {run} works on {record.common or record.prefix}",
            "continue there, or start another run",
        )


def _check_disk(
    record: WorkspaceRecord,
    folder: str,
    root: str,
    repository: _Repository,
    confirm: Callable[[str], bool],
) -> DiskNeed | None:
    """Return what a worktree takes that is to be made now; None where none is, or git cannot say.

    Raises:
        WorkspaceError: It does not fit, and the answer is no.
    """
    if record.ready and os.path.lexists(root):
        return None
    if os.path.lexists(root):
        shutil.rmtree(root)  # half made: no agent has worked in it, and it takes what is free
    # The branch has grown where only the worktree was lost.
    branch = f"refs/heads/{record.branch}"
    commit = find_commit(repository.root, branch, seconds=QUICK_SECONDS) or record.base or ""
    made = None if record.setup is None else record.setup.made_bytes
    need = disk_need(repository.root, commit, folder, made, seconds=TREE_SECONDS)
    if need is None or need.fits:
        return need
    needs = f"needs ≈ {byte_size(need.tree_bytes + (need.setup_bytes or 0))}"
    free = f"{byte_size(need.free_bytes)} are free in {folder}"
    if not confirm(f"A worktree {needs}, and {free}. Make it all the same?"):
        advice = (
            "free some space, choose a --state-dir elsewhere, or answer at a terminal, where the "
            "relay asks whether to make it all the same"
        )
        raise WorkspaceError(repository.root, f"a worktree {needs}, and {free}", advice)
    return need


def _make_ready(
    record: WorkspaceRecord, run: str, folder: str, root: str, repository: _Repository
) -> list[str]:
    """Make the worktree, or repair it; return what there is to say about it."""
    if not record.ready:
        # The record is stored first, so that a half-made worktree can be found.
        record.save(folder)
        _make_worktree(record, root, repository)
        record.ready = True
        record.save(folder)
        assert record.base is not None
        return _describe_start(repository, record.base)
    if is_worktree(root, repository.common):
        return []
    if os.path.lexists(root):
        run_git(repository.root, *QUIET, "worktree", "repair", root, seconds=QUICK_SECONDS)
        if is_worktree(root, repository.common):
            return []
        advice = "move it away, and it is made anew from its branch"
        raise WorkspaceError(root, f"is no worktree of {repository.root} any more", advice)
    if record.setup is not None:
        record.setup.is_done, record.setup.bare_bytes = False, None
        record.save(folder)  # before it is made: a kill in between must not leave it without setup
    _make_worktree(record, root, repository)
    return [
        f"the worktree was gone and is made anew from {record.branch}; "
        f"what was kept is under refs/{BRANCHES}/{run}/"
    ]


def _make_worktree(record: WorkspaceRecord, root: str, repository: _Repository) -> None:
    """Make the worktree, whatever a killed process has left of it."""
    assert record.base is not None
    assert record.branch is not None
    if os.path.lexists(root):
        shutil.rmtree(root)
    # Twice: once for a path that is registered already, once for one that was locked meanwhile.
    command = ["worktree", "add", "--quiet", "--force", "--force"]
    if record.is_detached:
        branch = f"refs/heads/{record.branch}"
        if find_commit(repository.root, branch, seconds=QUICK_SECONDS) is None:
            made = ("update-ref", branch, record.base, "")  # only where there is none
            done = run_git(repository.root, *QUIET, *made, seconds=QUICK_SECONDS)
            if done is None or done.returncode:
                raise failure(repository.root, "update-ref", done, QUICK_SECONDS)
        command += ["--detach", root, branch]
    # The branch is there where only the worktree was lost: its commits are the work so far.
    elif find_commit(repository.root, f"refs/heads/{record.branch}", seconds=QUICK_SECONDS) is None:
        command += ["-b", record.branch, root, record.base]
    else:
        command += [root, record.branch]
    done = run_git(repository.root, *QUIET, *command, seconds=TREE_SECONDS)
    if done is None or done.returncode:
        raise failure(repository.root, "worktree add", done, TREE_SECONDS)


def _describe_start(repository: _Repository, base: str) -> list[str]:
    notes = []
    status = read_status(repository.root, seconds=TREE_SECONDS)
    if status is not None and status.files:
        files = plural(len(status.files), "uncommitted file")
        notes.append(f"{files} of {repository.root} are not in the worktree")
    if os.path.exists(os.path.join(repository.root, ".gitmodules")):
        notes.append(WITHOUT_SUBMODULES)
    missing = _missing_lfs(repository.root, base)
    if missing is not None:
        notes.append(f"files of git LFS are pointers in the worktree: {missing}")
    return notes


def _missing_lfs(root: str, base: str) -> str | None:
    """Return why files of git LFS have no contents in a worktree; None where there are none."""
    attributes = ("--", ":(top,glob)**/.gitattributes")
    used = run_git(
        root, *QUIET, "grep", "-q", "-e", "filter=lfs", base, *attributes, seconds=QUICK_SECONDS
    )
    if used is None or used.returncode:
        return None
    if (
        found := run_git(root, "lfs", "version", seconds=QUICK_SECONDS)
    ) is None or found.returncode:
        return "git lfs is not installed"
    filters = ("config", "--get-regexp", r"^filter\.lfs\.(smudge|process)$")
    switched_on = run_git(root, *filters, seconds=QUICK_SECONDS)
    if switched_on is None or switched_on.returncode:
        return "`git lfs install` was not run"
    return None


def is_worktree(root: str, common: str) -> bool:
    """Return whether a directory is the top of a worktree of a repository.

    Args:
        root: The directory.
        common: The directory that all worktrees of the repository share.
    """
    # A link in its place could lead into another tree.
    if not os.path.isdir(root) or stat.S_ISLNK(os.lstat(root).st_mode):
        return False
    try:
        found = _find_repository(root)
    except WorkspaceError:
        return False
    return (
        found is not None
        and found.common == common
        and os.path.realpath(found.root) == os.path.realpath(root)
    )


def _find_repository(cwd: str) -> _Repository | None:
    """Return the repository of a directory; None when it is in none, or there is no git.

    Raises:
        WorkspaceError: It is in one, and cannot be used: a bare one, or one of another user.
    """
    if not os.path.isdir(cwd):
        raise WorkspaceError(cwd, "is no directory")
    if shutil.which("git") is None:
        return None
    found = []
    for what in ("--show-toplevel", "--git-common-dir"):
        done = run_git(cwd, "rev-parse", what, seconds=QUICK_SECONDS)
        if done is not None and b"not a git repository" in done.stderr:
            return None
        if done is None or done.returncode:
            raise failure(cwd, "rev-parse", done, QUICK_SECONDS)
        found.append(os.path.join(cwd, os.fsdecode(done.stdout.removesuffix(b"\n"))))
    return _Repository(found[0], os.path.realpath(found[1]))
