"""Runs git in a tree of a run, whatever locks a git that was killed has left there."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

from ultramon.errors import WorkspaceError
from ultramon.relay.workspace import BRANCHES
from ultramon.system.files import delete_quietly
from ultramon.system.git_trees import BoundedGit, failure
from ultramon.system.process_search import runs_in

if TYPE_CHECKING:
    import subprocess

GIT_SECONDS = 300.0
LOCK_SECONDS = 10.0
_LOOK_SECONDS = 0.1
_OWN = (("worktrees",), ("refs", BRANCHES))
"""Below what all trees share."""
_LOCK = re.compile(rb"Unable to create '(.+?\.lock)': File exists")


class TreeGit:
    """Runs git in a working tree of a run, which nothing but the relay and its agents use.

    A lock of such a tree, of a private ref or of the run's branch is deleted where no git runs that
    may hold it, and waited for where one does. Locks of what the user shares stay.

    Args:
        root: The top of the tree.
        branch: Full name of the run's branch; None = its lock stays.
        lock_seconds: So long a lock of a git that runs is waited for.
    """

    def __init__(
        self, root: str, branch: str | None = None, *, lock_seconds: float = LOCK_SECONDS
    ) -> None:
        self._root = root
        self._lock_seconds = lock_seconds
        common = BoundedGit(root, GIT_SECONDS)(
            "rev-parse", "--path-format=absolute", "--git-common-dir"
        )
        common = os.path.realpath(common)
        self._places = (os.path.realpath(root), os.path.dirname(common))
        self._own = tuple(os.path.join(common, *path, "") for path in _OWN)
        if branch is not None:
            self._own += (os.path.join(common, f"{branch}.lock"),)

    def __call__(self, *arguments: str, given: str | None = None) -> str:
        """Run a command and return what it printed.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        deadline = time.monotonic() + self._lock_seconds
        while True:
            done = BoundedGit(self._root, GIT_SECONDS).attempt(*arguments, given=given)
            if done is not None and not done.returncode:
                return os.fsdecode(done.stdout.removesuffix(b"\n"))
            lock = self._lock_of(done)
            if lock is None:
                raise failure(self._root, arguments[0], done, GIT_SECONDS)
            if not runs_in("git", *self._places):
                delete_quietly(lock)
                if os.path.lexists(lock):
                    raise failure(self._root, arguments[0], done, GIT_SECONDS)
            elif time.monotonic() > deadline:
                advice = "wait for the git that runs there"
                raise WorkspaceError(self._root, f"{lock} is there", advice)
            else:
                threading.Event().wait(_LOOK_SECONDS)

    def _lock_of(self, done: subprocess.CompletedProcess[bytes] | None) -> str | None:
        """Return the lock on which a command failed, where it is none that the user shares."""
        found = None if done is None else _LOCK.search(done.stderr)
        if found is None:
            return None
        path = os.path.join(self._root, os.fsdecode(found[1]))
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return path if path.startswith(self._own) else None
