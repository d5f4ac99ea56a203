"""Registering while the agent saves: in any order, no registration misses a crossing."""

import pytest

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import Journal
from ultramon.notices.registration import StoredRegistration
from ultramon.system import compact_json
from ultramon.testing.clock import START
from ultramon.testing.contract.notices import read
from ultramon.testing.contract.states import start


class Interrupted(Journal):
    """A journal that is interrupted by another writer at its next change of a mark."""

    __slots__ = ("meanwhile",)

    def write_mark(self, agent_id, mark):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().write_mark(agent_id, mark)


@pytest.fixture
def other(tmp_path):
    backend = LocalBackend(str(tmp_path / "store"))
    yield backend
    backend.close()


@pytest.fixture
def saving(tmp_path):
    backend = LocalBackend(str(tmp_path / "store"))
    backend._journal = Interrupted(backend.directory.path)
    backend._journal.meanwhile = None
    yield backend
    backend.close()


def register(backend, ladder=None):
    ladder_json = None if ladder is None else compact_json.dumps(ladder)
    backend.registry.register(
        StoredRegistration("scout-1", "boss", "explicit", ladder_json, "boss", START)
    )


def told(backend):
    notices = backend.queue.claim("boss", now=START, limit=50)
    for notice in notices:
        assert backend.queue.acknowledge(notice.id, notice.claim_token)
    return [notice.facts["level"] for notice in notices]


def test_a_registration_made_while_a_mark_is_taken_away_misses_nothing(saving, other):
    """A save finds an old mark and no registration, and takes it away a moment too late."""
    record = start(saving, parent_id="boss")
    other._journal.write_mark("scout-1", (None, None))
    saving._journal.meanwhile = lambda: register(other)
    record = read(saving, record, 0.9)
    assert saving._journal.meanwhile is None
    assert told(other) == []
    read(saving, record, 0.9)
    assert told(other) == ["critical"]


def test_a_registration_made_while_a_mark_is_written_misses_nothing(saving, other):
    """A save notes what it announced, after an agent registered anew and wants it again."""
    record = start(saving, parent_id="boss")
    register(other)
    saving._journal.meanwhile = lambda: register(other)
    record = read(saving, record, 0.9)
    assert saving._journal.meanwhile is None
    read(saving, record, 0.9)
    assert told(other) == ["critical"]
