"""The hook of Qwen Code, run by its path (``python -I -S hook.py CHOICES``) or by a launcher.

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ultramon.hosts.port import Host


def load_host() -> "Host":
    """Return Qwen Code, unless ultramon is switched off."""
    from ultramon.hosts.qwen.host import QWEN

    return QWEN


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("\\" if sys.platform == "win32" else "/", 4)[0])
    from ultramon.hosts.hook_program import run_script

    run_script(sys.argv, load_host)
