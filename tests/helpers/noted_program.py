"""A program of a user's that notes how it was called, one line of JSON for each run."""

from __future__ import annotations

import json
import sys

SOURCE = """#!{python}
import json, os, sys
line = json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}) + "\\n"
file = os.open({path!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(file, line.encode())
"""


class NotedProgram:
    """The program and its notes.

    Args:
        directory: Where both are.
    """

    def __init__(self, directory):
        self.path = directory / "notify"
        self._notes = directory / "notes"
        self.path.write_text(SOURCE.format(python=sys.executable, path=str(self._notes)))
        self.path.chmod(0o700)

    @property
    def runs(self):
        """How it was called, in order."""
        if not self._notes.exists():
            return []
        return [json.loads(line) for line in self._notes.read_text().splitlines()]

    @property
    def calls(self):
        """Its arguments, in order."""
        return [one["argv"] for one in self.runs]
