"""Which repository's tree a git worktree was made from, without running git.

Standard library only and cheap: status lines ask.
"""

from __future__ import annotations

import os

from ultramon.system.files import read_start

_LINK = b"gitdir: "
_MAX_LINK_BYTES = 4_096
_MOST_KNOWN = 1_000
_known: dict[str, str | None] = {}


def path_in_main_tree(path: str) -> str | None:
    """Return where a path lies in the tree that its git worktree was made from.

    As this process first saw it.

    Args:
        path: A directory; it need not exist.

    Returns:
        None where it lies in no such worktree, or is no absolute path on this machine.
    """
    if path not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[path] = _look_up(path)
    return _known[path]


def _look_up(path: str) -> str | None:
    if not os.path.isabs(path):
        return None  # of another system: the process's own directory would answer for it
    root, inside = path.rstrip(os.sep) or os.sep, ""
    while True:
        try:
            link = read_start(os.path.join(root, ".git"), _MAX_LINK_BYTES)
        except IsADirectoryError:
            return None  # the tree of a repository itself
        except (OSError, ValueError):  # ValueError: a name that no file can have
            link = b""
        if link.startswith(_LINK):
            return _main_of(os.fsdecode(link.removeprefix(_LINK).strip()), root, inside)
        parent, name = os.path.split(root)
        if not name:
            return None
        root, inside = parent, os.path.join(name, inside) if inside else name


def _main_of(link: str, root: str, inside: str) -> str | None:
    """Return the path below the directory whose ``.git/worktrees/<name>`` a link leads to."""
    parts = os.path.normpath(os.path.join(root, link)).split(os.sep)
    if parts[-3:-1] != [".git", "worktrees"]:
        return None  # a submodule, or a repository without a tree
    return os.path.normpath(os.path.join(os.sep.join(parts[:-3]) or os.sep, inside))
