"""The status line of Claude Code, run by its path (``python -I -S statusline.py CHOICES``).

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import os
import sys


def main(argv: list[str]) -> int:
    """Show one status line; see `ultramon.hosts.claude_code.status_line.main`."""
    from ultramon.hosts.claude_code.status_line import main

    return main(argv)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the client time.
    os._exit(main(sys.argv))
