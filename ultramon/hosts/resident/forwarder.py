"""The first code of an installed command: it hands the call to the resident and prints the answer.

Imports `posix`, `sys` and, where a socket is there, `_socket` and `_signal`: every further module
would cost each tool call more than the exchange does. Linux and macOS.
"""

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Mapping
    from types import FrameType

MAGIC = b"ultramon resident 1\n"
TAKEN, NOTHING, REFUSED, OLDER, ANSWER, HAVE_IT = b"+", b"N", b"R", b"V", b"A", b"!"
"""The words between the two: `TAKEN` first, then one of the next four; an answer is followed
by `SIZE_DIGITS` and its bytes, and by `HAVE_IT` both ways."""
SIZE_DIGITS = 8
PACKAGE = __file__.removesuffix("hosts/resident/forwarder.py")
"""The directory of this package: a caller asks for an answer by this code."""
PACKAGE_MARK = b"1."
"""In front of it in a request: residents of the first build read a version there, and make room for
a newer one."""

MAX_PAYLOAD_BYTES = 1 << 20
"""A larger payload is not sent to the resident."""
INPUT_SECONDS = 2.0
TAKEN_SECONDS = 0.25
"""How long a resident may take to begin: a stopped one costs a call this once."""
ANSWER_SECONDS = 3.0
"""How long it may take then; locks and late replies are waited for, as without a resident."""
CONFIRM_SECONDS = 1.0
PAUSE_SECONDS = 60.0
"""For how long a resident is not asked that did not answer in time."""
PAUSE_SUFFIX = b".hung"
MAX_PATH_BYTES = 100
"""Of a socket; Linux takes 107, macOS 103."""

OWN_VARIABLES = (
    "HOME",
    "ULTRAMON_AUDIENCE",
    "ULTRAMON_PARENT_ID",
    "ULTRAMON_RUN",
    "ULTRAMON_STATE_DIR",
    "TMUX_PANE",
    "NO_COLOR",
)
"""The environment variables that every program of a resident reads, beside those of its host."""
OFF_VARIABLE = "ULTRAMON_NO_RESIDENT"
_SWITCHES = (b"ULTRAMON_DISABLED", OFF_VARIABLE.encode(), b"ULTRAMON_RELAY")
_FALSE = (b"", b"0", b"false", b"no", b"off")
_INSIDE = b"ULTRAMON_STATUS_LINE"
# A hash library would cost a hook 0.3 ms.
_MERSENNE_PRIME = 2**89 - 1
_SOCKET_TYPE, _TYPE_MASK = 0o140000, 0o170000
# Of macOS, where `_socket` has no SO_PEERCRED, nor names for these.
_SOL_LOCAL, _LOCAL_PEERCRED, _LOCAL_PEERPID = 0, 1, 2
_XUCRED_BYTES, _XUCRED_VERSION = 76, 0


class Unanswered:
    """A call that its own process must handle.

    Attributes:
        data: What was read of the payload.
        is_ended: Whether that is all there will be.
        was_asked: Whether the resident has seen the call, and may have begun to handle it.
        may_start: Whether a resident may be started: none answered, and none hangs.
    """

    __slots__ = ("data", "is_ended", "may_start", "was_asked")

    def __init__(self, data: bytes = b"", *, is_ended: bool = False) -> None:
        self.data = data
        self.is_ended = is_ended
        self.was_asked = False
        self.may_start = False


def forward(program: str, choices_path: str, variables: tuple[str, ...]) -> Unanswered | None:
    """Have the resident handle this call.

    Args:
        program: What it shall run: the name of the host, a space, ``hook`` or another word.
        choices_path: Path of the installed choices.
        variables: Names of the environment variables that the host reads.

    Returns:
        None when the call is answered; the process may end.
    """
    environ = posix.environ
    own = Unanswered()
    if any(environ.get(name, b"").lower() not in _FALSE for name in _SWITCHES):
        return own
    choices = choices_path.encode("utf-8", "surrogateescape")
    directory = environ.get(b"ULTRAMON_STATE_DIR") or choices.rpartition(b"/")[0]
    # A relative path means another directory in the resident's process.
    if _INSIDE in environ or directory[:1] != b"/" or choices[:1] != b"/":
        return own
    path = socket_path(environ, directory)
    if not _is_ours(path):
        own.may_start = True
        return own
    if is_paused(path):
        return own
    own.data, own.is_ended = _read_input()
    if len(own.data) > MAX_PAYLOAD_BYTES:
        return own
    sent = _listed(environ, (*OWN_VARIABLES, *variables))
    request = encode_request(program, choices, sent, own.data)
    return None if _ask(path, request, own) else own


def socket_path(environ: "Mapping[bytes, bytes]", directory: bytes) -> bytes:
    """Return where the resident of a state directory listens.

    Args:
        environ: With ``XDG_RUNTIME_DIR``, if that is set.
        directory: The state directory, absolute.
    """
    # Two directories of one name differ in the request, which names its own.
    key = int.from_bytes(directory.rstrip(b"/"), "big") % _MERSENNE_PRIME
    name = b"/ultramon-%x.socket" % key
    folder = environ.get(b"XDG_RUNTIME_DIR", b"").rstrip(b"/")
    if folder[:1] != b"/" or len(folder + name) > MAX_PATH_BYTES:
        folder = b"/tmp/ultramon-%d" % posix.geteuid()
    return folder + name


