"""The hook of Copilot CLI, run by its path (``python -I -S hook.py CHOICES``) or by a launcher.

Kept tiny: the file that is run is compiled anew each time, what it imports is not. A third argument
says that a resident may answer; then nothing is imported here that its forwarder does not need.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.port import Host

FORWARDED = ("COPILOT_HOME", "COPILOT_PROJECT_DIR")
"""The environment variables of Copilot CLI that a resident is sent: all that ultramon reads."""


def main(argv: list[str]) -> int:
    """Handle one hook call: the program, the path of the installed choices, maybe ``resident``."""
    unanswered = None
    if len(argv) > 2:
        from ultramon.hosts.resident.forwarder import forward

        unanswered = forward("copilot hook", argv[1], FORWARDED)
        if unanswered is None:
            return 0
    from ultramon.hosts.hook_program import run_script

    return run_script(argv, load_host, unanswered)


def load_host() -> "Host":
    """Return Copilot CLI, unless ultramon is switched off."""
    from ultramon.hosts.copilot.host import COPILOT

    return COPILOT


if __name__ == "__main__":
    if sys.platform == "win32":
        from nt import _exit
    else:
        from posix import _exit  # `os` takes a bare Python a seventh of its time

    sys.path.insert(0, __file__.rsplit("\\" if sys.platform == "win32" else "/", 4)[0])
    # Nothing is left to flush or close: taking the interpreter apart would cost the host time.
    _exit(main(sys.argv))
