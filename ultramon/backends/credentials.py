"""The port of credentials: which tokens belong to which agent.

`ultramon.testing.CredentialsContract` checks each sentence here against an implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ultramon.backends.base import require_part

if TYPE_CHECKING:
    from ultramon.backends.base import Backend


class Credential(NamedTuple):
    """A token as the store knows it, which the token cannot be made from."""

    token_hash: str
    """SHA-256 of the token, 64 hexadecimal digits."""
    agent_id: str
    generation: int
    """The agent's generation when the token was made; in every other one it is void."""
    minted_by: str | None
    """The agent that asked for it; None = a person or the admin."""
    minted_at: float
    """Epoch seconds, to the bit as it was passed: it is compared with the start of the agent."""
    expires_at: float
    """Epoch seconds."""


class Credentials(Protocol):
    """Credentials, kept durably. A backend that has them shows them as ``credentials``.

    Whether a token is valid is decided by `ultramon.tokens.verify_token`. Safe to use from several
    threads and processes. The credentials of an agent are pruned with it.
    """

    def mint(self, credential: Credential) -> None:
        """Store the credential of a token that was never stored before, durably.

        The others of the agent stay. As one step those of every agent that expired by then, and
        those of this agent's earlier generations, are deleted.

        Raises:
            StateWriteError: The store refused; nothing changed.
        """

    def rotate(self, credential: Credential) -> int:
        """Store the credential of a new token in place of all of its agent, durably, as one step.

        Returns:
            How many it replaced, of every generation.

        Raises:
            StateWriteError: The store refused; nothing changed.
        """

    def find(self, token_hash: str) -> Credential | None:
        """Return the credential of a token, expired or not. Nothing changes."""

    def renew(self, token_hash: str, expires_at: float) -> bool:
        """Let a credential live until a later time, never a shorter one.

        Waits for another writer for 50 ms at most: a request waits for the renewal.

        Returns:
            False when there is none of that hash: it was revoked meanwhile.

        Raises:
            StateWriteError: The store refused, or is busy; nothing changed.
        """

    def revoke(self, agent_id: str) -> int:
        """Delete every credential of an agent; return how many there were."""


def credentials_of(backend: Backend) -> Credentials:
    """Return the credentials of a backend.

    Raises:
        ConfigurationError: It keeps none.
    """
    credentials: Credentials = require_part(backend, "credentials", "credentials")
    return credentials
