"""Keeps the working tree of a repository as a commit under a private ref.

Made with plumbing: branch, index and stash of the user stay as they are, and no hook runs.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.system.files import delete_quietly
from ultramon.system.git import run_git
from ultramon.system.ids import random_hex

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

# No program of the repository runs: no hook, and no file monitor, which is configured there too.
QUIET = (
    "-c", f"core.hooksPath={os.devnull}",
    "-c", "core.fsmonitor=false",
)  # fmt: skip
_TRIES = 3
_IDENTITY = {
    f"GIT_{role}_{name}": value
    for role in ("AUTHOR", "COMMITTER")
    for name, value in (("NAME", "ultramon"), ("EMAIL", "ultramon@localhost"))
}
"""The author of kept trees: a user may have configured none."""


class WrittenTree(NamedTuple):
    """A working tree that was stored as git objects."""

    tree: str
    """The id of the tree."""
    head: str
    """The id of the commit that is checked out; empty without one."""
    note: str | None
    """What is not in it; None when all is."""


class KeptTree(NamedTuple):
    """A tree that was kept."""

    commit: str
    """Its id."""
    note: str | None
    """What is not in it; None when all is."""


def write_tree(
    root: str, *, folder: str, seconds: float, left_out: Sequence[str] = ()
) -> WrittenTree:
    """Store the present tree: tracked and untracked files, ignored ones are not.

    Args:
        root: The top of the working tree.
        folder: Where a temporary index lies meanwhile.
        seconds: For all of it; then git is killed.
        left_out: Paths from the top, files or folders, that are left as the commit has them.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    git = BoundedGit(root, seconds)
    index = os.path.join(folder, f"index.{random_hex(6)}.tmp")
    environ = {"GIT_INDEX_FILE": index}
    note = None
    try:
        # The index of the tree knows which files have not changed, and which are left out.
        own = os.path.join(root, git("rev-parse", "--git-path", "index"))
        if os.path.exists(own):
            # Copied with its times, which show which files may have changed since it was written.
            shutil.copy2(own, index)
        added = git.attempt(
            "add",
            "--all",
            "--ignore-errors",
            ".",
            *(f":(exclude,top,literal){path}" for path in left_out),
            environ=environ,
        )
        # 1 = some files could not be read, or a repository in it has no commit.
        if added is None or added.returncode not in (0, 1):
            raise failure(root, "add", added, seconds)
        if added.returncode:
            note = "not every file could be kept: " + last_line(added.stderr)
        tree = git("write-tree", environ=environ)
    except OSError as error:
        raise WorkspaceError(root, f"the index cannot be copied: {error.strerror}") from error
    finally:
        for leftover in (index, f"{index}.lock"):
            delete_quietly(leftover)
    head = git.attempt("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    return WrittenTree(tree, "" if head is None else head.stdout.decode().strip(), note)


def keep_tree(root: str, ref: str, message: str, *, folder: str, seconds: float) -> KeptTree:
    """Store the present tree as `write_tree` does, and keep it as a commit.

    Args:
        root: The top of the working tree.
        ref: Full name of the ref; what it named before is replaced.
        message: Of the commit.
        folder: Where a temporary index lies meanwhile.
        seconds: For all of it; then git is killed.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    git = BoundedGit(root, seconds)
    written = write_tree(root, folder=folder, seconds=seconds)
    parents = ("-p", written.head) if written.head else ()
    # No argument holds half a character or a NUL.
    text = message.encode("utf-8", "replace").decode().replace("\0", " ")
    commit = git("commit-tree", written.tree, *parents, "-m", text or "-")
    git("update-ref", ref, commit)
    return KeptTree(commit, written.note)


class BoundedGit:
    """Runs git in one repository, all calls together within a time; no hook runs.

    Args:
        root: A directory of the repository.
        seconds: For all calls; then git is killed.
    """

    def __init__(self, root: str, seconds: float) -> None:
        self._root = root
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def attempt(
        self, *arguments: str, environ: dict[str, str] | None = None, given: str | None = None
    ) -> subprocess.CompletedProcess[bytes] | None:
        """Run a command, whatever becomes of it; None = it took too long, or there is no git.

        One that a signal ends, as where memory runs out, is run again, twice at most.
        """
        variables = {**_IDENTITY, **(environ or {})}
        for _ in range(_TRIES):
            left = max(0.0, self._deadline - time.monotonic())
            done = run_git(
                self._root, *QUIET, *arguments, seconds=left, environ=variables, given=given
            )
            if done is None or done.returncode >= 0:
                break
        return done

    def __call__(
        self, *arguments: str, environ: dict[str, str] | None = None, given: str | None = None
    ) -> str:
        """Run a command and return what it printed."""
        done = self.attempt(*arguments, environ=environ, given=given)
        if done is None or done.returncode:
            raise failure(self._root, arguments[0], done, self._seconds)
        return os.fsdecode(done.stdout.removesuffix(b"\n"))


def failure(
    path: str, verb: str, done: subprocess.CompletedProcess[bytes] | None, seconds: float
) -> WorkspaceError:
    """Return the error of a command of git that failed, or (None) took too long."""
    if done is None:
        return WorkspaceError(path, f"git {verb} took more than {seconds:g} s, or there is no git")
    return WorkspaceError(path, f"git {verb} failed: {last_line(done.stderr)}")


def last_line(text: bytes) -> str:
    """Return what git said last."""
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "without a word"
