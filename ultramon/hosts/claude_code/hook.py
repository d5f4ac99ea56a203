"""The hook of Claude Code, run by its path (``python -I -S hook.py CHOICES``) or by a launcher.

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.port import Host


def main(argv: list[str]) -> int:
    """Handle one hook call: the program, and the path of the installed choices."""
    from ultramon.hosts.hook_program import run

    return run(load_host, argv[1]) if len(argv) > 1 else 0


def load_host() -> "Host":
    """Return Claude Code, unless ultramon is switched off."""
    from ultramon.hosts.claude_code.host import CLAUDE_CODE

    return CLAUDE_CODE


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the client time.
    os._exit(main(sys.argv))
