"""Who is calling: tokens that prove it, and the secrets of a server.

A token is 32 random bytes as text. The store knows only its hash, so that a copy of the store
opens nothing; nothing here logs a token or names one in an error.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from ultramon.backends.credentials import credentials_of
from ultramon.errors import (
    AgentNotFoundError,
    ConfigurationError,
    NotPermittedError,
    RegistrationError,
    StateCorruptError,
    StateDirectoryError,
    StateWriteError,
)
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.files import (
    delete_quietly,
    make_private_directory,
    open_private,
    read_private_file,
    refused,
    replace_file,
)
from ultramon.system.ids import check_agent_id
from ultramon.system.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.backends.credentials import Credential
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.tokens")

TOKEN_SECONDS = 86_400.0
"""How long a token is good after it was made or renewed; its use renews it."""
TOKEN_FILE = "ULTRAMON_TOKEN_FILE"
"""Names the file in which a client finds its token."""
ADMIN_TOKEN = "admin.token"
"""The file in the state directory whose content may do everything."""
HOOK_SECRET = "hook.secret"
"""The file in the state directory whose content may call the hook routes."""

_RANDOM_BYTES = 32
_TOKEN = re.compile(r"um_[A-Za-z0-9_-]{43}", re.ASCII)
_SECRET = re.compile(r"[!-~]{32,512}", re.ASCII)
_MAX_SECRET_FILE_BYTES = 4096
_LOCK_TIMEOUT_SECONDS = 5.0


def mint_token(
    agent_id: str,
    requester: str | None = None,
    *,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> str:
    """Make a token that proves to a server that its bearer acts for an agent.

    It is good until the agent ends or another process takes it over, and for `TOKEN_SECONDS` after
    its last use. Tokens made earlier stay good: an agent may have several clients.

    Args:
        agent_id: Whose token.
        requester: Who asks: the agent itself or its direct parent; None = a person who may do
            everything.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Returns:
        The token: 46 characters of ``A-Z a-z 0-9 _ -``. It cannot be had a second time.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        RegistrationError: The agent has ended.
        StateError: The store refused; no token was made.
    """
    store = _open(backend)
    record = _permitted(store, agent_id, requester, "make tokens of")
    if not record.active:
        raise RegistrationError(agent_id, "ended")
    token = f"um_{secrets.token_urlsafe(_RANDOM_BYTES)}"
    # Where the clock was set back since the agent began, its token is still one of this life.
    now = max((clock or SYSTEM_CLOCK).now(), record.started_at)
    credentials_of(store).mint(
        _hash(token),
        agent_id,
        record.generation,
        minted_by=requester,
        now=now,
        expires_at=now + TOKEN_SECONDS,
    )
    return token


def verify_token(token: str, *, backend: Backend, clock: Clock | None = None) -> str | None:
    """Return for which agent the bearer of a token acts, None when for nobody.

    Nobody is told why a token is not good: it is malformed, unknown, expired or revoked, the agent
    has ended, was deleted, or was taken over since.

    Args:
        token: As it was presented; anything.
        backend: Where the agents are.
        clock: For tests; None = the system's.

    Raises:
        StateError: The store or the agent's state cannot be read: that says nothing about the
            token.
    """
    stored = bearer_of(token, backend=backend, clock=clock)
    return None if stored is None else stored.agent_id


def bearer_of(token: str, *, backend: Backend, clock: Clock | None = None) -> StoredAgent | None:
    """Return the agent of a token with the state that proved it; see `verify_token`."""
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        return None
    # Found by its hash: how long that takes tells nothing that leads to a token.
    credential = credentials_of(backend).find(_hash(token))
    now = (clock or SYSTEM_CLOCK).now()
    if credential is None or credential.expires_at <= now:
        return None
    try:
        stored = backend.load(credential.agent_id)
    except AgentNotFoundError:
        return None
    if stored.record is None or not _is_of(credential, stored.record):
        return None
    return stored if _renewed(credential, backend, now) else None


def _is_of(credential: Credential, record: StateRecord) -> bool:
    """Return whether a token is of an agent's present life."""
    # Generations begin anew where a state was deleted: then the start tells the lives apart.
    return (
        record.active
        and record.generation == credential.generation
        and record.started_at <= credential.minted_at
    )


def _renewed(credential: Credential, backend: Backend, now: float) -> bool:
    """Renew a token in the second half of its life; False when it was revoked meanwhile."""
    if credential.expires_at - now > TOKEN_SECONDS / 2:
        return True
    try:
        return credentials_of(backend).renew(credential.token_hash, now + TOKEN_SECONDS)
    except StateWriteError as error:
        _log.warning(
            "agent %s: its token is not renewed for now, the next use tries again: %s",
            credential.agent_id,
            error,
        )
        return True


