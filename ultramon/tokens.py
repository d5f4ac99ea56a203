"""Tokens that prove which agent calls a server, and the secrets of a server.

A token is 32 random bytes as text. The store keeps only its hash, so a copy of the store opens
nothing; nothing here logs a token or puts one into an error.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

from ultramon.backends.credentials import Credential, credentials_of
from ultramon.backends.opening import as_backend
from ultramon.backends.toolkit import find_agent, load_permitted
from ultramon.errors import (
    ConfigurationError,
    RegistrationError,
    StateCorruptError,
    StateDirectoryError,
    StateWriteError,
)
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.files import (
    check_one_name,
    delete_quietly,
    make_private_directory,
    open_private,
    read_private_file,
    replace_file,
)
from ultramon.system.locks import Lock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ultramon.backends.base import Backend, StoredAgent
    from ultramon.state.record import StateRecord
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.tokens")

TOKEN_SECONDS = 86_400.0
"""How long a token is valid after it was made or renewed; its use renews it."""
TOKEN_FILE = "ULTRAMON_TOKEN_FILE"
"""The variable with the path of a client's token file."""
ADMIN_TOKEN = "admin.token"
"""The file in the state directory with the token that may do everything."""
HOOK_SECRET = "hook.secret"
"""The file in the state directory with the secret of the hook routes."""
METRICS_TOKEN = "metrics.token"
"""The file in the state directory with the token that may scrape the metrics and nothing else."""

_RANDOM_BYTES = 32
# 32 bytes in base64 without padding have 43 characters.
_TOKEN = re.compile(r"um_[A-Za-z0-9_-]{43}", re.ASCII)
_SECRET = re.compile(r"[!-~]{32,512}", re.ASCII)
_MAX_SECRET_FILE_BYTES = 4096
_LOCK_TIMEOUT_SECONDS = 5.0
_SECRET_ADVICE = (
    "delete it, and `ultramon token rotate`, or the next start of the server, makes another"
)


