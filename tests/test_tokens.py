"""Tokens: who is believed, for how long, and who may make and revoke them."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from ultramon import create_context_monitor
from ultramon.backends.credentials import Credential, credentials_of
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import (
    AgentNotFoundError,
    ConfigurationError,
    InvalidAgentIdError,
    NotPermittedError,
    RegistrationError,
    StateError,
)
from ultramon.testing import FakeClock
from ultramon.testing.clock import START
from ultramon.testing.contract.states import prune, start, write
from ultramon.tokens import TOKEN_SECONDS, mint_token, revoke_tokens, rotate_token, verify_token

TOKEN = "um_" + "A" * 43


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["memory", "local"])
def backend(request, tmp_path):
    if request.param == "memory":
        yield MemoryBackend()
    else:
        with closing(LocalBackend(str(tmp_path / "state"))) as backend:
            yield backend


@pytest.fixture
def local(tmp_path):
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        yield backend


def mint(backend, clock, agent_id="scout-1", requester=None):
    return mint_token(agent_id, requester, backend=backend, clock=clock)


def test_a_token_proves_for_whom_its_bearer_acts(backend, clock):
    """It is text that fits in any header, and no two are alike."""
    start(backend)
    start(backend, "scout-2")
    tokens = [mint(backend, clock, name) for name in ("scout-1", "scout-2", "scout-1")]
    assert len(set(tokens)) == 3
    assert all(re.fullmatch(r"um_[A-Za-z0-9_-]{43}", token) for token in tokens)
    owners = [verify_token(token, backend=backend, clock=clock) for token in tokens]
    assert owners == ["scout-1", "scout-2", "scout-1"]


def test_the_store_knows_no_token(local, clock):
    """Who copies it, or reads a backup, holds no token: neither bytes nor a part of it."""
    start(local)
    token = mint(local, clock)
    local.close()
    kept = b"".join(path.read_bytes() for path in Path(local.directory.path).rglob("*.*"))
    assert b"scout-1" in kept
    assert token[3:15].encode() not in kept


MALFORMED = {
    "empty": "",
    "blank": " ",
    "prefix alone": "um_",
    "one character short": TOKEN[:-1],
    "one character long": TOKEN + "A",
    "a line end behind": TOKEN + "\n",
    "blanks around": f" {TOKEN} ",
    "another prefix": "xx_" + "A" * 43,
    "upper case": "UM_" + "A" * 43,
    "a megabyte": "um_" + "A" * (1 << 20),
    "NUL inside": TOKEN[:-1] + "\0",
    "not ASCII": TOKEN[:-1] + "é",
    "not ASCII behind": TOKEN + "é",
    "a digit that is not ASCII": TOKEN[:-1] + "٣",
    "lone surrogate": TOKEN[:-1] + "\ud800",
    "SQL": "um_' OR 1=1 --" + "A" * 32,
    "of another alphabet": "um_" + "+/" * 21 + "=",
    "well-formed and unknown": TOKEN,
    "bytes": TOKEN.encode(),
    "nothing": None,
    "a number": 7,
    "a list": [TOKEN],
}


@pytest.mark.parametrize("presented", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_token_is_nobody(backend, clock, presented):
    """Whatever is presented, the answer is None and no error."""
    start(backend)
    mint(backend, clock)
    assert verify_token(presented, backend=backend, clock=clock) is None


@pytest.mark.parametrize("change", [str.swapcase, lambda body: body[::-1], lambda b: b[1:] + "A"])
def test_what_is_almost_a_token_is_nobody(backend, clock, change):
    """All of it counts."""
    start(backend)
    token = mint(backend, clock)
    changed = "um_" + change(token[3:])
    assert changed != token
    assert verify_token(changed, backend=backend, clock=clock) is None


def test_where_nothing_was_ever_stored_nobody_is_known(tmp_path, clock):
    """And looking makes no store."""
    with closing(LocalBackend(str(tmp_path / "state"))) as backend:
        assert verify_token(TOKEN, backend=backend, clock=clock) is None
    assert not (tmp_path / "state").exists()


def test_a_takeover_ends_all_tokens(backend, clock):
    """The former owner's clients are refused from the moment of the second start on."""
    first = start(backend)
    before = [mint(backend, clock) for _ in range(2)]
    second = start(backend, takeover=True)
    assert (first.generation, second.generation) == (1, 2)
    assert {verify_token(token, backend=backend, clock=clock) for token in before} == {None}
    after = mint(backend, clock)
    owners = [verify_token(token, backend=backend, clock=clock) for token in (*before, after)]
    assert owners == [None, None, "scout-1"]


def test_the_end_of_an_agent_ends_its_tokens(backend, clock):
    """Also where the agent continues later: that is another life."""
    record = start(backend)
    token = mint(backend, clock)
    write(backend, record, active=False, outcome="completed")
    assert verify_token(token, backend=backend, clock=clock) is None
    with pytest.raises(RegistrationError) as caught:
        mint(backend, clock)
    assert str(caught.value) == (
        "agent scout-1 cannot be given a token: it has ended and makes no more calls; make one "
        "for its successor"
    )
    start(backend)
    assert verify_token(token, backend=backend, clock=clock) is None


