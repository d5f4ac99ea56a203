"""Runs git: bounded in time, without questions to a person, on the repository of a directory."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER_REPOSITORY = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
)
"""Set where a hook of git starts this program: they would name another repository."""

_COLUMNS_BEFORE_PATH = {"1": 8, "2": 9, "u": 10, "?": 1}
"""By the kind of an entry of ``git status --porcelain=v2``."""


class GitStatus(NamedTuple):
    """What ``git status`` says."""

    branch: str | None
    """None with a detached head."""
    head: str | None
    """Beginning of the commit's id; None before the first commit."""
    files: tuple[str, ...]
    """Uncommitted files, untracked ones too, ignored ones not; for people to read."""


def run_git(
    cwd: str,
    *arguments: str,
    seconds: float,
    environ: Mapping[str, str] | None = None,
    given: str | None = None,
) -> subprocess.CompletedProcess[bytes] | None:
    """Run git to its end.

    Args:
        cwd: Where.
        *arguments: Its command line.
        seconds: After these it is killed, with what it started.
        environ: Variables on top of the process's own.
        given: What it reads; None = nothing.

    Returns:
        None when there is no git, or it took too long.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in OTHER_REPOSITORY}
    # No lock that the user's own git may need, and no question for a password.
    inherited |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            ["git", "-C", cwd, *arguments],
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=inherited | dict(environ or {}),
            start_new_session=True,  # a group of its own, which can be killed as one
        )
    except OSError:
        return None
    try:
        output, errors = process.communicate(
            None if given is None else os.fsencode(given), timeout=seconds
        )
    except BaseException as error:
        # A filter that git started would hold the pipes open.
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def find_commit(cwd: str, name: str, *, seconds: float) -> str | None:
    """Return the id of the commit that a name stands for; None where there is none, or in vain."""
    given = ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    done = run_git(cwd, *given, seconds=seconds)
    return done.stdout.decode().strip() if done is not None and not done.returncode else None


def tree_with(worktrees: str, ref: str) -> str | None:
    """Return the working tree in which a branch is checked out; None = in none.

    Args:
        worktrees: What ``git worktree list --porcelain`` has printed.
        ref: Full name of the branch.
    """
    path = None
    for line in worktrees.splitlines():
        word, _, value = line.partition(" ")
        if word == "worktree":
            path = value
        elif word == "branch" and value == ref:
            return path
    return None


def read_status(cwd: str, *, seconds: float) -> GitStatus | None:
    """Return branch, head and uncommitted files; None outside of a repository, or in vain."""
    done = run_git(cwd, "status", "--porcelain=v2", "--branch", "-z", seconds=seconds)
    if done is None or done.returncode:
        return None
    branch = head = None
    files: list[str] = []
    entries = iter(done.stdout.decode("utf-8", "replace").split("\0"))
    for entry in entries:
        if entry.startswith("# branch.head "):
            branch = None if entry[14:] == "(detached)" else entry[14:]
        elif entry.startswith("# branch.oid "):
            head = None if entry[13:] == "(initial)" else entry[13:25]
        elif entry[:1] in _COLUMNS_BEFORE_PATH:
            files.append(entry.split(" ", _COLUMNS_BEFORE_PATH[entry[0]])[-1])
            if entry[0] == "2":  # renamed: the former name follows
                next(entries, None)
    return GitStatus(branch, head, tuple(files))
