"""The disk that a worktree takes: as git knows it before, as the file system knows it after."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass

from ultramon.system.git import run_git
from ultramon.system.git_trees import QUIET
from ultramon.system.wording import byte_size

_BLOCK_BYTES = 4_096
"""A file takes whole blocks; this is their usual size."""
_UNKNOWN_SIZES = r"^(core\.sparsecheckout|extensions\.partialclone|remote\..*\.promisor)$"
"""With these settings a worktree holds a part of the commit, or sizes would be asked for by net."""


@dataclass(frozen=True, slots=True)
class DiskNeed:
    """What a new worktree takes.

    Attributes:
        tree_bytes: The files of the commit.
        setup_bytes: What setup adds, as in an earlier worktree of the run; None = not known.
        free_bytes: What is free where it is made.
    """

    tree_bytes: int
    setup_bytes: int | None
    free_bytes: int

    @property
    def fits(self) -> bool:
        """Whether it fits, as far as it is known."""
        return self.tree_bytes + (self.setup_bytes or 0) <= self.free_bytes

    def describe(self, *, has_setup: bool, count: int = 1) -> str:
        """Return it for people, with a remark where what a setup adds is not known.

        Args:
            has_setup: Whether there is one.
            count: Of worktrees of that size.
        """
        needed = byte_size(count * (self.tree_bytes + (self.setup_bytes or 0)))
        more = " + what setup makes," if has_setup and self.setup_bytes is None else ""
        what = "worktree" if count == 1 else f"{count} worktrees"
        return f"{what} ≈ {needed}{more} of {byte_size(self.free_bytes)} free"


def disk_need(
    repository: str, commit: str, folder: str, setup_bytes: int | None, *, seconds: float
) -> DiskNeed | None:
    """Return what a worktree of a commit takes; None where git does not know.

    Contents of git LFS are counted as their pointers.

    Args:
        repository: A directory of it.
        commit: What is checked out.
        folder: Where the worktree is made; it exists.
        setup_bytes: As in `DiskNeed`.
        seconds: For each of two calls of git.

    Raises:
        OSError: The file system of the folder does not answer.
    """
    partly = run_git(repository, "config", "--get-regexp", _UNKNOWN_SIZES, seconds=seconds)
    if partly is None or b" true\n" in partly.stdout.lower() or b"partialclone" in partly.stdout:
        return None
    listed = run_git(repository, *QUIET, "ls-tree", "-r", "-l", "-z", commit, seconds=seconds)
    if listed is None or listed.returncode:
        return None
    total = 0
    for entry in listed.stdout.split(b"\0"):
        # mode, type, id, size: `-` for a submodule.
        size = entry.partition(b"\t")[0].split()[3:]
        if size and size[0].isdigit():
            total += -(-int(size[0]) // _BLOCK_BYTES) * _BLOCK_BYTES
    return DiskNeed(total, setup_bytes, shutil.disk_usage(folder).free)


def taken_bytes(root: str) -> int:
    """Return what a directory takes on disk, what would become free if it were removed.

    A file with a name outside of it as well, such as a link into a cache, takes nothing. What
    cannot be read is left out.
    """
    total = 0
    several: dict[tuple[int, int], int] = {}
    pending = [root]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if stat.S_ISDIR(found.st_mode):
                        pending.append(entry.path)
                    elif found.st_nlink > 1:
                        key = (found.st_dev, found.st_ino)
                        several[key] = several.get(key, 0) + 1
                        if several[key] < found.st_nlink:
                            continue
                    # In units of 512 bytes, whatever the file system's block.
                    total += found.st_blocks * 512
        except OSError:
            continue
    return total