def test_a_monitor_that_stops_ends_its_tokens(backend):
    """With the agent of the SDK as with any other."""
    clock = FakeClock()
    with create_context_monitor("scout-1", backend=backend, clock=clock):
        token = mint(backend, clock)
        assert verify_token(token, backend=backend, clock=clock) == "scout-1"
    assert verify_token(token, backend=backend, clock=clock) is None


def test_a_pruned_agent_leaves_no_tokens(backend, clock):
    """The next one of its name is somebody else, though it has the same generation."""
    record = start(backend)
    token = mint(backend, clock)
    write(backend, record, active=False, last_activity=START - 1)
    prune(backend, START)
    assert verify_token(token, backend=backend, clock=clock) is None
    assert start(backend).generation == 1
    assert verify_token(token, backend=backend, clock=clock) is None


def test_a_token_of_an_earlier_life_is_nobodys(local, clock):
    """A state that was lost begins again with generation 1: its start tells the lives apart."""
    start(local)
    token = mint(local, clock)
    os.unlink(local.directory.file("scout-1"))
    assert verify_token(token, backend=local, clock=clock) is None
    clock.advance(60)
    assert start(local, now=clock.now()).generation == 1
    assert verify_token(token, backend=local, clock=clock) is None
    assert verify_token(mint(local, clock), backend=local, clock=clock) == "scout-1"


def test_a_clock_that_was_set_back_makes_no_token_worthless(backend, clock):
    """A token made before its agent began, by the clock, is good all the same."""
    start(backend)
    clock.jump(-3_600)
    token = mint(backend, clock)
    assert verify_token(token, backend=backend, clock=clock) == "scout-1"


@pytest.mark.parametrize(
    ("idle_seconds", "owner"),
    [(0, "scout-1"), (TOKEN_SECONDS - 1, "scout-1"), (TOKEN_SECONDS, None), (1e9, None)],
)
def test_an_unused_token_expires(backend, clock, idle_seconds, owner):
    """After a day to the second."""
    start(backend)
    token = mint(backend, clock)
    clock.advance(idle_seconds)
    assert verify_token(token, backend=backend, clock=clock) == owner


def test_a_used_token_lives_on(backend, clock):
    """For as long as its agent, however long that is; left alone for a day it ends."""
    start(backend)
    token = mint(backend, clock)
    for _ in range(20):
        clock.advance(0.9 * TOKEN_SECONDS)
        assert verify_token(token, backend=backend, clock=clock) == "scout-1"
    clock.advance(TOKEN_SECONDS)
    assert verify_token(token, backend=backend, clock=clock) is None


def test_a_token_is_renewed_at_most_twice_in_its_time(local, clock):
    """However often it is used: a request that only reads shall not wait for a disk."""
    start(local)
    token = mint(local, clock)
    marks = [local.change_mark()]
    for _ in range(4 * 24):
        clock.advance(3_600)
        for _ in range(3):
            assert verify_token(token, backend=local, clock=clock) == "scout-1"
        marks.append(local.change_mark())
    renewals = [number for number in range(1, len(marks)) if marks[number] != marks[number - 1]]
    assert renewals == [12, 24, 36, 48, 60, 72, 84, 96]


def test_a_renewal_that_is_refused_costs_nothing(local, clock, caplog):
    """While another process writes, the token stays good and the next use tries again."""
    start(local)
    token = mint(local, clock)
    clock.advance(0.6 * TOKEN_SECONDS)
    expires_at = START + TOKEN_SECONDS
    busy = sqlite3.connect(Path(local.directory.path) / JOURNAL, isolation_level=None)
    with closing(busy):
        busy.execute("BEGIN IMMEDIATE")
        assert verify_token(token, backend=local, clock=clock) == "scout-1"
        assert _expiries(busy) == [expires_at]
        busy.execute("ROLLBACK")
        (record,) = caplog.records
        assert "agent scout-1: its token is not renewed for now" in record.getMessage()
        assert token[3:] not in record.getMessage()
        assert verify_token(token, backend=local, clock=clock) == "scout-1"
        assert _expiries(busy) == [clock.now() + TOKEN_SECONDS]


class RevokedMeanwhile(MemoryBackend):
    """Somebody revokes an agent's tokens at the moment when its state is looked at."""

    def load(self, agent_id):
        found = super().load(agent_id)
        self.credentials.revoke(agent_id)
        return found


def test_a_renewal_brings_no_revoked_token_back(clock):
    """A renewal finds that there is nothing left to renew."""
    backend = RevokedMeanwhile()
    start(backend)
    token_hash = sha256(TOKEN.encode()).hexdigest()
    backend.credentials.mint(Credential(token_hash, "scout-1", 1, None, START, START + 10))
    assert verify_token(TOKEN, backend=backend, clock=clock) is None


def _expiries(connection):
    return [row[0] for row in connection.execute("SELECT expires_at FROM credentials")]


