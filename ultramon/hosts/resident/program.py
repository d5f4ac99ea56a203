"""The resident, run by its path (``program.py STATE_DIRECTORY HOST PID``)."""

import os
import sys

_MAX_INHERITED = 4_096


def main(argv: list[str]) -> int:
    """Answer for a state directory until no process needs it; a host and its process are named."""
    from ultramon.hosts.resident.served_hosts import ServedHosts
    from ultramon.hosts.resident.service import Resident

    # What the host had open when it ran the hook must not stay open here.
    os.closerange(3, _MAX_INHERITED)
    directory, host_name, session_pid = argv[1], argv[2], int(argv[3])
    return Resident(directory, ServedHosts(directory, host_name)).run(session_pid)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    os._exit(main(sys.argv))
