"""The branch of a run: it moves from one checked commit to the next, and is checked out nowhere."""

from __future__ import annotations

import os
from typing import NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.relay.merge.tree_git import GIT_SECONDS, LOCK_SECONDS, TreeGit
from ultramon.system.git import tree_with
from ultramon.system.git_trees import BoundedGit

TRAILER = "Ultramon-Item"
"""Names the item of a merged commit and the context that made it: ``17 port-1.4``."""


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
        lock_seconds: As for `TreeGit`.
    """

    def __init__(
        self,
        root: str,
        name: str,
        base: str,
        folder: str | None = None,
        *,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self.name = name
        self.base = base
        self._git = TreeGit(root, name, lock_seconds=lock_seconds)
        self._folder = folder and os.path.join(os.path.realpath(folder), "")

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
        trees = self._git("worktree", "list", "--porcelain")
        if (place := tree_with(trees, self.name)) is not None:
            if not (self._folder and os.path.realpath(place).startswith(self._folder)):
                advice = f"switch that tree to another branch: {self.name} moves without its files"
                raise CheckedOutError(place, f"has {self.name} checked out", advice)
            BoundedGit(place, GIT_SECONDS)("update-ref", "--no-deref", "HEAD", old)
        try:
            self._git("update-ref", "-m", "ultramon: merge", self.name, new, old)
        except WorkspaceError:
            tip = self.tip
            if tip == old:
                raise
            return tip == new  # where that git was killed when it had moved it
        return True
