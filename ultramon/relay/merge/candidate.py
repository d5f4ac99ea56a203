"""Puts the work of several items on top of a commit, one commit for each item."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ultramon.relay.merge.branch import TRAILER, MergedItem
from ultramon.relay.merge.tree_git import GIT_SECONDS
from ultramon.relay.merge.trees import Conflict, merge_trees
from ultramon.system.git_trees import BoundedGit

if TYPE_CHECKING:
    from collections.abc import Sequence


class Change(NamedTuple):
    """The work of an item."""

    item: MergedItem
    name: str
    """Of the item, as its user spells it."""
    before: str
    """The id of the tree in which the item was begun."""
    commit: str
    """The id of the commit in which it is done."""
    message: str
    """Of the commit on the branch."""
    author_of: str
    """The id of the commit whose author that one gets."""
    together_with: MergedItem | None = None
    """The item in whose commit the work of this one may be, as it changes nothing more."""


class Candidate(NamedTuple):
    """A commit on which the work of some items is, and the commits before it."""

    base: str
    changes: tuple[Change, ...]
    """Those that fit, in their order."""
    commits: tuple[str, ...]
    """One for each of them; the last one is the candidate."""
    conflicts: dict[Change, tuple[Conflict, ...]]
    """Those that do not fit on what stands before them."""

    @property
    def tip(self) -> str:
        """The commit with all of them."""
        return self.commits[-1] if self.commits else self.base


def build(root: str, base: str, changes: Sequence[Change]) -> Candidate:
    """Put changes on top of a commit, without a working tree; no ref names the result.

    Args:
        root: A directory in the repository.
        base: Id of the commit.
        changes: In their order; what conflicts is left out.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    tip = base
    fitting: list[Change] = []
    commits: list[str] = []
    conflicts: dict[Change, tuple[Conflict, ...]] = {}
    for change in changes:
        other = next((one for one in conflicts if one.item == change.together_with), None)
        if other is not None:
            conflicts[change] = conflicts[other]
            continue
        git = BoundedGit(root, GIT_SECONDS)
        ours, theirs = (git("rev-parse", f"{one}^{{tree}}") for one in (tip, change.commit))
        merged = merge_trees(root, change.before, ours, theirs, seconds=GIT_SECONDS)
        if merged.conflicts:
            conflicts[change] = merged.conflicts
            continue
        tip = _commit(git, merged.tree, tip, change)
        fitting.append(change)
        commits.append(tip)
    return Candidate(base, tuple(fitting), tuple(commits), conflicts)


def _commit(git: BoundedGit, tree: str, parent: str, change: Change) -> str:
    """Make the commit of an item: its author's, in the words of its author."""
    environ = author_environ(git, change.author_of)
    trailer = f"{TRAILER}: {change.item.number} {change.item.agent_id}"
    words = ("-m", change.message.strip() or "-", "-m", trailer)
    return git("commit-tree", tree, "-p", parent, *words, environ=environ)


def author_environ(git: BoundedGit, commit: str) -> dict[str, str]:
    """Return the variables with which git makes a commit of the same author and time.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    form = "--format=%an%x00%ae%x00%aI"
    name, email, at = git("log", "-1", "--no-show-signature", form, commit).split("\0")
    return {"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_AUTHOR_DATE": at}
