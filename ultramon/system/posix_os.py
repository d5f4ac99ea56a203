"""What a hook uses of `os`, the same as there; any other name loads the real one.

Never imported but by `ultramon.system.lean_os`. `environ` is a plain copy: setting a variable in it
reaches no other program.
"""

import sys
from posix import *  # noqa: F403
from posix import _exit
from posix import environ as _environ

from ultramon.system import posix_paths as path

__all__ = ["_exit", "curdir", "environ", "path", "sep"]

sep = "/"
curdir = "."
_ENCODING = sys.getfilesystemencoding()
environ: dict[str, str] = {  # type: ignore[no-redef]
    str(name, _ENCODING, "surrogateescape"): str(value, _ENCODING, "surrogateescape")
    for name, value in _environ.items()
}


def __getattr__(name: str) -> object:
    import os

    return getattr(os, name)
