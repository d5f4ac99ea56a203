"""The hook of Codex, run by its path (``python -I -S hook.py CHOICES``) or by a launcher.

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.port import Host


def main(argv: list[str]) -> int:
    """Handle one hook call: the program, then the path of the installed choices."""
    if len(argv) < 2:
        return 0
    import gc

    gc.disable()  # what a call makes is gone with it
    from ultramon.hosts.hook_program import run

    return run(load_host, argv[1])


def load_host() -> "Host":
    """Return Codex, unless ultramon is switched off."""
    from ultramon.hosts.codex.host import CODEX

    return CODEX


if __name__ == "__main__":
    if sys.platform == "win32":
        from nt import _exit
    else:
        from posix import _exit  # `os` takes a bare Python a seventh of its time

    sys.path.insert(0, __file__.rsplit("\\" if sys.platform == "win32" else "/", 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the client time.
    _exit(main(sys.argv))
