"""The branch of a run: it moves from one checked commit to the next, and is checked out nowhere."""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.system.files import delete_quietly
from ultramon.system.git_trees import BoundedGit, failure
from ultramon.system.process_search import runs_in

TRAILER = "Ultramon-Item"
"""Names the item of a merged commit and the context that made it: ``17 port-1.4``."""
LOCK_SECONDS = 10.0
"""So long a lock of a git that runs is waited for; one whose git is gone is deleted at once."""
GIT_SECONDS = 300.0
_LOOK_SECONDS = 0.1


class MergedItem(NamedTuple):
    """An item that is on the branch."""

    number: int
    """Its place in the list of the run, from 1."""
    agent_id: str
    """The context that made it."""


class CheckedOutError(WorkspaceError):
    """A tree of the user has the branch checked out: moved now, its files would not follow."""


class RunBranch:
    """The branch that a run's verified work goes to.

    Args:
        root: The top of a working tree of the repository.
        name: Full name of the ref.
        base: The commit at which the run began.
        folder: The trees below it are those of the run; None = there are none.
    """

    def __init__(self, root: str, name: str, base: str, folder: str | None = None) -> None:
        self.name = name
        self.base = base
        self._root = root
        self._folder = folder and os.path.join(os.path.realpath(folder), "")
        common = self._git("rev-parse", "--path-format=absolute", "--git-common-dir")
        self._lock = os.path.join(os.path.realpath(common), f"{name}.lock")
        # Beside what the worktrees share lies the user's own tree, as a rule.
        self._places = (os.path.dirname(os.path.realpath(common)), os.path.realpath(root))

    @property
    def tip(self) -> str:
        """The commit that it names now.

        Raises:
            WorkspaceError: There is none any more, or git took too long.
        """
        return self._git("rev-parse", "--verify", "--quiet", f"{self.name}^{{commit}}")

    def merged(self) -> dict[MergedItem, str]:
        """Return the commits of all items that are on the branch.

        Raises:
            WorkspaceError: git refused.
        """
        form = f"--format=%H %(trailers:key={TRAILER},valueonly,separator=%x2C)"
        lines = self._git("log", "--no-show-signature", form, f"{self.base}..{self.name}")
        found = {}
        for line in lines.splitlines():
            commit, _, item = line.partition(" ")
            number, _, agent_id = item.rpartition(",")[2].partition(" ")
            if number.isdecimal() and agent_id:
                found[MergedItem(int(number), agent_id)] = commit
        return found

    def last_change(self, path: str, since: str, until: str) -> str | None:
        """Return the subject of the last commit of a range that changed a file; None = none did."""
        log = ("log", "--no-show-signature", "--max-count=1", "--format=%s")
        said = self._git(*log, f"{since}..{until}", "--", f":(top,literal){path}")
        return said or None

    def move(self, new: str, old: str) -> bool:
        """Have the branch name another commit; return whether it named the old one until now.

        A tree of the run that has it checked out is detached first, and stays as it is.

        Raises:
            CheckedOutError: A tree of the user has it checked out.
            WorkspaceError: git refused, or another git holds it.
        """
        if (place := self._checked_out()) is not None:
            if not (self._folder and os.path.realpath(place).startswith(self._folder)):
                advice = f"switch that tree to another branch: {self.name} moves without its files"
                raise CheckedOutError(place, f"has {self.name} checked out", advice)
            BoundedGit(place, GIT_SECONDS)("update-ref", "--no-deref", "HEAD", old)
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            git = BoundedGit(self._root, GIT_SECONDS)
            done = git.attempt("update-ref", "-m", "ultramon: merge", self.name, new, old)
            if done is not None and not done.returncode:
                return True
            if self.tip != old:
                return False
            if done is None or not os.path.lexists(self._lock):
                raise failure(self._root, "update-ref", done, GIT_SECONDS)
            if self._clear_stale_lock():
                continue
            if time.monotonic() > deadline:
                advice = "wait for the git that runs there"
                raise WorkspaceError(self._root, f"{self._lock} is there", advice)
            threading.Event().wait(_LOOK_SECONDS)

    def _clear_stale_lock(self) -> bool:
        """Delete the lock that a git which was killed has left on the branch.

        Returns:
            False where a git runs in the repository, which may hold it.
        """
        if runs_in("git", *self._places):
            return False
        delete_quietly(self._lock)
        return True

    def _checked_out(self) -> str | None:
        """Return the working tree in which the branch is checked out."""
        place = None
        for line in self._git("worktree", "list", "--porcelain").splitlines():
            word, _, rest = line.partition(" ")
            if word == "worktree":
                place = rest
            elif word == "branch" and rest == self.name:
                return place
        return None

    def _git(self, *arguments: str) -> str:
        return BoundedGit(self._root, GIT_SECONDS)(*arguments)
