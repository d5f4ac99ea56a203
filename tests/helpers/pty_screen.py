"""The program on a terminal of its own, whose screen is read."""

import re
import time

import pexpect
import pyte

from helpers.program import PROGRAM, environment

PATIENCE_SECONDS = 30


class Terminal:
    """The program on a real terminal, read until its screen shows what is waited for."""

    def __init__(self, *arguments, columns=100, rows=20, program=PROGRAM, **changes):
        self.child = pexpect.spawn(
            program,
            [str(argument) for argument in arguments],
            dimensions=(rows, columns),
            env=environment(**changes),
        )
        self.screen = pyte.Screen(columns, rows)
        self.raw = b""
        self._stream = pyte.ByteStream(self.screen)

    @property
    def lines(self):
        return [line.rstrip() for line in self.screen.display if line.strip()]

    def read(self, seconds=PATIENCE_SECONDS):
        """Take what the program writes; False when it writes nothing or has ended."""
        try:
            chunk = self.child.read_nonblocking(1 << 16, seconds)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return False
        self.raw += chunk
        self._stream.feed(chunk)
        return True

    def wait_for(self, pattern):
        """Read until the screen shows it; it must stay there until then."""
        self._read_until(lambda: re.search(pattern, "\n".join(self.lines)), pattern)

    def wait_for_bytes(self, pattern):
        """Read until the program has written it, whatever has become of it on the screen."""
        self._read_until(lambda: re.search(pattern, self.raw, re.DOTALL), pattern)

    def _read_until(self, is_there, pattern):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert self.read(), (pattern, self.lines)
            assert time.monotonic() < deadline, (pattern, self.lines)

    def resize(self, rows, columns):
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def end(self):
        """Read to the end; return exit code and signal."""
        while self.read():
            pass
        self.child.close()
        return self.child.exitstatus, self.child.signalstatus
