"""The conformance suite of credentials: every sentence of their port, as tests.

    class TestMyCredentials(CredentialsContract):
        @pytest.fixture
        def backend(self, tmp_path):
            return MyBackend(tmp_path / "store")

`docs/backends.md` says more.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from ultramon.backends.credentials import Credential, credentials_of
from ultramon.testing.clock import START
from ultramon.testing.contract.events import THREADS, insist
from ultramon.testing.contract.states import prune, start, write
from ultramon.testing.contract.store import StoreContract

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.backends.credentials import Credentials
    from ultramon.testing.contract.store import Reopen

DAY = 86_400.0


def hash_of(name: str) -> str:
    """Return a hash as of a token of that name."""
    return sha256(name.encode()).hexdigest()


def mint(
    credentials: Credentials,
    name: str,
    agent_id: str = "scout-1",
    generation: int = 1,
    *,
    now: float = START,
    seconds: float = DAY,
) -> Credential:
    """Store a credential that is good for a day, and return what should be found of it."""
    minted = Credential(hash_of(name), agent_id, generation, "boss", now, now + seconds)
    credentials.mint(minted)
    return minted


def found(credentials: Credentials, *names: str) -> list[str]:
    """Return which of some credentials are there."""
    return [name for name in names if credentials.find(hash_of(name)) is not None]


class CredentialsContract(StoreContract):
    """Inherit in a test class and give the fixture `backend`, and `reopen` for a durable store."""

    @pytest.fixture
    def credentials(self, backend: Backend) -> Credentials:
        """Give the credentials of the backend."""
        return credentials_of(backend)

    def test_no_credential_is_there_at_first(self, credentials: Credentials) -> None:
        """Finding, renewing and revoking find nothing and raise nothing."""
        assert credentials.find(hash_of("first")) is None
        assert not credentials.renew(hash_of("first"), START + DAY)
        assert credentials.revoke("scout-1") == 0

    def test_a_credential_comes_back_as_it_was_stored(self, credentials: Credentials) -> None:
        """By its hash and by no other, whether an agent or a person asked for it."""
        expected = mint(credentials, "first")
        assert credentials.find(expected.token_hash) == expected
        assert credentials.find(hash_of("second")) is None
        by_person = Credential(hash_of("second"), "scout-1", 1, None, START + 0.25, START + DAY)
        credentials.mint(by_person)
        assert credentials.find(hash_of("second")) == by_person

    def test_an_agent_may_have_several(self, credentials: Credentials) -> None:
        """A new one stands beside those of the same generation, and those of other agents."""
        mint(credentials, "first")
        mint(credentials, "second")
        mint(credentials, "other", "scout-2")
        assert found(credentials, "first", "second", "other") == ["first", "second", "other"]

    def test_the_expired_are_deleted_by_the_next(self, credentials: Credentials) -> None:
        """Of every agent, from the second of their expiry on; until then they are found."""
        mint(credentials, "first", seconds=10)
        mint(credentials, "second", "scout-2", seconds=11)
        assert found(credentials, "first", "second") == ["first", "second"]
        mint(credentials, "third", now=START + 10)
        assert found(credentials, "first", "second", "third") == ["second", "third"]

    def test_those_of_the_past_are_deleted_by_the_next(self, credentials: Credentials) -> None:
        """Only of the same agent: others count their generations for themselves."""
        mint(credentials, "first", generation=1)
        mint(credentials, "other", "scout-2", 1)
        mint(credentials, "third", generation=3)
        assert found(credentials, "first", "other", "third") == ["other", "third"]
        mint(credentials, "late", generation=2)
        assert found(credentials, "third", "late") == ["third", "late"]

    def test_a_rotation_leaves_one(self, credentials: Credentials) -> None:
        """The new one of that agent, whatever the generations; other agents keep theirs."""
        for name, generation in (("first", 1), ("second", 2), ("third", 3)):
            mint(credentials, name, generation=generation)
        mint(credentials, "late", generation=2)
        mint(credentials, "other", "scout-2")
        new = Credential(hash_of("new"), "scout-1", 3, None, START + 1, START + DAY)
        assert credentials.rotate(new) == 2
        assert credentials.find(new.token_hash) == new
        assert found(credentials, "first", "second", "third", "late", "other") == ["other"]
        assert not credentials.renew(hash_of("third"), START + 2 * DAY)
        assert credentials.rotate(new._replace(token_hash=hash_of("newer"))) == 1
        assert found(credentials, "new", "newer") == ["newer"]

    def test_a_rotation_needs_no_credential_before_it(self, credentials: Credentials) -> None:
        """Then it replaces none."""
        new = Credential(hash_of("new"), "scout-1", 1, None, START, START + DAY)
        assert credentials.rotate(new) == 0
        assert credentials.find(new.token_hash) == new

    def test_a_renewed_one_lives_longer(self, credentials: Credentials) -> None:
        """Never shorter, and nothing else of it changes; the others do not."""
        first, second = mint(credentials, "first"), mint(credentials, "second")
        assert credentials.renew(first.token_hash, START + 2 * DAY)
        assert credentials.renew(first.token_hash, START + DAY)
        assert credentials.find(first.token_hash) == first._replace(expires_at=START + 2 * DAY)
        assert credentials.find(second.token_hash) == second

    def test_the_revoked_are_gone(self, credentials: Credentials) -> None:
        """All of one agent, in every generation, and no renewal brings one back."""
        for name, generation in (("third", 3), ("second", 2), ("first", 1)):
            mint(credentials, name, generation=generation)
        mint(credentials, "other", "scout-2")
        assert credentials.revoke("scout-1") == 3
        assert not credentials.renew(hash_of("first"), START + 2 * DAY)
        assert found(credentials, "first", "second", "third", "other") == ["other"]
        assert credentials.revoke("scout-1") == 0

    def test_credentials_survive_reopening(self, backend: Backend, reopen: Reopen) -> None:
        """Another process finds them, and what it revokes is gone for all."""
        if reopen is None:
            pytest.skip("not durable")
        expected = mint(credentials_of(backend), "first")
        credentials_of(backend).renew(expected.token_hash, START + 2 * DAY)
        backend.close()
        other = reopen(backend)
        again = credentials_of(other)
        assert again.find(expected.token_hash) == expected._replace(expires_at=START + 2 * DAY)
        assert again.revoke("scout-1") == 1
        assert found(credentials_of(backend), "first") == []
        other.close()

    def test_a_pruned_agent_leaves_no_credentials(
        self, backend: Backend, credentials: Credentials
    ) -> None:
        """No process holds a token of the next agent of its name."""
        record = start(backend)
        mint(credentials, "first")
        mint(credentials, "other", "scout-2")
        write(backend, record, active=False, last_activity=START - 1)
        prune(backend, START)
        assert found(credentials, "first", "other") == ["other"]

    def test_many_may_mint_at_once(self, credentials: Credentials) -> None:
        """None of them is lost."""
        names = [f"token {number}" for number in range(3 * THREADS)]
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda name: insist(lambda: mint(credentials, name)), names))
        assert found(credentials, *names) == names
