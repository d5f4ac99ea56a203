"""The resident of Claude Code, run by its path (``resident.py STATE_DIRECTORY PID``)."""

import os
import sys

_MAX_INHERITED = 4_096


def main(argv: list[str]) -> int:
    """Answer until nobody needs it: the program, the state directory, a session's process."""
    from ultramon.hosts.claude_code.host import CLAUDE_CODE
    from ultramon.hosts.claude_code.status_line_answers import StatusLineAnswers
    from ultramon.hosts.resident.hook_answers import HookAnswers
    from ultramon.hosts.resident.service import Resident
    from ultramon.hosts.resident.turns import Turns

    # What the client had open when it ran the hook must not stay open here.
    os.closerange(3, _MAX_INHERITED)
    directory, session_pid, turns = argv[1], int(argv[2]), Turns()
    hooks = HookAnswers(CLAUDE_CODE, directory, turns)
    programs = {
        "hook": hooks.answer,
        "statusline": StatusLineAnswers(directory, turns).answer,
    }
    resident = Resident(CLAUDE_CODE, directory, programs, lambda: hooks.at_once_count)
    return resident.run(session_pid)


if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    os._exit(main(sys.argv))
