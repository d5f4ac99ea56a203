"""Runs git in a tree of a run, whatever locks a git that was killed has left there."""

from __future__ import annotations

import os
import re
import threading
import time
from typing import TYPE_CHECKING

from ultramon.relay.merge.branch import GIT_SECONDS, LOCK_SECONDS
from ultramon.relay.workspace import BRANCHES
from ultramon.system.files import delete_quietly
from ultramon.system.git_trees import BoundedGit, failure
from ultramon.system.process_search import runs_in

if TYPE_CHECKING:
    import subprocess

_LOOK_SECONDS = 0.1
_OWN = (("worktrees",), ("refs", BRANCHES))
"""Below what all trees share."""
_LOCK = re.compile(rb"Unable to create '(.+?\.lock)': File exists")


class TreeGit:
    """Runs git in a working tree of a run, which nothing but the relay and its agents use.

    A lock of that tree, or of a private ref, is deleted where no git runs that may hold it, and
    waited for where one does. Locks of what the user shares stay.

    Args:
        root: The top of the tree.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        common = BoundedGit(root, GIT_SECONDS)(
            "rev-parse", "--path-format=absolute", "--git-common-dir"
        )
        common = os.path.realpath(common)
        self._places = (os.path.realpath(root), os.path.dirname(common))
        self._own = tuple(os.path.join(common, *path, "") for path in _OWN)

    def __call__(self, *arguments: str, given: str | None = None) -> str:
        """Run a command and return what it printed.

        Raises:
            WorkspaceError: git refused, or took too long.
        """
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            done = BoundedGit(self._root, GIT_SECONDS).attempt(*arguments, given=given)
            if done is not None and not done.returncode:
                return os.fsdecode(done.stdout.removesuffix(b"\n"))
            lock = self._lock_of(done)
            if lock is None or time.monotonic() > deadline:
                raise failure(self._root, arguments[0], done, GIT_SECONDS)
            if runs_in("git", *self._places):
                threading.Event().wait(_LOOK_SECONDS)
            else:
                delete_quietly(lock)

    def _lock_of(self, done: subprocess.CompletedProcess[bytes] | None) -> str | None:
        """Return the lock on which a command failed, where it is none that the user shares."""
        found = None if done is None else _LOCK.search(done.stderr)
        if found is None:
            return None
        path = os.path.join(self._root, os.fsdecode(found[1]))
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return path if path.startswith(self._own) else None
