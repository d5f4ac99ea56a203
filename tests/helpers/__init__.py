"""Programs, servers, sessions and obstacles that several test files share."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
DATA = TESTS / "data"
IMPORT_PATH = os.pathsep.join(map(str, (ROOT, TESTS)))
"""`PYTHONPATH` of a program in this room that a test starts by its path."""