def encode_request(program: str, choices: bytes, variables: bytes, payload: bytes) -> bytes:
    """Return a request as it is sent: each field with its length, and that of all in front."""
    fields = (
        PACKAGE_MARK + PACKAGE.encode("utf-8", "surrogateescape"),
        program.encode(),
        choices,
        b"%d" % posix.getppid(),
        variables,
        payload,
    )
    body = b"".join(b"%d:%b" % (len(field), field) for field in fields)
    return b"%b%0*d%b" % (MAGIC, SIZE_DIGITS, len(body), body)


def _listed(environ: "Mapping[bytes, bytes]", variables: tuple[str, ...]) -> bytes:
    found = ((name.encode(), environ.get(name.encode())) for name in variables)
    return b"\0".join(b"%b=%b" % (name, value) for name, value in found if value is not None)


def _is_ours(path: bytes) -> bool:
    """Return whether a socket is there that belongs to this user alone."""
    try:
        found = posix.lstat(path)
    except OSError:
        return False
    is_private = found.st_uid == posix.geteuid() and not found.st_mode & 0o077
    return is_private and found.st_mode & _TYPE_MASK == _SOCKET_TYPE


def is_paused(path: bytes) -> bool:
    """Return whether the resident at a socket is left alone, since it did not answer in time."""
    try:
        paused_at = posix.lstat(path + PAUSE_SUFFIX).st_mtime
    except OSError:
        return False
    import time

    return abs(time.time() - paused_at) < PAUSE_SECONDS


def _pause(path: bytes) -> None:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
    try:
        posix.close(posix.open(path + PAUSE_SUFFIX, flags, 0o600))
        posix.utime(path + PAUSE_SUFFIX)
    except OSError:
        return


def _ask(path: bytes, request: bytes, own: Unanswered) -> bool:
    """Send a request and print its answer; return whether the resident has done all of it."""
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(TAKEN_SECONDS)
    try:
        connection.connect(path)
    except OSError:
        # A socket without a process, or one with too many calls before this.
        own.may_start = True
        return False
    try:
        # A socket at which another user's process listens gets no payload.
        if read_peer(connection)[1] != posix.geteuid():
            return False
        own.was_asked = True
        connection.sendall(request)
        said = receive(connection)
    except TimeoutError:
        _pause(path)
        return False
    except Exception:  # noqa: BLE001 - whatever is odd about a resident, the call is still to handle
        return False
    if said[:1] == ANSWER:
        _hand_over(said[1 + SIZE_DIGITS :], connection)
        return True
    own.may_start = said == OLDER
    return said == NOTHING


def read_peer(connection: "Socket") -> tuple[int, int]:
    """Return the process and the user at the other end of a socket, as the system says.

    Raises:
        OSError: It does not say.
    """
    import _socket

    try:
        found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return _number(found, 0), _number(found, 4)
    except (AttributeError, OSError):
        found = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
    if len(found) != _XUCRED_BYTES or _number(found, 0) != _XUCRED_VERSION:
        raise OSError("the system does not say who is at the other end")
    return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID), _number(found, 4)


def _number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], sys.byteorder)


def _hand_over(answer: bytes, connection: "Socket") -> None:
    """Print an answer and report it; where the host has gone, nothing is reported."""
    try:
        while answer:
            answer = answer[posix.write(1, answer) :]
        connection.sendall(HAVE_IT)
        # The next call must not come before it is noted that this answer arrived.
        connection.settimeout(CONFIRM_SECONDS)
        connection.recv(1)
    except OSError:
        return


def receive(connection: "Socket") -> bytes:
    """Return what the resident says once it is complete; empty when it has gone.

    Raises:
        TimeoutError: It takes too long.
    """
    said = connection.recv(1 << 16)
    if said[:1] == TAKEN:
        connection.settimeout(ANSWER_SECONDS)
    while True:
        message = said[1:] if said[:1] == TAKEN else b""
        if message and message[:1] != ANSWER:
            return message
        head = 1 + SIZE_DIGITS
        if len(message) >= head and len(message) >= head + int(message[1:head]):
            return message
        more = connection.recv(1 << 16)
        if not more:
            return b""
        said += more


class _OutOfTime(Exception):
    pass


def _stop_reading(_signal: int, _frame: "FrameType | None") -> None:
    raise _OutOfTime


def _read_input() -> tuple[bytes, bool]:
    """Read standard input, a little more than a payload may have at most; for 2 s at most."""
    # `select` would be one more library to load; the alarm is there already.
    import _signal  # type: ignore[import-not-found]

    chunks: list[bytes] = []
    size = 0
    _signal.signal(_signal.SIGALRM, _stop_reading)
    _signal.setitimer(_signal.ITIMER_REAL, INPUT_SECONDS)
    try:
        while size <= MAX_PAYLOAD_BYTES:
            chunk = posix.read(0, 1 << 16)
            if not chunk:
                return b"".join(chunks), True
            chunks.append(chunk)
            size += len(chunk)
    except _OutOfTime:
        return b"".join(chunks), True
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
    return b"".join(chunks), False
