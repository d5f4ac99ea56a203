"""An agent on a host whose clock is wrong.

Run as ``python skewed_worker.py <url> <seconds ahead>``; each line of input sets the clock anew.
"""

import os
import sys
import time

_real_time = time.time
_ahead_seconds = 0.0


def _shifted_time():
    return _real_time() + _ahead_seconds


def set_clock(seconds):
    global _ahead_seconds
    _ahead_seconds = float(seconds)


def main(url, seconds):
    set_clock(seconds)
    time.time = _shifted_time
    # Not before: what takes the clock of the system is to take this one.
    from helpers.fault_writer import AGENT
    from ultramon import ContextConfig, create_context_monitor

    config = ContextConfig(heartbeat_interval_seconds=1.0, lost_after_seconds=600.0)
    monitor = create_context_monitor(AGENT, config, backend=url).start()
    os.write(1, b"started\n")
    for line in sys.stdin:
        set_clock(line)
        os.write(1, b"set\n")
    # One that nobody holds any more is collected, and beats no longer.
    monitor.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
