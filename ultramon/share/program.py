"""The sharing process, run by its path (``program.py STATE_DIRECTORY``)."""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 3)[0])
    os.chdir("/")
    os.umask(0o077)
    from ultramon.share.process import share

    sys.exit(share(sys.argv[1]))
