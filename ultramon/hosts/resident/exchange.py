"""The resident's side of an exchange: a request as it was sent, and the possible answers.

Standard library only. The other side is `ultramon.hosts.resident.forwarder`.
"""

from __future__ import annotations

import os
import socket
import time

from ultramon.hosts.calls.session_environment import CALLER
from ultramon.hosts.resident.forwarder import (
    ANSWER,
    HAVE_IT,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    NOTHING,
    PACKAGE_MARK,
    SIZE_DIGITS,
    TAKEN,
    read_peer,
)

REQUEST_SECONDS = 2.0
"""How long a request may take to arrive; its sender has it ready."""
PRINT_SECONDS = 2.0
"""How long the sender may take to print an answer and say so."""
_MAX_REQUEST_BYTES = MAX_PAYLOAD_BYTES + (1 << 18)
_HEAD_BYTES = len(MAGIC) + SIZE_DIGITS
_FIELDS = 6


class GoneError(Exception):
    """The other side has gone, or says what no forwarder says."""


class Request:
    """One call of an installed command.

    Attributes:
        package: The directory of the ultramon that sent it.
        program: What shall be run.
        choices_path: The installed choices that the command names.
        parent_pid: The process that started the command.
        environ: The variables that the program needs.
        payload: What the host wrote to the command.
    """

    __slots__ = ("choices_path", "environ", "package", "parent_pid", "payload", "program")

    def __init__(self, fields: list[bytes]) -> None:
        package, program, choices_path, parent_pid, variables, self.payload = fields
        self.package = os.fsdecode(package.removeprefix(PACKAGE_MARK))
        self.program = program.decode("ascii")
        self.choices_path = os.fsdecode(choices_path)
        self.parent_pid = int(parent_pid)
        pairs = (os.fsdecode(one).partition("=") for one in variables.split(b"\0") if one)
        self.environ = {name: value for name, _, value in pairs}
        # In the resident `getppid` would return the resident's own parent.
        self.environ[CALLER] = str(self.parent_pid)


class Exchange:
    """One connection of a forwarder.

    Args:
        connection: As it was accepted; the caller closes it.

    Attributes:
        process_id: The forwarder's process, as the system says.
        user_id: Its user.

    Raises:
        GoneError: The forwarder has gone.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_taken = False
        try:
            self.process_id, self.user_id = read_peer(connection)
        except OSError as error:
            raise GoneError(str(error)) from error  # macOS forgets who hung up

    def read_request(self) -> Request:
        """Read the request.

        Raises:
            GoneError: None came in time, or what came is none.
        """
        deadline = time.monotonic() + REQUEST_SECONDS
        data = b""
        try:
            while len(data) < (wanted := _wanted_bytes(data)):
                left = deadline - time.monotonic()
                if left <= 0:
                    raise GoneError("the request does not end")
                self._connection.settimeout(left)
                chunk = self._connection.recv(min(wanted - len(data), 1 << 16))
                if not chunk:
                    raise GoneError("the request is cut")
                data += chunk
            return Request(_fields(data[_HEAD_BYTES:]))
        except (OSError, ValueError) as error:
            raise GoneError(str(error)) from error

    def check_peer(self) -> None:
        """Make sure that the forwarder still waits; one that gave up handles the call itself.

        Raises:
            GoneError: It does not.
        """
        try:
            self._connection.settimeout(0)
            if self._connection.recv(1, socket.MSG_PEEK) == b"":
                raise GoneError("the forwarder gave up")
        except BlockingIOError:
            return
        except OSError as error:
            raise GoneError(str(error)) from error

    def take(self) -> None:
        """Say that the call is taken, so that the forwarder waits longer.

        Raises:
            GoneError: The forwarder has gone.
        """
        if not self._is_taken:
            self.check_peer()
            self._send(TAKEN)
            self._is_taken = True

    def end(self, word: bytes = NOTHING) -> None:
        """Say how the call ends without an answer.

        Args:
            word: `NOTHING`, ``REFUSED`` or ``OLDER``.

        Raises:
            GoneError: The forwarder has gone.
        """
        self._send(word if self._is_taken else TAKEN + word)

    def answer(self, data: bytes) -> bool:
        """Send an answer; return whether the forwarder has printed it."""
        head = b"" if self._is_taken else TAKEN
        try:
            self.check_peer()
            self._send(b"%b%b%0*d%b" % (head, ANSWER, SIZE_DIGITS, len(data), data))
            self._connection.settimeout(PRINT_SECONDS)
            return self._connection.recv(1) == HAVE_IT
        except (OSError, GoneError):
            return False

    def confirm(self) -> None:
        """Let the forwarder end, after what it has printed is noted as such."""
        try:
            self._send(HAVE_IT)
        except GoneError:
            return

    def _send(self, data: bytes) -> None:
        try:
            self._connection.settimeout(PRINT_SECONDS)
            self._connection.sendall(data)
        except OSError as error:
            raise GoneError(str(error)) from error


def _wanted_bytes(data: bytes) -> int:
    """Return the bytes of a whole request, by as much of it as has come."""
    if len(data) < _HEAD_BYTES:
        return _HEAD_BYTES
    if not data.startswith(MAGIC):
        raise ValueError("no request of a forwarder")
    size = int(data[len(MAGIC) : _HEAD_BYTES])
    if not 0 <= size <= _MAX_REQUEST_BYTES:
        raise ValueError(f"a request of {size:,} bytes")
    return _HEAD_BYTES + size


def _fields(body: bytes) -> list[bytes]:
    fields = []
    while body:
        digits, _, rest = body.partition(b":")
        size = int(digits)
        if not 0 <= size <= len(rest):
            raise ValueError("a field is cut")
        fields.append(rest[:size])
        body = rest[size:]
    if len(fields) != _FIELDS:
        raise ValueError(f"{len(fields)} fields")
    return fields
