"""Takes the modules of a hook out of its bundle; the first code in it, see `code_bundle`.

Runs before anything else of ultramon is loaded, and imports nothing of it.
"""

import sys
from marshal import loads
from posix import pread, stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.code_bundle import Entry


def load(fd: int, root: str, index: "list[Entry]") -> bool:
    """Load every module of a bundle, or none.

    Args:
        fd: The bundle.
        root: The directory that holds the package.
        index: What is in it, in the order in which it runs.

    Returns:
        Whether it did; not where a source is another one than when the bundle was made.
    """
    for _, path, number, time, size, _, _ in index:
        found = stat(root + path)
        if (found.st_ino, found.st_mtime_ns, found.st_size) != (number, time, size):
            return False
    modules, new_module = sys.modules, type(sys)
    loaded = []
    try:
        for name, path, _, _, _, at, count in index:
            code = loads(pread(fd, count, at))
            module = new_module(name)
            names = module.__dict__
            names["__file__"] = root + path
            if path.endswith("/__init__.py"):
                names["__path__"] = [(root + path)[:-12]]
            modules[name] = module
            loaded.append(name)
            parent, _, child = name.rpartition(".")
            if parent:
                modules[parent].__dict__[child] = module
            exec(code, names)
    except BaseException:
        for name in loaded:
            del modules[name]
        raise
    return True
