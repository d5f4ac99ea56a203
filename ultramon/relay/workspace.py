"""Where a relay works: a git worktree and branch of its own, or a clean tree in place.

The user's tree, index, branch and stash are never touched, and nothing is pushed, merged or reset.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultramon.errors import WorkspaceError
from ultramon.relay.disk_space import DiskNeed
from ultramon.relay.workspace_record import WorkspaceRecord
from ultramon.system.git import GitStatus, find_commit, read_status, run_git
from ultramon.system.git_trees import QUIET, BoundedGit, failure, keep_tree, write_tree

if TYPE_CHECKING:
    import subprocess

WORKTREE = "worktree"
BRANCHES = "ultramon"
"""The branch of a run is ``ultramon/<run>``, its kept trees are ``refs/ultramon/<run>/<label>``."""
WORKER = "ULTRAMON_WORKER"
MAX_SHOWN = 50
WITHOUT_SUBMODULES = "submodules are not checked out in the worktree"
QUICK_SECONDS = 30.0
TREE_SECONDS = 300.0
"""For what reads or writes a whole tree, filters such as those of LFS included."""

_LABEL = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class WorkspaceSummary:
    """What a run has left in its workspace.

    Attributes:
        branch: Its branch; None with a detached head, or outside of git.
        base: The commit at which the run began; None before the first commit.
        head: The commit now.
        commits: Ids and subjects since the start, newest first, at most 50.
        commit_count: All of them.
        dirty_files: Uncommitted files, at most 50.
        dirty_count: All of them.
    """

    branch: str | None = None
    base: str | None = None
    head: str | None = None
    commits: tuple[tuple[str, str], ...] = ()
    commit_count: int = 0
    dirty_files: tuple[str, ...] = ()
    dirty_count: int = 0


@dataclass(slots=True)
class RelayWorkspace:
    """The place of one run; `open_workspace` makes or finds it.

    Attributes:
        run: The relay.
        path: Where the agent works.
        root: The top of its working tree; `path` itself outside of git.
        folder: The folder of the run in the state directory.
        base: The commit at which the run began; None before the first one, or outside of git.
        branch: The branch of the run; in place the user's own, None with a detached head.
        in_place: Whether it is the user's own tree.
        is_checkpointed: Whether `keep` keeps anything.
        notes: Sentences for the user.
        origin: The branch from which the run's own was made; None with a detached head, or where
            the run has no branch of its own.
        worker: The number of the worker whose workspace it is, from 1.
        disk: What the worktree takes, where it was made now; None where it was there, or where
            git does not know.
    """

    run: str
    path: str
    root: str
    folder: str
    base: str | None
    branch: str | None
    in_place: bool
    is_checkpointed: bool
    notes: list[str] = field(default_factory=list)
    origin: str | None = None
    worker: int = 1
    disk: DiskNeed | None = None

    @property
    def variables(self) -> dict[str, str]:
        """What its setup, checks and contexts find in their environment, to tell workers apart."""
        return {WORKER: str(self.worker)}

    def check(self) -> None:
        """Check that `relay --clean` has not removed it since it was opened.

        Raises:
            WorkspaceError: It has.
            StateError: The record of the run cannot be read.
        """
        record = WorkspaceRecord.load(self.folder)
        if record is None or record.is_cleaned:
            raise WorkspaceError(self.root, f"the run {self.run} was removed by --clean meanwhile")

    def forget_submodules(self) -> None:
        """Take the note about submodules back, where all are checked out by now."""
        if WITHOUT_SUBMODULES not in self.notes:
            return
        listed = run_git(self.root, *QUIET, "submodule", "status", seconds=QUICK_SECONDS)
        if listed is not None and not listed.returncode:
            lines = listed.stdout.splitlines()
            if lines and not any(line.startswith(b"-") for line in lines):
                self.notes.remove(WITHOUT_SUBMODULES)

    def keep(self, label: int | str, message: str) -> str | None:
        """Keep the present tree as a commit under a private ref.

        Tracked and untracked files are in it, ignored ones are not. Branch and index stay as they
        are, and no hook of the repository runs. Keeping a label again replaces what it named.

        Args:
            label: Number of a verified item, or a word such as ``forced-3``.
            message: Of the commit.

        Returns:
            The id of the commit; None outside of git.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        if not self.is_checkpointed:
            return None
        if not _LABEL.fullmatch(str(label)):
            raise WorkspaceError(self.root, f"{label!r} is no label", "use a-z, 0-9 and hyphens")
        ref = f"{self._refs}/{label}"
        kept = keep_tree(self.root, ref, message, folder=self.folder, seconds=TREE_SECONDS)
        if kept.note is not None and kept.note not in self.notes:
            self.notes.append(kept.note)
        return kept.commit

    def tree(self) -> str:
        """Return the id of the present tree, as `keep` would keep it.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        return write_tree(self.root, folder=self.folder, seconds=TREE_SECONDS).tree

    def fingerprint(self) -> str | None:
        """Return what stands for the commit and all files, ignored ones but; None outside of git.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        if not self.is_checkpointed:
            return None
        written = write_tree(self.root, folder=self.folder, seconds=TREE_SECONDS)
        return f"{written.head}:{written.tree}"

    def kept(self) -> dict[str, str]:
        """Return the ids of the kept trees by label."""
        return kept_trees(self.root, self.run) if self.is_checkpointed else {}

    def summarise(self, *, of_branch: bool = False) -> WorkspaceSummary:
        """Return what is there now: commits since the start, and uncommitted files.

        Args:
            of_branch: Whether of the branch alone, whatever is checked out.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        if not self.is_checkpointed:
            return WorkspaceSummary()
        at = f"refs/heads/{self.branch}" if of_branch else "HEAD"
        status = (
            GitStatus(self.branch, None, ())
            if of_branch
            else read_status(self.root, seconds=TREE_SECONDS)
        )
        if status is None:
            raise self._failed("status", None)
        head = find_commit(self.root, at, seconds=QUICK_SECONDS)
        commits: list[tuple[str, str]] = []
        count = 0
        if head is not None:
            since = f"{self.base}..{at}" if self.base else at
            count = int(self._git("rev-list", "--count", since).stdout)
            log = self._git(
                "log",
                # The user's settings may have signatures printed between the lines.
                "--no-show-signature",
                f"--max-count={MAX_SHOWN}",
                "-z",
                "--format=%h %s",
                since,
            )
            entries = log.stdout.decode("utf-8", "replace").split("\0")
            commits = [(one[0], one[2]) for entry in entries if (one := entry.partition(" "))[0]]
        return WorkspaceSummary(
            status.branch,
            self.base,
            head,
            tuple(commits),
            count,
            status.files[:MAX_SHOWN],
            len(status.files),
        )

    @property
    def _refs(self) -> str:
        return f"refs/{BRANCHES}/{self.run}"

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        done = run_git(self.root, *QUIET, *arguments, seconds=TREE_SECONDS)
        if done is None or done.returncode:
            raise self._failed(arguments[0], done)
        return done

    def _failed(self, verb: str, done: subprocess.CompletedProcess[bytes] | None) -> WorkspaceError:
        return failure(self.root, verb, done, TREE_SECONDS)


def kept_trees(root: str, run: str) -> dict[str, str]:
    """Return the ids of the trees that a run has kept, by label.

    Args:
        root: A directory of its repository.
        run: The run.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    refs = f"refs/{BRANCHES}/{run}/"
    git = BoundedGit(root, TREE_SECONDS)
    lines = git("for-each-ref", "--format=%(objectname) %(refname)", refs).splitlines()
    pairs = (line.split(" ", 1) for line in lines)
    return {name.removeprefix(refs): commit for commit, name in pairs}
