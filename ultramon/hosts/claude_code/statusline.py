"""What the client runs for its status line, by its path: ``python -I -S statusline.py <choices>``.

Kept tiny: the file that is run is compiled anew each time, what it imports is not.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    from ultramon.hosts.claude_code.status_line import main

    # Nothing is left to flush or close: taking the interpreter apart would cost the client time.
    os._exit(main(sys.argv))
