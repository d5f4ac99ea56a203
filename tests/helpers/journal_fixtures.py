"""A journal of its own for each test, and two ways to look into one."""

import sqlite3
from contextlib import closing

import pytest

from ultramon.backends.local.journal import Journal

NO_WAIT = 0.0


@pytest.fixture
def journal(tmp_path):
    with closing(Journal(str(tmp_path))) as journal:
        yield journal


def numbers(events):
    return [event["n"] for event in events]


def raw(journal):
    """Open the file as a stranger would."""
    return closing(sqlite3.connect(journal.path, timeout=0, isolation_level=None))