def mint_token(
    agent_id: str,
    requester: str | None = None,
    *,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> str:
    """Make a token with which a client acts for an agent at a server.

    It is valid until the agent ends or another process takes it over, and for `TOKEN_SECONDS` after
    its last use. Earlier tokens stay valid: an agent may have several clients.

    Args:
        agent_id: Whose token.
        requester: The agent that asks: this one or its direct parent; None = a person, who may do
            everything.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Returns:
        The token: 46 characters of ``A-Z a-z 0-9 _ -``. It cannot be shown again.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        RegistrationError: The agent has ended.
        StateError: The store refused; no token was made.
    """
    store = as_backend(backend)
    token, credential = _new_token(store, agent_id, requester, clock)
    credentials_of(store).mint(credential)
    return token


def rotate_token(
    agent_id: str,
    requester: str | None = None,
    *,
    backend: Backend | str | None = None,
    clock: Clock | None = None,
) -> str:
    """Make a token of an agent in place of all it has, which are void from then on.

    As one step: there is no moment without a valid token. The tokens of its children stay valid,
    also those that it made itself.

    Args:
        agent_id: Whose tokens.
        requester: The agent that asks, as for `mint_token`.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.

    Returns:
        The new token. It cannot be shown again.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        RegistrationError: The agent has ended; its tokens are void already.
        StateError: The store refused; nothing changed.
    """
    store = as_backend(backend)
    token, credential = _new_token(store, agent_id, requester, clock)
    credentials_of(store).rotate(credential)
    return token


def _new_token(
    store: Backend, agent_id: str, requester: str | None, clock: Clock | None
) -> tuple[str, Credential]:
    record = load_permitted(store, agent_id, requester, "make tokens of")
    if not record.active:
        raise RegistrationError(agent_id, "ended")
    token = f"um_{secrets.token_urlsafe(_RANDOM_BYTES)}"
    # If the clock was set back since the agent began, the token still belongs to this life.
    now = max((clock or SYSTEM_CLOCK).now(), record.started_at)
    expires_at = now + TOKEN_SECONDS
    return token, Credential(_hash(token), agent_id, record.generation, requester, now, expires_at)


def verify_token(token: str, *, backend: Backend, clock: Clock | None = None) -> str | None:
    """Return the agent that the bearer of a token acts for; None for an invalid token.

    The reason is not returned: the token is malformed, unknown, expired or revoked, or the agent
    has ended, was deleted, or was taken over since.

    Args:
        token: As it was presented; anything.
        backend: Where the agents are.
        clock: For tests; None = the system's.

    Raises:
        StateError: The store or the agent's state cannot be read; the token may be valid.
    """
    stored = bearer_of(token, backend=backend, clock=clock)
    return None if stored is None else stored.agent_id


def bearer_of(token: str, *, backend: Backend, clock: Clock | None = None) -> StoredAgent | None:
    """Return the agent of a token with the state that proved it; see `verify_token`."""
    if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
        return None
    # Found by its hash: the time that takes reveals nothing about a token.
    credential = credentials_of(backend).find(_hash(token))
    now = (clock or SYSTEM_CLOCK).now()
    if credential is None or credential.expires_at <= now:
        return None
    stored = find_agent(backend, credential.agent_id)
    if stored is None or stored.record is None or not _is_of(credential, stored.record):
        return None
    return stored if _renewed(credential, backend, now) else None


def _is_of(credential: Credential, record: StateRecord) -> bool:
    """Return whether a token belongs to an agent's present life."""
    # Generations begin anew where a state was deleted; then the start distinguishes the lives.
    return (
        record.active
        and record.generation == credential.generation
        and record.started_at <= credential.minted_at
    )


def _renewed(credential: Credential, backend: Backend, now: float) -> bool:
    """Renew a token in the second half of its life; False when it was revoked meanwhile."""
    # A renewal on every request would be a write per request.
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
        return True  # it has not expired yet


def revoke_tokens(
    agent_id: str, requester: str | None = None, *, backend: Backend | str | None = None
) -> int:
    """Invalidate every token of an agent, at once.

    Args:
        agent_id: Whose tokens.
        requester: The agent that asks, as for `mint_token`.
        backend: A backend or its URL; None = see `open_backend`.

    Returns:
        How many there were.

    Raises:
        AgentNotFoundError: There is no such agent.
        NotPermittedError: The requester is neither the agent nor its direct parent.
        StateError: The store refused; nothing changed.
    """
    store = as_backend(backend)
    load_permitted(store, agent_id, requester, "revoke tokens of")
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
    """Return a secret of the server in a state directory, making it at the first call.

    Processes that call at once get the same.

    Args:
        state_directory: Made with mode 0700 where it is missing.
        name: `ADMIN_TOKEN`, `HOOK_SECRET` or `METRICS_TOKEN`, the name of the file.

    Raises:
        StateDirectoryError: The directory is not safe to use, or the file is not: others could
            have read or written it, or it is a symlink.
        StateCorruptError: The file holds no secret.
        StateWriteError: The file system refused.
    """
    make_private_directory(state_directory)
    path = secret_path(state_directory, name)
    secret = _read_secret(path, _SECRET_ADVICE)
    if secret is not None:
        return secret
    # Two processes may find none at once: one creates it, and the other one reads that.
    lock = f"{path}.lock"
    with Lock(lock, open_private, _LOCK_TIMEOUT_SECONDS):
        secret = _read_secret(path, _SECRET_ADVICE)
        if secret is None:
            secret = _write_secret(path)
        delete_quietly(lock)
    return secret


def rotate_server_secret(state_directory: str, name: str) -> str:
    """Put a new secret of the server in place of the old one; return the path of its file.

    The old one is void from then on, for running servers too. A file that is not safe to use is
    replaced as well.

    Args:
        state_directory: As for `server_secret`.
        name: As for `server_secret`.

    Raises:
        StateDirectoryError: The directory is not safe to use.
        StateWriteError: The file system refused; the old secret is valid.
    """
    make_private_directory(state_directory)
    path = secret_path(state_directory, name)
    lock = f"{path}.lock"
    with Lock(lock, open_private, _LOCK_TIMEOUT_SECONDS):
        _write_secret(path)
        delete_quietly(lock)
    return path


def _write_secret(path: str) -> str:
    secret = secrets.token_urlsafe(_RANDOM_BYTES)
    write_token(path, secret)
    return secret


class ServerSecret:
    """A secret of the server as its file holds it now, read again once the file was replaced.

    Args:
        state_directory: As for `server_secret`, which makes a missing one.
        name: As for `server_secret`.

    Raises:
        StateError: As `server_secret`.
    """

    def __init__(self, state_directory: str, name: str) -> None:
        self._path = secret_path(state_directory, name)
        self._held: tuple[object, str] = None, server_secret(state_directory, name)

    @property
    def value(self) -> str:
        """The secret.

        Raises:
            StateError: The file was changed and holds no secret that is safe to use, so that
                nothing opens what it guards.
        """
        mark, secret = self._held
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return secret  # until a restart, as the advice about a file that is not safe says
        except OSError as error:
            raise StateDirectoryError(self._path, f"cannot be read: {error.strerror}") from error
        now = found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
        if now != mark:
            secret = _read_secret(self._path, _SECRET_ADVICE) or secret
            self._held = now, secret
        return secret


def secret_path(state_directory: str, name: str) -> str:
    """Return the path of a secret of the server."""
    return os.path.join(os.path.abspath(state_directory), name)


def _read_secret(path: str, advice: str) -> str | None:
    """Return the content of a file; None when there is no such file."""
    try:
        data, found = read_private_file(path, _MAX_SECRET_FILE_BYTES, check=check_one_name)
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


def _hash(token: str) -> str:
    # 256 random bits cannot be guessed, however fast one may guess: a slow hash protects nothing.
    return sha256(token.encode("ascii")).hexdigest()