def test_revoked_tokens_are_worthless(backend, clock):
    """All of one agent at once; others keep theirs, and a new one can be made."""
    start(backend)
    start(backend, "scout-2")
    tokens = [mint(backend, clock) for _ in range(3)]
    other = mint(backend, clock, "scout-2")
    assert revoke_tokens("scout-1", backend=backend) == 3
    assert {verify_token(token, backend=backend, clock=clock) for token in tokens} == {None}
    assert verify_token(other, backend=backend, clock=clock) == "scout-2"
    assert revoke_tokens("scout-1", backend=backend) == 0
    assert verify_token(mint(backend, clock), backend=backend, clock=clock) == "scout-1"


def test_a_rotation_leaves_one_token(backend, clock):
    """The new one; others of other agents stay, also those that the agent made for a child."""
    start(backend)
    start(backend, "child", parent_id="scout-1")
    tokens = [mint(backend, clock) for _ in range(3)]
    childs = mint(backend, clock, "child", "scout-1")
    new = rotate_token("scout-1", backend=backend, clock=clock)
    assert {verify_token(token, backend=backend, clock=clock) for token in tokens} == {None}
    assert verify_token(new, backend=backend, clock=clock) == "scout-1"
    assert verify_token(childs, backend=backend, clock=clock) == "child"
    assert revoke_tokens("scout-1", backend=backend) == 1


def test_an_ended_agent_gets_no_token_by_a_rotation(backend, clock):
    """Its tokens are void already."""
    record = start(backend)
    write(backend, record, active=False, outcome="failed")
    with pytest.raises(RegistrationError, match="has ended"):
        rotate_token("scout-1", backend=backend, clock=clock)


def test_an_ended_agents_tokens_can_be_revoked(backend, clock):
    """Who cleans up need not come before the end."""
    record = start(backend)
    mint(backend, clock)
    write(backend, record, active=False, outcome="failed")
    assert revoke_tokens("scout-1", backend=backend) == 1


RIGHTS = {
    "a person": (None, "child", True),
    "itself": ("child", "child", True),
    "its parent": ("parent", "child", True),
    "its grandparent": ("grandparent", "child", False),
    "its child": ("child", "parent", False),
    "its sibling": ("sibling", "child", False),
    "a stranger": ("stranger", "child", False),
    "somebody unknown": ("nobody", "child", False),
    "an empty name": ("", "child", False),
}


@pytest.mark.parametrize(("requester", "agent_id", "may"), RIGHTS.values(), ids=RIGHTS.keys())
@pytest.mark.parametrize(
    ("verb", "what"),
    [
        (mint_token, "make tokens of"),
        (rotate_token, "make tokens of"),
        (revoke_tokens, "revoke tokens of"),
    ],
)
def test_an_agent_and_its_direct_parent_decide_about_its_tokens(
    backend, clock, requester, agent_id, may, verb, what
):
    """No other agent does, except a person; a refusal changes nothing."""
    for name, parent in (
        ("grandparent", None),
        ("parent", "grandparent"),
        ("child", "parent"),
        ("sibling", "parent"),
        ("stranger", None),
    ):
        start(backend, name, parent_id=parent)
    token = mint(backend, clock, agent_id)
    if may:
        assert verb(agent_id, requester, backend=backend)
        return
    with pytest.raises(NotPermittedError) as caught:
        verb(agent_id, requester, backend=backend)
    assert str(caught.value) == (
        f"agent {requester} may not {what} agent {agent_id}: only that agent and its direct parent "
        "may"
    )
    assert verify_token(token, backend=backend, clock=clock) == agent_id
    assert revoke_tokens(agent_id, backend=backend) == 1


@pytest.mark.parametrize("verb", [mint_token, rotate_token, revoke_tokens])
def test_an_unknown_agent_has_no_tokens(backend, verb):
    """Neither does one that cannot be."""
    with pytest.raises(AgentNotFoundError):
        verb("nobody", backend=backend)
    with pytest.raises(InvalidAgentIdError):
        verb("../x", backend=backend)


def test_a_store_without_credentials_is_named(clock):
    """The error says what such a backend lacks."""

    class Bare:
        pass

    with pytest.raises(ConfigurationError, match="one that keeps credentials"):
        credentials_of(Bare())


def test_a_state_that_cannot_be_read_is_no_verdict_about_a_token(local, clock):
    """The bearer gets a retry, not the answer that its token is invalid."""
    start(local)
    token = mint(local, clock)
    Path(local.directory.file("scout-1")).write_bytes(b"torn")
    with pytest.raises(StateError) as caught:
        verify_token(token, backend=local, clock=clock)
    assert token[3:] not in str(caught.value)


def test_two_processes_share_tokens(local, clock):
    """What one makes the other knows, and what one revokes is worthless for the other."""
    start(local)
    token = mint(local, clock)
    with closing(LocalBackend(local.directory.path)) as other:
        assert verify_token(token, backend=other, clock=clock) == "scout-1"
        assert revoke_tokens("scout-1", backend=other) == 1
    assert verify_token(token, backend=local, clock=clock) is None
