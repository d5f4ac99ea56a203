"""The status line of Copilot CLI, run by its path (``python -I -S statusline.py CHOICES``).

Kept tiny: the file that is run is compiled anew each time, what it imports is not. A third argument
says that a resident may answer, as in `ultramon.hosts.copilot.hook`.
"""

import sys


def main(argv: list[str]) -> int:
    """Show one status line; see `ultramon.hosts.copilot.status_line.main`."""
    unanswered = None
    if len(argv) > 2:
        from ultramon.hosts.copilot.hook import FORWARDED
        from ultramon.hosts.resident.forwarder import forward

        variables = (*FORWARDED, "COLUMNS")
        unanswered = forward("copilot statusline", argv[1], variables)
        if unanswered is None:
            return 0
    import gc

    # What a call makes is gone with it; to look for circles took a millisecond of seventeen.
    gc.disable()
    from ultramon.hosts.copilot.status_line import main

    return main(argv, unanswered=unanswered)


if __name__ == "__main__":
    if sys.platform == "win32":
        from nt import _exit
    else:
        from posix import _exit  # `os` takes a bare Python a seventh of its time

    sys.path.insert(0, __file__.rsplit("\\" if sys.platform == "win32" else "/", 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the host time.
    _exit(main(sys.argv))
