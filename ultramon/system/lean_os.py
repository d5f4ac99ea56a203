"""`os` for the path of a hook: importing the real one takes a bare Python a seventh of its time.

Where `os` is loaded, which is everywhere but in a hook's own process, it is that one.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING or "os" in sys.modules or "posix" not in sys.builtin_module_names:
    import os
else:
    from ultramon.system import posix_os as os

__all__ = ["os"]
