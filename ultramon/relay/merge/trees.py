"""Merges trees without a working tree, and says where two of them do not fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ultramon.errors import WorkspaceError
from ultramon.system.git_trees import BoundedGit, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_CONFLICTS = 20
"""Conflicting files that are described; the first ones by name."""
_OURS, _THEIRS = b"<<<<<<< ", b">>>>>>> "


class Conflict(NamedTuple):
    """A file that two trees change in ways that do not fit together."""

    path: str
    lines: tuple[tuple[int, int], ...]
    """First and last line of each place, in the file with marks; none for a file that one of them
    has deleted, renamed or that is no text."""

    def __str__(self) -> str:
        places = ", ".join(f"{first}-{last}" for first, last in self.lines)
        return f"{self.path}:{places}" if places else self.path


class MergedTree(NamedTuple):
    """What two trees make together."""

    tree: str
    """The id of the tree; with conflicts it has marks in it."""
    conflicts: tuple[Conflict, ...]
    """At most `MAX_CONFLICTS`."""


def merge_trees(root: str, base: str, ours: str, theirs: str, *, seconds: float) -> MergedTree:
    """Return a tree with what `theirs` changes of `base`, brought into `ours`.

    Args:
        root: A directory in the repository.
        base: Id of the tree that both come from.
        ours: Id of the tree that changes are brought into.
        theirs: Id of the tree that has them.
        seconds: For all of it; then git is killed.

    Raises:
        WorkspaceError: git refused, is older than 2.38, or took too long.
    """
    git = BoundedGit(root, seconds)
    # git finds the common tree as the parent of both: three commits that nothing refers to.
    parent = git("commit-tree", base, "-m", "base")
    sides = [git("commit-tree", tree, "-p", parent, "-m", "side") for tree in (ours, theirs)]
    command = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages")
    done = git.attempt(*command, *sides)
    if done is None or done.returncode not in (0, 1) or not done.stdout:
        raise failure(root, "merge-tree", done, seconds)
    tree, *names = done.stdout.decode("utf-8", "surrogateescape").rstrip("\0").split("\0")
    if not done.returncode:
        return MergedTree(tree, ())
    paths = list(dict.fromkeys(names))[:MAX_CONFLICTS]
    return MergedTree(tree, tuple(Conflict(path, _places(git, tree, path)) for path in paths))


def changed_files(
    root: str, before: str, after: str, *, seconds: float, among: Sequence[str] = ()
) -> list[str]:
    """Return the paths in which two trees differ.

    Args:
        root: A folder in a working tree, which pathspecs are relative to.
        before: Id of a tree or commit.
        after: Of the other one.
        seconds: Then git is killed.
        among: Only these, as pathspecs of git: a folder, a file, or ``*.py``. Empty = all.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    command = ("diff-tree", "-r", "-z", "--no-renames", "--name-only", before, after, "--", *among)
    names = BoundedGit(root, seconds)(*command).split("\0")
    return [name for name in names if name]


def _places(git: BoundedGit, tree: str, path: str) -> tuple[tuple[int, int], ...]:
    """Return the places of a merged file that are marked as conflicts."""
    try:
        text = git("cat-file", "blob", f"{tree}:{path}")
    except WorkspaceError:  # a link, a module, or deleted on both sides
        return ()
    places, first = [], 0
    for number, line in enumerate(text.encode("utf-8", "surrogateescape").split(b"\n"), 1):
        if line.startswith(_OURS):
            first = number
        elif line.startswith(_THEIRS) and first:
            places.append((first, number))
            first = 0
    return tuple(places)
