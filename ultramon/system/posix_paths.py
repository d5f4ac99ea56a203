"""What a hook uses of `os.path`, for text only; see `ultramon.system.posix_os`."""

from posix import lstat, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from posix import stat_result


def join(path: str, *more: str) -> str:
    """Join the parts of a path; one that begins with a slash begins anew."""
    for part in more:
        if part.startswith("/"):
            path = part
        elif not path or path.endswith("/"):
            path += part
        else:
            path = f"{path}/{part}"
    return path


def dirname(path: str) -> str:
    """Return the directory of a path as spelled."""
    head = path[: path.rfind("/") + 1]
    return head.rstrip("/") or head


def basename(path: str) -> str:
    """Return the last part of a path as spelled."""
    return path[path.rfind("/") + 1 :]


def abspath(path: str) -> str:
    """Return an absolute path without ``.`` and ``..``; almost every one is that already."""
    whole = path + "/"
    if path[:1] == "/" and not ("//" in whole or "/./" in whole or "/../" in whole):
        return path
    import os

    return os.path.abspath(path)


def expanduser(path: str) -> str:
    """Replace a ``~`` in front by a home directory."""
    if not path.startswith("~"):
        return path
    import os

    return os.path.expanduser(path)


def exists(path: str) -> bool:
    """Return whether a path leads to something."""
    try:
        stat(path)
    except (OSError, ValueError):
        return False
    return True


def lexists(path: str) -> bool:
    """Return whether something has this name, were it a link to nothing."""
    try:
        lstat(path)
    except (OSError, ValueError):
        return False
    return True


def samestat(one: "stat_result", other: "stat_result") -> bool:
    """Return whether two results of `stat` are of the same file."""
    return one.st_ino == other.st_ino and one.st_dev == other.st_dev


def __getattr__(name: str) -> object:
    import os

    return getattr(os.path, name)
