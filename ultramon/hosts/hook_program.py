"""A hook as a program: one call of a client in, at most one answer out, always exit 0.

Standard library only, and as little of that as possible: every tool call of every agent pays.
"""

from __future__ import annotations

import time

from ultramon.system.lean_os import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ultramon.hosts.port import Host
    from ultramon.hosts.resident.forwarder import Unanswered

MAX_PAYLOAD_BYTES = 1 << 20
"""A larger payload is read to its end and known only by its first and last part."""
HEAD_BYTES = 64 * 1024
_TAIL_BYTES = 4 * 1024
INPUT_SECONDS = 2.0
RELAY_FOLDER = "relay"
"""Folder of the state directory with one folder for each relay, which holds its choices."""
RELAY_SESSION = "ULTRAMON_RELAY_SESSION"
"""The session that a relay runs, of a client whose sessions inherit the hooks of the relay."""


def run(
    load_host: Callable[[], Host],
    choices_path: str,
    environ: Mapping[str, str] = os.environ,
    *,
    unanswered: Unanswered | None = None,
) -> int:
    """Handle one call: the payload on standard input, the answer on standard output.

    Failures go to the failure log and nowhere else.

    Args:
        load_host: Returns the host; not called where ultramon is switched off.
        choices_path: The installed choices, ``<host>.json``; without the file the defaults hold.
        environ: The client's environment.
        unanswered: What the forwarder left of this call, where a resident was installed.

    Returns:
        0.
    """
    if is_off(environ):
        return 0
    chosen = choices_here(environ, choices_path)
    if chosen is None:
        return 0
    choices_path = chosen
    directory = state_directory(environ, choices_path)
    name = agent_id = ""
    try:
        host = load_host()
        from ultramon.hosts.handling import HookCall
        from ultramon.hosts.port import SESSION_STARTED
        from ultramon.hosts.store import HookStore
        from ultramon.system.locks import LockedError
        from ultramon.system.processes import process_started_at, started_at_boot_seconds

        payload, tail = read_payload(0, unanswered)
        event = host.read_event(payload, environ, tail)
        name, agent_id = event.name, event.session_id
        if event.session_id != environ.get(RELAY_SESSION, event.session_id):
            return 0  # the agent itself has begun it
        now = time.time()
        store = HookStore(host, directory, choices_path, environ, event=name, now=now)
        store.began_at = started_at_boot_seconds(process_started_at(os.getpid()))
        store.is_retry = unanswered is not None and unanswered.was_asked
        call = HookCall(event, store)
        agent_id = call.agent_id
        try:
            answer = call.answer()
        except LockedError:
            from ultramon.hosts.resident.starter import end_hung

            if unanswered is None or not end_hung(store):
                raise
            call = HookCall(event, store)
            answer = call.answer()
        if answer:
            os.write(1, answer)
        call.acknowledge()
        if unanswered is not None and unanswered.may_start:
            from ultramon.hosts.resident.starter import start

            start(store, is_session_start=event.kind == SESSION_STARTED)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the client must go on
        try:
            from ultramon.hosts.failure_log import record
            from ultramon.hosts.installed_choices import host_of

            problem = f"{type(error).__name__}: {error}"
            record(directory, host_of(choices_path), name, agent_id, problem, now=time.time())
        except BaseException:  # noqa: BLE001 - there is nowhere left to say it
            return 0
    return 0


def run_script(
    argv: list[str], load_host: Callable[[], Host], unanswered: Unanswered | None = None
) -> int:
    """Handle one call as the program that a client has started.

    Args:
        argv: The program, then the path of the installed choices.
        load_host: As for `run`.
        unanswered: As for `run`.
    """
    import gc

    # What a call makes is gone with it; to look for circles took a millisecond of seventeen.
    gc.disable()
    return run(load_host, argv[1], unanswered=unanswered) if len(argv) > 1 else 0


