"""What git says of work that would be lost: in a branch, in kept trees, in repositories inside."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from ultramon.system.git import find_commit, read_status, run_git
from ultramon.system.git_trees import QUIET, failure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECONDS = 300.0
"""For each call: some read the history since a run began, or a whole tree."""
OWN_BRANCHES = "refs/heads/ultramon/"
_GITLINK = "160000"
_RAW = ("--raw", "--no-abbrev", "--no-renames", "--no-color", "--no-show-signature")

Version = tuple[str, str, str]
"""Of a file: its path as git quotes it, its mode, the id of its content, zeros where it is gone."""


def ask(cwd: str, *arguments: str) -> str:
    """Return what a command of git prints.

    Raises:
        WorkspaceError: git refused, or took too long.
    """
    done = run_git(cwd, *QUIET, *arguments, seconds=SECONDS)
    if done is None or done.returncode:
        raise failure(cwd, arguments[0], done, SECONDS)
    return os.fsdecode(done.stdout)


def destinations(common: str, origin: str | None) -> list[str]:
    """Return the refs into which the work of a run is merged, by their full names.

    Args:
        common: The directory of the repository.
        origin: The branch from which it came; None = not known.

    Returns:
        That branch and the one of the remote that it follows. Where the branch is not known, or is
        there no more: all branches but those of relays.
    """
    form = "--format=%(refname)%00%(upstream)"
    listed = ask(common, "for-each-ref", form, "refs/heads", "refs/remotes").splitlines()
    upstreams = dict(line.split("\0", 1) for line in listed)
    branch = f"refs/heads/{origin}"
    if origin is not None and branch in upstreams:
        return [name for name in (branch, upstreams[branch]) if name in upstreams]
    return [name for name in upstreams if not name.startswith(OWN_BRANCHES)]


def missing_commits(common: str, tip: str, places: Sequence[str]) -> int:
    """Return how many commits of a branch are in none of the refs."""
    return int(ask(common, "rev-list", "--count", tip, "--not", *places, "--"))


def merged_refs(
    common: str, refs: str, base: str | None, places: Sequence[str], *, are_rebased: bool
) -> set[str]:
    """Return the refs of kept trees of which nothing is missing in the refs.

    Each is a commit on others. These have to be in the history of the refs; where a merge queue has
    rebased them, every version of a file that they have changed. So has, in any case, every version
    that the kept tree itself has changed.

    Args:
        common: The directory of the repository.
        refs: What the names of the kept trees begin with.
        base: The commit at which the run began.
        places: Full names of the refs.
        are_rebased: Whether the commits of the run are in its branch as other ones.
    """
    form = "--format=%(objectname) %(refname)"
    listed = [line.split(" ") for line in ask(common, "for-each-ref", form, refs).splitlines()]
    if not listed or not places:
        return set()
    names = [name for _, name in listed]
    graph = ask(common, "rev-list", "--topo-order", "--parents", *names, "--not", *places, "--")
    missing = [line.split() for line in graph.splitlines()]
    since = (f"^{base}",) if base is not None else ()
    history = ask(common, "log", *_RAW, "-m", "--format=", *places, *since, "--")
    known = {version for pair in _versions(history) for version in pair}
    changes = defaultdict[str, list[Version]](list)
    commit = ""
    tips = [*names, *(one for one, *_ in missing)]
    for line in ask(
        common, "log", *_RAW, "-m", "--no-walk=unsorted", "--format=%H", *tips, "--"
    ).splitlines():
        if line.startswith(":"):
            changes[commit] += [new for _, new in _versions(line)]
        elif line:
            commit = line
    parents_of = {one: parents for one, *parents in missing}
    left = set(parents_of)
    # Parents come behind their children.
    for one, *parents in reversed(missing) if are_rebased else ():
        if known.issuperset(changes[one]) and left.isdisjoint(parents):
            left.remove(one)
    return {
        name
        for commit, name in listed
        if known.issuperset(changes[commit]) and left.isdisjoint(parents_of.get(commit, ()))
    }


def _versions(raw: str) -> Iterator[tuple[Version, Version]]:
    """Yield the two versions of each file in raw output of git."""
    for line in raw.splitlines():
        if line.startswith(":"):
            facts, _, path = line.partition("\t")
            old_mode, new_mode, old, new, _ = facts[1:].split(" ", 4)
            yield (path, old_mode, old), (path, new_mode, new)


def repositories_with_work(root: str) -> list[str]:
    """Return the repositories inside a worktree whose work is nowhere else, by path below it.

    Such as a submodule in which an agent has committed. A clone that is as its remote has it holds
    no work; those among ignored files are as disposable as these.
    """
    listed = ask(root, "ls-files", "--stage", "-z").split("\0")
    inside = [line.partition("\t")[2] for line in listed if line.startswith(_GITLINK)]
    # git lists the files of no other repository, but its directory, with a slash.
    others = ask(root, "ls-files", "--others", "--exclude-standard", "-z").split("\0")
    inside += [name.rstrip("/") for name in others if name.endswith("/")]
    paths = ((name, os.path.join(root, name)) for name in inside)
    own = _common(root)
    return [
        name
        for name, path in paths
        if os.path.lexists(os.path.join(path, ".git")) and _has_work(path, own)
    ]


def _common(root: str) -> str:
    return os.path.realpath(os.path.join(root, ask(root, "rev-parse", "--git-common-dir").strip()))


def _has_work(repository: str, own: str) -> bool:
    status = read_status(repository, seconds=SECONDS)
    if status is None or status.files:
        return True
    if _common(repository) == own:  # another worktree of the same repository
        head = find_commit(repository, "HEAD", seconds=SECONDS)
        return head is not None and not is_reachable(repository, head)
    local = ("HEAD", "--branches", "--glob=refs/stash")
    found = run_git(
        repository, *QUIET, "rev-list", "-n", "1", *local, "--not", "--remotes", "--",
        seconds=SECONDS,
    )  # fmt: skip
    if found is None:
        return True
    # It fails where nothing was committed yet, and then there is nothing to lose.
    return bool(found.stdout) if not found.returncode else status.head is not None


def is_reachable(root: str, commit: str) -> bool:
    """Return whether a ref of the repository leads to a commit."""
    return bool(ask(root, "for-each-ref", "--count=1", f"--contains={commit}"))


def ignored_files(root: str) -> list[str]:
    """Return what is ignored in a worktree; a directory of nothing else as one, with a slash."""
    given = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory", "-z")
    return [name for name in ask(root, *given).split("\0") if name]