def revoke_tokens(
    agent_id: str, requester: str | None = None, *, backend: Backend | str | None = None
) -> int:
    """Make every token of an agent worthless, at once and wherever it is.

    Args:
        agent_id: Whose tokens.
        requester: Who asks, as for `mint_token`.
        backend: A backend or its URL; None = see `open_backend`.

    Returns:
        How many there were.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        StateError: The store refused; nothing changed.
    """
    store = _open(backend)
    _permitted(store, agent_id, requester, "revoke tokens of")
    return credentials_of(store).revoke(agent_id)


def read_token(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the token in the file that ``ULTRAMON_TOKEN_FILE`` names; None when it is not set.

    Raises:
        ConfigurationError: The file is not there.
        StateDirectoryError: Others could have read or written it, or it is a symlink.
        StateCorruptError: It holds no token.
    """
    named = environ.get(TOKEN_FILE)
    if not named:
        return None
    token = _read_secret(os.path.expanduser(named), "`ultramon token mint` writes another")
    if token is None:
        raise ConfigurationError(TOKEN_FILE, named, "a file that is there", "environment")
    return token


def write_token(path: str | os.PathLike[str], token: str) -> None:
    """Write a token to a file that only this user can read, replacing it as a whole.

    Raises:
        StateWriteError: The file system refused; what was there before is intact.
    """
    replace_file(os.fspath(path), f"{token}\n".encode("ascii"))


def server_secret(state_directory: str, name: str) -> str:
    """Return a secret of the server in a state directory, made when it is first asked for.

    Processes that ask at once get the same.

    Args:
        state_directory: Made with mode 0700 where it is missing.
        name: `ADMIN_TOKEN` or `HOOK_SECRET`, the name of the file.

    Raises:
        StateDirectoryError: The directory is not safe to use, or the file is not: others could
            have read or written it, or it is a symlink.
        StateCorruptError: The file holds no secret.
        StateWriteError: The file system refused.
    """
    make_private_directory(state_directory)
    path = secret_path(state_directory, name)
    advice = "delete it, and the next start of the server makes another"
    secret = _read_secret(path, advice)
    if secret is not None:
        return secret
    lock = f"{path}.lock"
    with Lock(lock, _open_lock, _LOCK_TIMEOUT_SECONDS):
        secret = _read_secret(path, advice)
        if secret is None:
            secret = secrets.token_urlsafe(_RANDOM_BYTES)
            write_token(path, secret)
        delete_quietly(lock)
    return secret


def secret_path(state_directory: str, name: str) -> str:
    """Return where a secret of the server is, or will be."""
    return os.path.join(os.path.abspath(state_directory), name)


def _read_secret(path: str, advice: str) -> str | None:
    """Return what a file holds, None when there is no such file."""
    try:
        data, found = read_private_file(path, _MAX_SECRET_FILE_BYTES)
    except FileNotFoundError:
        return None
    except StateCorruptError as error:
        raise StateDirectoryError(path, error.reason, advice) from error
    except OSError as error:
        raise StateDirectoryError(path, f"cannot be read: {error.strerror}", advice) from error
    mode = found.st_mode & 0o777
    if hasattr(os, "geteuid") and mode & 0o077:  # elsewhere modes say nothing
        raise StateDirectoryError(path, f"others could read it (mode {mode:04o})", advice)
    secret = data.decode("ascii", "replace").strip()
    if _SECRET.fullmatch(secret) is None:
        raise StateCorruptError(path, "holds no secret of 32 to 512 printable characters", advice)
    return secret


def _open_lock(path: str) -> int:
    try:
        return open_private(path, os.O_RDWR)
    except OSError as error:
        raise refused(path, "cannot be locked", error) from error


def _permitted(backend: Backend, agent_id: str, requester: str | None, what: str) -> StateRecord:
    """Return the state of an agent, for somebody who may decide about its tokens."""
    record = backend.load(check_agent_id(agent_id)).record
    if record is None:
        raise AgentNotFoundError(agent_id)
    if requester is not None and requester not in (agent_id, record.parent_id):
        raise NotPermittedError(agent_id, requester, what)
    return record


def _hash(token: str) -> str:
    # 256 random bits cannot be guessed, however fast one may guess: a slow hash protects nothing.
    return sha256(token.encode("ascii")).hexdigest()


def _open(backend: Backend | str | None) -> Backend:
    if backend is None or isinstance(backend, str):
        from ultramon.backends.opening import open_backend

        return open_backend(backend)
    return backend
