"""The programs that look at levels every few seconds, run as processes of their own."""

import signal
import subprocess
from contextlib import ExitStack, contextmanager

from helpers.program import PROGRAM

COMMANDS = (
    ("watch", "--format", "json"),
    ("watch", "--format", "table"),
    ("web", "--port", "0"),
    ("serve", "--port", "0"),
)


@contextmanager
def looking_programs(environ):
    """Start two watches, a page and a server; end them as a signal does."""
    with ExitStack() as stack:
        running = []
        for command in COMMANDS:
            process = stack.enter_context(
                subprocess.Popen(
                    [PROGRAM, *command],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environ,
                )
            )
            stack.callback(process.kill)
            running.append(process)
        yield running
        for process in running:
            process.send_signal(signal.SIGTERM)
            process.wait(30)
