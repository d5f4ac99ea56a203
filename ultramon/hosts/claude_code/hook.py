"""The hook of Claude Code, run by its path (``python -I -S hook.py CHOICES``) or by a launcher.

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import os
import sys


def main(argv: list[str]) -> int:
    """Handle one hook call; see `ultramon.hosts.hook_program.main`."""
    from ultramon.hosts.hook_program import main

    return main(argv)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the client time.
    os._exit(main(sys.argv))
