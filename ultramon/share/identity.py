"""The identity of this machine in a shared database, and the opaque ids that it gives its agents.

The secret stays in the state directory. Without it no id of the database leads to an agent here,
not even by trying all likely names.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b
from typing import NamedTuple

from ultramon.errors import StateCorruptError
from ultramon.state.record import MACHINE_ID_CHARS
from ultramon.system import compact_json
from ultramon.system.files import check_one_name, delete_file, read_private_file, replace_file
from ultramon.system.ids import random_hex

IDENTITY_FILE = "share-identity.json"
SCHEMA = 1
_SECRET_BYTES = 32
_MACHINE_ID = re.compile(f"m[0-9a-f]{{{MACHINE_ID_CHARS - 1}}}")
_SECRET = re.compile(f"[0-9a-f]{{{2 * _SECRET_BYTES}}}")
_AGENT, _RUN, _EVENT = b"agent", b"run", b"event"


class Identity(NamedTuple):
    """This machine as the shared database knows it.

    The same name always becomes the same id, so that trees stay trees; two machines give one name
    two ids.
    """

    machine_id: str
    """``m`` and 12 hexadecimal digits, random."""
    secret: bytes

    def agent_id(self, own: str) -> str:
        """Return the id of an agent: the machine, a hyphen, 12 digits.

        What follows the first dot of an id, as in a subagent's, is behind a dot here too.
        """
        root, dot, _ = own.partition(".")
        opaque = f"{self.machine_id}-{self._digits(_AGENT, root, 6)}"
        return f"{opaque}.{self._digits(_AGENT, own, 6)}" if dot else opaque

    def run(self, own: str) -> str:
        """Return the id of a run."""
        return f"{self.machine_id}-{self._digits(_RUN, own, 4)}"

    def event_id(self, own: str) -> str:
        """Return the id of an event, or what stands for its key."""
        return self._digits(_EVENT, own, 16)

    def _digits(self, kind: bytes, own: str, count_bytes: int) -> str:
        # An id may hold half of a surrogate pair, as any JSON text.
        data = own.encode("utf-8", "surrogatepass")
        return blake2b(data, key=self.secret, person=kind, digest_size=count_bytes).hexdigest()


def new_identity() -> Identity:
    """Return an identity that no machine has; it is not stored."""
    return Identity(f"m{random_hex(MACHINE_ID_CHARS // 2)}", os.urandom(_SECRET_BYTES))


def identity_path(directory: str) -> str:
    """Return where the identity of a state directory lies."""
    return os.path.join(directory, IDENTITY_FILE)


def load_identity(directory: str) -> Identity | None:
    """Return the stored identity; None before the first one.

    Raises:
        StateCorruptError: The file is not one that ultramon wrote, or not this user's alone.
        OSError: The system refused to read it.
    """
    path = identity_path(directory)
    try:
        data, found = read_private_file(path, check=check_one_name)
    except FileNotFoundError:
        return None
    cure = f"chmod 600 {path}"
    if found.st_mode & 0o077:
        raise StateCorruptError(path, "others may read the secret in it", cure)
    try:
        value = compact_json.loads(data)
        machine_id, secret = value["machineId"], value["secret"]
        if not (_MACHINE_ID.fullmatch(machine_id) and _SECRET.fullmatch(secret)):
            raise ValueError("its values are not those of an identity")
    except (ValueError, KeyError, TypeError) as error:
        raise StateCorruptError(
            path, f"is no identity of a machine: {error}", "delete it: another one is made"
        ) from error
    return Identity(machine_id, bytes.fromhex(secret))


def store_identity(directory: str, identity: Identity) -> None:
    """Write an identity. Call it while no other process shares from the directory.

    Raises:
        StateWriteError: The file system refused.
    """
    value = {
        "schema": SCHEMA,
        "machineId": identity.machine_id,
        "secret": identity.secret.hex(),
    }
    replace_file(identity_path(directory), compact_json.dumps(value).encode("ascii") + b"\n")


def forget_identity(directory: str) -> None:
    """Delete the identity: what is shared later bears other ids.

    Raises:
        StateWriteError: The file system refused.
    """
    delete_file(identity_path(directory))