def state_directory(environ: Mapping[str, str], choices_path: str) -> str:
    """Return where states are kept: as the environment says, else beside the installed choices."""
    chosen = environ.get("ULTRAMON_STATE_DIR")
    return os.path.expanduser(chosen) if chosen else os.path.dirname(choices_path) or os.curdir


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether ``ULTRAMON_DISABLED`` is set."""
    # As `ultramon.system.environment`, which a hook that is switched off does not even load.
    return environ.get("ULTRAMON_DISABLED", "").lower() not in ("", "0", "false", "no", "off")


def stands_down(environ: Mapping[str, str], choices_path: str) -> bool:
    """Return whether a relay runs this client, and these choices are not the relay's.

    A relay brings hooks of its own along: those of an installation would count everything twice.
    """
    run = environ.get("ULTRAMON_RELAY")
    folder = os.sep.join(("", RELAY_FOLDER, run or ""))
    return bool(run) and not os.path.dirname(choices_path).endswith(folder)


def choices_here(environ: Mapping[str, str], choices_path: str) -> str | None:
    """Return the choices that a call is handled by; None = the hook stands down.

    In a relay whose client takes hooks from an installation only, they serve the relay.

    Args:
        environ: The client's environment.
        choices_path: Those that the hook was installed with.
    """
    if not stands_down(environ, choices_path):
        return choices_path
    if RELAY_SESSION not in environ:
        return None
    run, name = environ["ULTRAMON_RELAY"], os.path.basename(choices_path)
    return os.path.join(state_directory(environ, choices_path), RELAY_FOLDER, run, name)


def read_payload(fd: int, begun: Unanswered | None = None) -> tuple[dict[str, Any], bytes]:
    """Read one payload.

    Args:
        fd: Where it comes from.
        begun: What the forwarder has read of it; None = nothing.

    Returns:
        Its members; of one above 1 MiB the first members, and its last 4 KiB.

    Raises:
        ValueError: It is no JSON object, or did not come in time.
    """
    from ultramon.system.compact_json import leading_members

    data, tail = read_bounded(fd, begun)
    if tail is None:
        return decode_payload(data), b""
    # The cut may lie within a character. Nothing is left out: that would make two ids the same.
    return leading_members(data[:HEAD_BYTES].decode("utf-8", "replace")), tail


def decode_payload(data: bytes) -> dict[str, Any]:
    """Decode one payload.

    Raises:
        ValueError: It is no JSON object.
    """
    from ultramon.system import compact_json

    value = compact_json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"the payload is a {type(value).__name__}, not an object")
    return value


def read_bounded(fd: int, begun: Unanswered | None = None) -> tuple[bytes, bytes | None]:
    """Read a stream to its end, for 2 s at most, keeping its first MiB.

    Args:
        fd: The stream.
        begun: As for `read_payload`.

    Returns:
        The beginning, and the last bytes when that is not all of it; else None.
    """
    if begun is not None and begun.is_ended:
        return begun.data, None
    import select

    deadline = time.monotonic() + INPUT_SECONDS
    chunks: list[bytes] = [] if begun is None else [begun.data]
    size = sum(map(len, chunks))
    tail: bytes | None = None
    if size > MAX_PAYLOAD_BYTES:
        tail = chunks[0][-_TAIL_BYTES:]
        chunks[0] = chunks[0][:MAX_PAYLOAD_BYTES]
    waiting = select.poll() if hasattr(select, "poll") else None
    if waiting is not None:
        waiting.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or (waiting is not None and not waiting.poll(left * 1000)):
            # The client writes and closes at once: what came by now is all there will be.
            break
        chunk = os.read(fd, 1 << 16)
        if not chunk:
            break
        size += len(chunk)
        if size <= MAX_PAYLOAD_BYTES:
            chunks.append(chunk)
        else:
            tail = ((tail if tail is not None else b"".join(chunks)) + chunk)[-_TAIL_BYTES:]
    return b"".join(chunks), tail
